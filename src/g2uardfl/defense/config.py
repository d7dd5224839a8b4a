"""The guard's hyper-parameters: the paper's values as defaults, its symbols in the comments, and our own.

Where the paper's text cannot be followed to the letter there is a switch, and "printed" always means the letter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from ..core.errors import ConfigError
from ..core.settings import build, check, choice, number, switch
from .paper.elimination import DistanceWeighting
from .paper.graph import Momentum
from .paper.relations import EdgeScaling
from .paper.scoring import ScoreInit, ScoreUpdate

Detector = Literal["graph", "agreement"]


@dataclass(frozen=True)
class GuardConfig:
    """Everything that can be set about the defence.

    >>> GuardConfig(score_step=2.0)
    Traceback (most recent call last):
        ...
    g2uardfl.core.errors.ConfigError: score_step=2.0 is not allowed: it must be a number above 0 and at most 1
    """

    seed: int = number(0, 0, 2**63 - 1)
    """Decides newcomers' scores, the encoder's start, k-means and sketches; the same seed gives the same result."""
    detector: Detector = choice("graph", "graph", "agreement")
    """How attackers are told: "graph" is the paper's attributed client graph and its auto-encoder, "agreement" the
    agreement graph of the last rounds. What only one of them uses is said where it is set."""

    attribute_history: float = number(0.1, 0, 1)
    """κ1: the weight of a client's remembered attributes."""
    relation_history: float = number(0.1, 0, 1)
    """κ2: the weight of a pair's remembered relation."""
    momentum: Momentum = choice("history", "history", "printed")
    """Whether κ1 and κ2 weigh the history, or the new values as the equation is printed."""
    fade_absent: bool = switch(False)
    """Whether history fades while a client is absent (as printed)."""
    memory_limit: int = number(1_000_000, 1000, math.inf)
    """How many pairs of clients the graph remembers, and a tenth as many clients."""

    edge_scaling: EdgeScaling = choice("similarity", "similarity", "printed")
    """tanh(max(E, 0)), or exp(-tanh(max(E, 0))) as printed."""

    min_clusters: int = number(2, 1, 100)
    """The fewest clusters Q to look for."""
    min_cluster_size: int = number(2, 2, 1000)
    """HDBSCAN's smallest cluster."""
    latent_dim: int = number(32, 1, 4096)
    """d3: the dimension of the latent representations Z."""
    hidden_dim: int = number(32, 1, 4096)
    """The width of the encoder's first layer (not given in the paper; the next four neither).

    Chosen with `benchmarks/autoencoder_settings.py`: the longer and faster the auto-encoder is trained, the more it
    draws all clients into one point, so a small learning rate and few steps separate attackers best.
    """
    pretrain_epochs: int = number(30, 0, 10_000)
    """E_p: steps of reconstruction alone."""
    cluster_epochs: int = number(30, 0, 10_000)
    """E_c: steps of reconstruction and clustering together."""
    learning_rate: float = number(0.001, 0, 10, above=True)
    """Adam's learning rate for the encoder and the centres."""
    clustering_weight: float = number(0.1, 0, 1)
    """λ: the weight of the clustering loss."""

    cluster_size_weight: float = number(0.3, 0, math.inf)
    """κ3: what a cluster's size is worth beside its members' record."""
    score_percentile: float = number(25.0, 0, 100)
    """α1: members of the benign cluster below this percentile of benign scores are held out."""
    distance_percentile: float = number(75.0, 0, 100)
    """α2: members of the benign cluster beyond this percentile of distances are held out."""
    score_step: float = number(0.5, 0, 1, above=True)
    """κ4: how fast benign scores move."""
    score_update: ScoreUpdate = choice("printed", "printed", "signed")
    """The printed, multiplicative rule, under which a score keeps its sign, or steps towards +1 and -1."""
    score_init: ScoreInit = choice("variance", "variance", "deviation", "zero")
    """Whether 10^-3 in N(0, 10^-3) is the variance or the deviation of newcomers' scores, or all start at 0."""

    distance_weighting: DistanceWeighting = choice("near", "near", "printed")
    """Whether clients near the centre weigh more, or the far ones as printed."""
    eliminate: bool = switch(True)
    """Adaptive poison eliminating; off gives the paper's G²uardFL'."""
    elimination_rate: float = number(0.01, 0, 1)
    """γ: the strength of the elimination."""

    window: int = number(300, 10, 100_000)
    """(agreement) How many submissions of the last rounds are remembered."""
    sketch_width: int = number(512, 16, 65536)
    """(agreement) How many numbers are kept of each layer of a submission."""
    least_evidence: float = number(15.0, 0, math.inf)
    """(agreement) By how much the Bayesian information criterion must prefer two clusters to one."""
    least_lead: float = number(1.5, 0, math.inf)
    """(agreement) How many times as strong as any other cluster in the graph those of attackers must be."""
    unlike_lead: float = number(2.0, 0, math.inf)
    """(agreement) `least_lead` where clients' updates are so unlike in length that their data must differ: honest
    clients with the same kind of data make clusters there, too."""
    twin_agreement: float = number(4.0, 0, math.inf)
    """(agreement) From which agreement on, in standard deviations, two clients of a round are suspected at once."""
    outlier_excess: float = number(4.0, 0, math.inf)
    """(agreement) How many standard deviations longer or more peaked than usual an update may be."""
    record_weight: float = number(3.0, 0, 100)
    """(agreement) What a benign score of -1 adds to the log-odds of a suspicion."""
    recovery_step: float = number(0.2, 0, 1, above=True)
    """(agreement) How fast benign scores rise, slower where they are bad; `score_step` is how fast they fall."""
    poor_record: float = number(-0.7, -1, 0)
    """(agreement) Below this benign score a client is held out even if nothing is found against its update; no single
    round brings a newcomer there."""
    undo: bool = switch(True)
    """(agreement) Whether the model goes back once attackers are recognised who had been accepted."""
    elimination_bound: float = number(2.0, 0, 100)
    """(agreement) The longest step of the elimination beside the step of the accepted clients."""
    far_pull: float = number(8.0, 0, math.inf, above=True)
    """(agreement) Attackers who pull the model by this many usual updates find nothing of their backdoor in it."""
    elimination_allowance: float = number(20.0, 0, math.inf)
    """(agreement) How many usual updates may be taken out beyond what attackers were seen to bring in, if the model
    seems to have been poisoned before the guard was switched on."""
    near_pull: float = number(3.0, 0, math.inf, above=True)
    """(agreement) Attackers who pull by this many usual updates did not find their backdoor in the model."""
    alike_pull: float = number(0.6, 0, math.inf, above=True)
    """(agreement) Nor did those whose updates have this mean cosine."""

    def __post_init__(self) -> None:
        check(self)


PROFILES: dict[str, dict[str, Any]] = {
    "paper": {},
    "default": {
        "detector": "agreement",
        "score_init": "zero",
        "score_update": "signed",
        "score_step": 0.6,
        "elimination_rate": 0.5,
    },
}
"""What each profile sets on top of the paper's values."""


def configure(profile: str, overrides: dict[str, Any]) -> GuardConfig:
    """The settings of `profile` with `overrides` on top."""
    if profile not in PROFILES:
        raise ConfigError(f"profile={profile!r} is not allowed: choose one of {', '.join(map(repr, PROFILES))}")
    return build(GuardConfig, {**PROFILES[profile], **overrides}, also=("profile",))
