"""The guard with the keyword arguments of both built-in profiles, documented in one place."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from .guard import Guard


class GuardSettings(TypedDict, total=False):
    """The settings of both built-in profiles, for functions that pass them on; `G2uardFL` documents them."""

    sketch_width: int
    window: int
    false_alarm_rate: float
    max_malicious_share: float
    forget_after: int
    rollback: bool
    dissent: float
    attribute_history: float
    relation_history: float
    momentum: Literal["history", "printed"]
    fade_absent: bool
    memory_limit: int
    edge_scaling: Literal["similarity", "printed"]
    update_relation: bool
    min_clusters: int
    min_cluster_size: int
    latent_dim: int
    hidden_dim: int
    pretrain_epochs: int
    cluster_epochs: int
    learning_rate: float
    clustering_weight: float
    keep_encoder: bool
    cluster_size_weight: float
    score_percentile: float
    distance_percentile: float
    score_step: float
    score_update: Literal["signed", "printed"]
    score_init: Literal["variance", "deviation", "zero"]
    distance_weighting: Literal["near", "printed"]
    eliminate: bool
    elimination_rate: float


class G2uardFL(Guard):
    """The G²uardFL defence.

    Each setting belongs to one profile and is an error with any other. None selects the profile's default.

    Parameters
    ----------
    profile
        "default" protects best in our measurements; "paper" implements each equation as printed where it can run;
        `package.module:ClassName` is a `Profile` of your own (default: "default").
    seed
        Determines everything random: the same seed and inputs give the same results. Use it only in simulations and
        tests: an attacker who knows the seed can evade detection. None draws a secret from the operating system, which
        is kept in the saved state only (default: None).
    sketch_width
        (`default` profile) The width of the sketch of each layer; with more than 16 layers, 16 times this in total
        (default: 512).
    window
        (`default` profile) The number of recent submissions that are remembered, or those of five rounds if these are
        more (default: 300).
    false_alarm_rate
        (`default` profile) The probability that a round without attackers has a flagged group; the same for a flagged
        loner (default: 0.01).
    max_malicious_share
        (`default` profile) The largest share of the clients that may be flagged as groups of attackers; the same for
        loners (default: 0.5).
    forget_after
        (`default` profile) A client's reputation is forgotten after this many rounds of absence (default: 1000).
    rollback
        (`default` profile) Whether the model is rolled back once attackers are detected whose updates had been accepted
        (default: True).
    dissent
        (`default` profile) The share of the clients of a round, rounded down, that need not support a change of a
        converged model (default: 0.15).
    attribute_history
        (`paper` profile) κ1: the weight of a client's remembered attributes (default: 0.1).
    relation_history
        (`paper` profile) κ2: the weight of a pair's remembered relation (default: 0.1).
    momentum
        (`paper` profile) Whether κ1 and κ2 weight the history, or the new values as in the printed equation (default:
        "history").
    fade_absent
        (`paper` profile) Whether history fades while a client is absent (as printed) (default: False).
    memory_limit
        (`paper` profile) The maximum number of remembered pairs of clients; that of clients is a tenth of it (default:
        1_000_000).
    edge_scaling
        (`paper` profile) tanh(max(E, 0)), or exp(-tanh(max(E, 0))) as printed (default: "similarity").
    update_relation
        (`paper` profile) Whether the cosine similarity of the updates is a fourth relation, which the paper does not
        have (default: False).
    min_clusters
        (`paper` profile) The smallest number Q of clusters (default: 2).
    min_cluster_size
        (`paper` profile) HDBSCAN's minimum cluster size (default: 2).
    latent_dim
        (`paper` profile) d3: the dimension of the latent representations Z (default: 32).
    hidden_dim
        (`paper` profile) The width of the encoder's first layer (default: 32).
    pretrain_epochs
        (`paper` profile) E_p: steps on the reconstruction loss alone (default: 30).
    cluster_epochs
        (`paper` profile) E_c: steps on reconstruction and clustering loss together (default: 30).
    learning_rate
        (`paper` profile) Adam's learning rate for the encoder and the centres (default: 0.001).
    clustering_weight
        (`paper` profile) λ: the weight of the clustering loss (default: 0.1).
    keep_encoder
        (`paper` profile) Whether training continues from the encoder of the last round, not from a new one (default:
        False).
    cluster_size_weight
        (`paper` profile) κ3: the weight of a cluster's size relative to its members' benign scores (default: 0.3).
    score_percentile
        (`paper` profile) α1: members of the benign cluster below this percentile of benign scores are held out
        (default: 25.0).
    distance_percentile
        (`paper` profile) α2: members of the benign cluster beyond this percentile of distances are held out (default:
        75.0).
    score_step
        (`paper` profile) κ4: the step size of benign scores (default: 0.5).
    score_update
        (`paper` profile) "signed" moves scores towards +1 and -1; "printed" is the multiplicative equation (default:
        "signed").
    score_init
        (`paper` profile) Whether 10^-3 in N(0, 10^-3) is the variance or the standard deviation of initial scores, or
        they start at 0 (default: "variance").
    distance_weighting
        (`paper` profile) Whether clients near their cluster's centre have more weight, or those far from it, as printed
        (default: "near").
    eliminate
        (`paper` profile) Whether poison is eliminated from the model (default: True).
    elimination_rate
        (`paper` profile) γ: the strength of the elimination (default: 0.01).
    **own_settings
        Settings of a profile of your own.

    Attributes
    ----------
    round : int
        Rounds decided so far.
    observer, construction, clustering, filtering, elimination
        The parts of the guard, with their settings and memories.

    Notes
    -----
    Clients are compared in a graph that remembers earlier rounds. The `default` profile looks for groups of
    submissions whose updates are similar beyond chance and beyond any other group; the `paper` profile is the
    attributed client graph with its auto-encoder, as printed.

    References
    ----------
    Hao Yu et al., "G²uardFL: Safeguarding Federated Learning Against Backdoor Attacks through Attributed Client Graph
    Clustering".

    Examples
    --------
    >>> import numpy as np
    >>> model = {"fc.weight": np.zeros((2, 3), np.float32), "fc.bias": np.zeros(2, np.float32)}
    >>> clients = {i: {name: array + i for name, array in model.items()} for i in range(4)}
    >>> result = G2uardFL(seed=0).aggregate(model, clients)
    >>> result.weights["fc.weight"].shape, sorted(result.verdicts)
    ((2, 3), [0, 1, 2, 3])
    >>> G2uardFL(score_percentile=10.0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    g2uardfl.core.errors.ConfigError: score_percentile is a setting of profile='paper', not of ...
    """

    def __init__(
        self,
        profile: str = "default",
        *,
        seed: int | None = None,
        sketch_width: int | None = None,
        window: int | None = None,
        false_alarm_rate: float | None = None,
        max_malicious_share: float | None = None,
        forget_after: int | None = None,
        rollback: bool | None = None,
        dissent: float | None = None,
        attribute_history: float | None = None,
        relation_history: float | None = None,
        momentum: Literal["history", "printed"] | None = None,
        fade_absent: bool | None = None,
        memory_limit: int | None = None,
        edge_scaling: Literal["similarity", "printed"] | None = None,
        update_relation: bool | None = None,
        min_clusters: int | None = None,
        min_cluster_size: int | None = None,
        latent_dim: int | None = None,
        hidden_dim: int | None = None,
        pretrain_epochs: int | None = None,
        cluster_epochs: int | None = None,
        learning_rate: float | None = None,
        clustering_weight: float | None = None,
        keep_encoder: bool | None = None,
        cluster_size_weight: float | None = None,
        score_percentile: float | None = None,
        distance_percentile: float | None = None,
        score_step: float | None = None,
        score_update: Literal["signed", "printed"] | None = None,
        score_init: Literal["variance", "deviation", "zero"] | None = None,
        distance_weighting: Literal["near", "printed"] | None = None,
        eliminate: bool | None = None,
        elimination_rate: float | None = None,
        **own_settings: Any,
    ) -> None:
        arguments = dict(locals())
        given = {name: value for name, value in arguments.items() if name in _KEYWORDS and value is not None}
        super().__init__(profile, seed=seed, **given, **own_settings)


_KEYWORDS = G2uardFL.__init__.__annotations__.keys() - {"profile", "seed", "own_settings", "return"}
