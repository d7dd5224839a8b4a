"""FLAME (Nguyen et al. 2022): cluster models by cosine distance, clip to the median norm, average, add noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..core.clipping import clip_factors
from ..core.numerics import Array, InnerProducts, cosine, inner_products
from ..core.settings import number, seed
from ._rounds import CountsRounds
from .base import ClientId, Outcome, Round, Verdict
from .weak_dp import gaussian_noise

Mask = npt.NDArray[np.bool_]

_ROUNDING = 1e-12
"""A squared distance of two updates below this fraction of their squared norms is rounding error and counts as 0."""


@dataclass(frozen=True)
class FLAMESettings:
    """Settings of `FLAME`; see its docstring."""

    noise_factor: float = number(0.001, 0, 1)
    seed: int | None = seed()


class FLAME(CountsRounds):
    """G' = G + mean of the accepted updates, each clipped to S, + N(0, (λS)²) on every parameter.

    Local models W_i = G + Δw_i are compared by their cosine distance over all parameters. HDBSCAN looks for one cluster
    with more than half of the clients; clients outside it are held out. S is the median of ||Δw_i|| over all clients,
    held out or not. The noise is added once, to the mean, and never to running statistics. If HDBSCAN finds no cluster,
    all clients are accepted, as in the public ports. A single client is accepted.

    Parameters
    ----------
    noise_factor
        λ: the standard deviation of the noise as a fraction of the median update norm S (default: 0.001).
    seed
        Determines the noise, together with the number of the round; None draws one (default: None).

    Notes
    -----
    Assumes that more than half of the clients of a round are honest: it accepts the attackers in a round in which they
    are the majority. It has many false positives by design.

    References
    ----------
    Nguyen et al., "FLAME: Taming Backdoors in Federated Learning", USENIX Security 2022.

    Examples
    --------
    >>> model = {"w": np.zeros(2)}
    >>> clients = {name: {"w": np.array(w)} for name, w in zip("abcd", ([1, .1], [1, .2], [1, .15], [-9, 9.]))}
    >>> [verdict.decision for verdict in FLAME().aggregate(model, clients).verdicts.values()]
    ['accepted', 'accepted', 'accepted', 'held_out']
    """

    name = "flame"
    summary = "keeps the majority cluster of models by cosine distance, clips to the median norm, adds noise"
    takes_seed = True
    Settings = FLAMESettings

    def __init__(
        self, *, noise_factor: float = FLAMESettings.noise_factor, seed: int | None = FLAMESettings.seed
    ) -> None:
        super().__init__(noise_factor=noise_factor, seed=seed)

    def combine(self, round_: Round) -> Outcome:
        """Filter, clip, average, add noise."""
        self.round += 1
        everything = slice(0, round_.layout.num_parameters)
        products = inner_products(round_.updates, round_.global_vector, [everything])
        norms = np.sqrt(np.maximum(np.diagonal(products.uu[0]), 0))
        distances = model_distances(products)
        accepted = majority(cluster_labels(distances))
        limit = float(np.median(norms))
        shares = accepted / accepted.sum()
        weights = shares * clip_factors(norms, limit)
        step = round_.weighted_sum(weights)
        noise = gaussian_noise(step, self.settings.noise_factor * limit, self._secret, self.round)
        return Outcome(step + noise, shares, _verdicts(round_, accepted, distances, weights))


def model_distances(products: InnerProducts) -> Array:
    """1 - cos(W_i, W_j) over all parameters, accurate even for updates that are tiny compared with the model.

    The models differ by d = Δw_j - Δw_i. The formula sin² = |d|²/|W_j|² - (W_i·d)²/(|W_i||W_j|)² subtracts no large
    numbers from each other, and 1 - cos = sin²/(1 + cos). A model of zeros has distance 0 from other models of zeros,
    and distance 1 from all others.
    """
    total = products.total
    gu, uu, ww = total.gu[0], total.uu[0], total.ww[0]
    squared, of_models = np.diagonal(uu), np.maximum(np.diagonal(ww), 0)
    both = squared[:, None] + squared[None, :]
    gap = both - 2 * uu
    gap[gap < _ROUNDING * both] = 0
    along = (gu[None, :] - gu[:, None]) + (uu - squared[:, None])
    norms = np.sqrt(of_models)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        sine = gap / of_models[None, :] - (along / norms[:, None] / norms[None, :]) ** 2
        sine = np.clip(sine, 0, 1)
        cosines = cosine(ww, of_models[:, None], of_models[None, :])
        distances = np.where(cosines > 0, sine / (1 + cosines), 1 - cosines)
    zero = np.minimum(norms[:, None], norms[None, :]) == 0
    distances = np.nan_to_num(np.where(zero, gap > 0, distances), nan=1.0)
    distances = (distances + distances.T) / 2
    np.fill_diagonal(distances, 0)
    return distances


def cluster_labels(distances: Array) -> npt.NDArray[np.int64]:
    """HDBSCAN's label of each client if a cluster must hold more than half of them; -1 for clients outside clusters."""
    from sklearn.cluster import HDBSCAN

    clients = len(distances)
    if clients == 1:
        return np.zeros(1, dtype=np.int64)
    clustering = HDBSCAN(
        min_cluster_size=clients // 2 + 1, min_samples=1, allow_single_cluster=True, metric="precomputed", copy=True
    )
    return np.asarray(clustering.fit_predict(distances), dtype=np.int64)


def majority(labels: npt.NDArray[np.int64]) -> Mask:
    """The members of the largest cluster; all clients if there is no cluster.

    >>> majority(np.array([-1, 1, 1, 0])), majority(np.array([-1, -1]))
    (array([False,  True,  True, False]), array([ True,  True]))
    """
    clustered = labels[labels >= 0]
    if not len(clustered):
        return np.ones(len(labels), dtype=np.bool_)
    largest: Mask = labels == np.bincount(clustered).argmax()
    return largest


def _verdicts(round_: Round, accepted: Mask, distances: Array, weights: Array) -> dict[ClientId, Verdict]:
    """With min_samples=1 HDBSCAN is single linkage, so the distance to the nearest neighbour decides."""
    others = np.where(np.eye(len(accepted), dtype=bool) | ~accepted[None, :], np.inf, distances)
    nearest = others.min(axis=1)
    widest = max((near for near in nearest[accepted] if np.isfinite(near)), default=0.0)
    verdicts: dict[ClientId, Verdict] = {}
    for client, inside, near, weight in zip(round_.clients, accepted, nearest, weights, strict=True):
        if inside:
            neighbour = f"cosine distance {near:.3e} to its nearest member" if np.isfinite(near) else "its only member"
            reason = f"Accepted: in the majority cluster, {neighbour}."
        else:
            reason = (
                f"Held out: its cosine distance {near:.3e} to the nearest member of the majority cluster is too large; "
                f"within the cluster it is at most {widest:.3e}."
            )
        verdicts[client] = Verdict("accepted" if inside else "held_out", reason, weight=float(weight))
    return verdicts
