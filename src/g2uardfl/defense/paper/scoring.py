"""Benign scores and cluster filtering (Dynamic Filtering and Clipping, first half).

A cluster's score p_j is its share of the round's clients (times κ3) plus the mean benign score of its members. The
best cluster holds the benign clients, the worst the malicious ones; inside the best, clients with a poor record or
far from the centre are held out. Then the scores of both sides move.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...aggregators.base import ClientId
from ...core.numerics import Array
from ..stages import Mask
from .autoencoder import LatentClusters

ScoreUpdate = Literal["printed", "signed"]
ScoreInit = Literal["variance", "deviation", "zero"]


def cluster_scores(labels: npt.NDArray[np.int64], scores: Array, clusters: int, size_weight: float) -> Array:
    """p_j = κ3 |cluster j| / m + mean benign score of cluster j; NaN for an empty cluster, which is left out."""
    sizes = np.bincount(labels, minlength=clusters)
    sums = np.bincount(labels, weights=scores, minlength=clusters)
    result = np.full(clusters, np.nan)
    filled = sizes > 0
    result[filled] = size_weight * sizes[filled] / len(labels) + sums[filled] / sizes[filled]
    return result


@dataclass(frozen=True)
class ClusterFilter:
    """Who is in C+ and who in C-."""

    benign_cluster: int
    malicious_cluster: int | None
    """None when all clients are in one cluster."""
    accepted: Mask
    """C+, after both percentiles."""
    malicious: Mask
    """C-."""


def filter_clients(
    clusters: LatentClusters,
    scores: Array,
    *,
    size_weight: float,
    score_percentile: float,
    distance_percentile: float,
) -> ClusterFilter:
    """Pick the benign and the malicious cluster and thin out the benign one (eqs. for C+ and C-).

    A member of the benign cluster stays when its score reaches the α1 percentile of all selected clients and its
    distance does not exceed the α2 percentile of its cluster. If nobody stays, the member nearest the centre does.
    """
    labels, distances = clusters.labels, clusters.distances
    by_cluster = cluster_scores(labels, scores, len(clusters.centres), size_weight)
    benign, worst = int(np.nanargmax(by_cluster)), int(np.nanargmin(by_cluster))
    alone = len(np.unique(labels)) == 1
    members = labels == benign
    accepted = (
        members
        & (scores >= np.percentile(scores, score_percentile))
        & (distances <= np.percentile(distances[members], distance_percentile))
    )
    if not accepted.any():
        accepted[np.flatnonzero(members)[np.argmin(distances[members])]] = True
    # Equal scores leave argmax and argmin at one place although there are two clusters: nobody is accused then.
    nobody = alone or worst == benign
    malicious = np.zeros(len(labels), dtype=bool) if nobody else labels == worst
    return ClusterFilter(benign, None if nobody else worst, accepted, malicious)


def updated_scores(
    scores: Array, filtering: ClusterFilter, soft: Array, step: float, rule: ScoreUpdate = "signed"
) -> Array:
    """The benign scores after this round's verdicts, before the normalisation by tanh.

    "printed": s + κ4 |s| P_{i,p+} for C+, s - κ4 |s| for C-; a score can grow but never change its sign.
    "signed": s moves the share κ4 of the way to +1 (weighted by P) or to -1.
    """
    result = np.array(scores, dtype=np.float64)
    plus, minus = filtering.accepted, filtering.malicious
    confidence = soft[plus, filtering.benign_cluster]
    if rule == "printed":
        result[plus] += step * np.abs(scores[plus]) * confidence
        result[minus] -= step * np.abs(scores[minus])
    else:
        result[plus] += step * (1.0 - scores[plus]) * confidence
        result[minus] += step * (-1.0 - scores[minus])
    return result


@dataclass
class ScoreBook:
    """The benign score of every client that was ever seen; who was not yet has a small random one.

    The paper draws all scores before the first round and normalises all of them by tanh at the end of every round.
    Doing that for a client only when it comes gives the same numbers and keeps a round's cost independent of the
    number of registered clients.
    """

    seed: int
    init: ScoreInit = "variance"
    normalise: bool = True
    """Whether tanh is applied every round (the printed rule; the signed one stays in [-1, 1] by itself)."""
    scores: dict[ClientId, tuple[float, int]] = field(default_factory=dict)
    """Client -> its score at the end of the round in which it was last seen, and that round."""

    def read(self, clients: Sequence[ClientId], round_number: int) -> Array:
        """The scores with which `clients` enter round `round_number`."""
        return np.array([self._current(client, round_number) for client in clients])

    def write(self, clients: Sequence[ClientId], scores: Array, round_number: int) -> Array:
        """Normalise and keep the scores of a finished round; returns what was kept."""
        kept = np.array([math.tanh(score) if self.normalise else score for score in scores])
        for client, score in zip(clients, kept, strict=True):
            self.scores[client] = (float(score), round_number)
        return kept

    def _current(self, client: ClientId, round_number: int) -> float:
        if client in self.scores:
            score, last = self.scores[client]
        else:
            score, last = initial_score(client, self.seed, self.init), 0
        if self.normalise:
            for _ in range(round_number - 1 - last):
                score = math.tanh(score)
        return score


def initial_score(client: ClientId, seed: int, init: ScoreInit = "variance") -> float:
    """A newcomer's score, drawn from N(0, 10^-3) by its id and the seed alone, so that arrival order does not matter.

    "variance" reads 10^-3 as the variance, "deviation" as the standard deviation; "zero" draws nothing.
    """
    if init == "zero":
        return 0.0
    kind = "s" if isinstance(client, str) else "i"
    digest = hashlib.blake2b(f"{seed}:{kind}:{client}".encode(), digest_size=16).digest()
    deviation = 1e-3**0.5 if init == "variance" else 1e-3
    return float(np.random.default_rng(int.from_bytes(digest, "little")).normal(0.0, deviation))
