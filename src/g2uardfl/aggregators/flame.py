"""FLAME (Nguyen et al. 2022): cluster the local models by angle, clip to the median norm, average, add noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..core.clipping import clip_factors
from ..core.numerics import Array, InnerProducts, cosine, inner_products
from ..core.settings import number
from ._rounds import CountsRounds
from .base import ClientId, Outcome, Round, Verdict
from .weak_dp import gaussian_noise

Mask = npt.NDArray[np.bool_]

_SAME = 1e-12
"""Two updates whose squared distance is less than this share of their squared lengths differ by rounding."""


@dataclass(frozen=True)
class FLAMESettings:
    """The settings of FLAME."""

    noise_factor: float = number(0.001, 0, 1)
    """λ: the noise's deviation as a share of the median update norm."""
    seed: int = number(0, 0, 2**63 - 1)
    """Decides the noise, together with the number of the round."""


class FLAME(CountsRounds):
    """G' = G + mean of the kept updates, each clipped to S, + N(0, (λS)²) on every parameter.

    Local models W_i = G + Δw_i are compared by their cosine distance over all parameters. HDBSCAN looks for one cluster
    of more than half of the clients; whoever is outside is held out. S is the median of ||Δw_i|| over all clients, kept
    or not. The noise is added once, to the mean, and never to running statistics. Where HDBSCAN finds no cluster at
    all, everybody is kept, as in the public ports. A single client is kept.

    >>> model = {"w": np.zeros(2)}
    >>> clients = {name: {"w": np.array(w)} for name, w in zip("abcd", ([1, .1], [1, .2], [1, .15], [-9, 9.]))}
    >>> [verdict.decision for verdict in FLAME().aggregate(model, clients).verdicts.values()]
    ['accepted', 'accepted', 'accepted', 'held_out']
    """

    name = "flame"
    summary = "keeps the majority cluster of models by angle, clips to the median norm, adds noise"
    takes_seed = True
    Settings = FLAMESettings

    def combine(self, round_: Round) -> Outcome:
        """Filter, clip, average, add noise."""
        self.round += 1
        everything = slice(0, round_.layout.num_parameters)
        products = inner_products(round_.updates, round_.global_vector, [everything])
        norms = np.sqrt(np.maximum(np.diagonal(products.uu[0]), 0))
        distances = model_distances(products)
        kept = majority(cluster_labels(distances))
        limit = float(np.median(norms))
        shares = kept / kept.sum()
        weights = shares * clip_factors(norms, limit)
        step = round_.weighted_sum(weights)
        noise = gaussian_noise(step, self.settings.noise_factor * limit, self.settings.seed, self.round)
        return Outcome(step + noise, shares, _verdicts(round_, kept, distances, weights))


def model_distances(products: InnerProducts) -> Array:
    """1 - cos(W_i, W_j) over all parameters, exact even where updates are tiny beside the model.

    The models differ by d = Δw_j - Δw_i, and sin² = |d|²/|W_j|² - (W_i·d)²/(|W_i||W_j|)² has no difference of large
    numbers in it; 1 - cos = sin²/(1 + cos). A model of zeros is at distance 1 from all others but its like.
    """
    total = products.total
    gu, uu, ww = total.gu[0], total.uu[0], total.ww[0]
    squared, of_models = np.diagonal(uu), np.maximum(np.diagonal(ww), 0)
    both = squared[:, None] + squared[None, :]
    gap = both - 2 * uu
    gap[gap < _SAME * both] = 0
    along = (gu[None, :] - gu[:, None]) + (uu - squared[:, None])
    lengths = np.sqrt(of_models)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        sine = gap / of_models[None, :] - (along / lengths[:, None] / lengths[None, :]) ** 2
        sine = np.clip(sine, 0, 1)
        cosines = cosine(ww, of_models[:, None], of_models[None, :])
        distances = np.where(cosines > 0, sine / (1 + cosines), 1 - cosines)
    short = np.minimum(lengths[:, None], lengths[None, :]) == 0
    distances = np.nan_to_num(np.where(short, gap > 0, distances), nan=1.0)
    distances = (distances + distances.T) / 2
    np.fill_diagonal(distances, 0)
    return distances


def cluster_labels(distances: Array) -> npt.NDArray[np.int64]:
    """HDBSCAN's label of each client where a cluster must hold more than half of them; -1 for those in none."""
    from sklearn.cluster import HDBSCAN

    clients = len(distances)
    if clients == 1:
        return np.zeros(1, dtype=np.int64)
    clustering = HDBSCAN(
        min_cluster_size=clients // 2 + 1, min_samples=1, allow_single_cluster=True, metric="precomputed", copy=True
    )
    return np.asarray(clustering.fit_predict(distances), dtype=np.int64)


def majority(labels: npt.NDArray[np.int64]) -> Mask:
    """Who is in the largest cluster; everybody where there is none.

    >>> majority(np.array([-1, 1, 1, 0])), majority(np.array([-1, -1]))
    (array([False,  True,  True, False]), array([ True,  True]))
    """
    clustered = labels[labels >= 0]
    if not len(clustered):
        return np.ones(len(labels), dtype=np.bool_)
    largest: Mask = labels == np.bincount(clustered).argmax()
    return largest


def _verdicts(round_: Round, kept: Mask, distances: Array, weights: Array) -> dict[ClientId, Verdict]:
    """With min_samples=1 the clusters are those of single linkage: what decides is the nearest neighbour."""
    others = np.where(np.eye(len(kept), dtype=bool) | ~kept[None, :], np.inf, distances)
    nearest = others.min(axis=1)
    widest = max((near for near in nearest[kept] if np.isfinite(near)), default=0.0)
    verdicts: dict[ClientId, Verdict] = {}
    for client, inside, near, weight in zip(round_.clients, kept, nearest, weights, strict=True):
        if inside:
            seen = f"at cosine distance {near:.3e} from its nearest model" if np.isfinite(near) else "alone"
            reason = f"Accepted: in the majority cluster, {seen}."
        else:
            reason = (
                f"Held out: its model is {near:.3e} (cosine distance) from the nearest of the majority cluster, "
                f"whose members have a neighbour within {widest:.3e}."
            )
        verdicts[client] = Verdict("accepted" if inside else "held_out", reason, weight=float(weight))
    return verdicts
