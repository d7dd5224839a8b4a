"""Benign scores and cluster filtering (Dynamic Filtering and Clipping, first half).

A cluster's score p_j is its share of the round's clients (times κ3) plus the mean benign score of its members. Clients
in the cluster with the highest score are benign, those in the cluster with the lowest score malicious. Benign clients
with a low benign score or a large distance from the centre are held out. Then the benign scores are updated.
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
from ..stages import Clusters, Mask

ScoreUpdate = Literal["printed", "signed"]
ScoreInit = Literal["variance", "deviation", "zero"]


def cluster_scores(labels: npt.NDArray[np.int64], scores: Array, clusters: int, size_weight: float) -> Array:
    """p_j = κ3 |cluster j| / m + mean benign score of cluster j; NaN for an empty cluster."""
    sizes = np.bincount(labels, minlength=clusters)
    sums = np.bincount(labels, weights=scores, minlength=clusters)
    result = np.full(clusters, np.nan)
    used = sizes > 0
    result[used] = size_weight * sizes[used] / len(labels) + sums[used] / sizes[used]
    return result


@dataclass(frozen=True)
class ClusterFilter:
    """The sets C+ and C- of a round."""

    benign_cluster: int
    malicious_cluster: int | None
    """None if all clients are in one cluster, or all scores are equal."""
    accepted: Mask
    """C+, after the filters by both percentiles."""
    malicious: Mask
    """C-."""


def filter_clients(
    clusters: Clusters,
    scores: Array,
    *,
    size_weight: float,
    score_percentile: float,
    distance_percentile: float,
) -> ClusterFilter:
    """Select the benign and the malicious cluster, and filter the benign one (equations of C+ and C-).

    A member of the benign cluster is accepted if its score is at least the α1 percentile of all selected clients and
    its distance at most the α2 percentile of its cluster. If there is none, the member nearest to the centre is
    accepted.
    """
    labels, distances = clusters.labels, clusters.distances
    names, numbers = np.unique(labels, return_inverse=True)
    by_cluster = cluster_scores(numbers, scores, len(names), size_weight)
    benign, worst = int(names[np.argmax(by_cluster)]), int(names[np.argmin(by_cluster)])
    members = labels == benign
    accepted = (
        members
        & (scores >= np.percentile(scores, score_percentile))
        & (distances <= np.percentile(distances[members], distance_percentile))
    )
    if not accepted.any():
        accepted[np.flatnonzero(members)[np.argmin(distances[members])]] = True
    # With one cluster, or equal scores of all clusters, there is no evidence against any client.
    if worst == benign:
        return ClusterFilter(benign, None, accepted, np.zeros(len(labels), dtype=bool))
    return ClusterFilter(benign, worst, accepted, labels == worst)


def updated_scores(
    scores: Array, filtering: ClusterFilter, membership: Array, step: float, rule: ScoreUpdate = "signed"
) -> Array:
    """The benign scores after this round, before the normalisation by tanh.

    "printed" is the equation exactly as printed: s + κ4 |s| P_{i,p+} for C+ and s - κ4 |s| for C-, under which a score
    never changes its sign. "signed" replaces it: s + κ4 (1 - s) P_{i,p+} for C+ and s - κ4 (1 + s) for C-. P_{i,p+} is
    the `membership` of client i, since all clients of C+ are in the cluster p+.
    """
    result = np.array(scores, dtype=np.float64)
    plus, minus = filtering.accepted, filtering.malicious
    confidence = membership[plus]
    if rule == "printed":
        result[plus] += step * np.abs(scores[plus]) * confidence
        result[minus] -= step * np.abs(scores[minus])
    else:
        result[plus] += step * (1.0 - scores[plus]) * confidence
        result[minus] += step * (-1.0 - scores[minus])
    return result


@dataclass
class ScoreBook:
    """The benign scores of all clients that took part; a new client has a small random score.

    The paper draws the scores of all clients before the first round, and applies tanh to all of them after every round.
    This class does both for a client when it takes part, which gives the same scores at a cost that is independent of
    the number of registered clients.
    """

    seed: int
    init: ScoreInit = "variance"
    normalise: bool = True
    """Whether to apply tanh after every round. The "printed" rule needs it; "signed" scores stay in [-1, 1] anyway."""
    scores: dict[ClientId, tuple[float, int]] = field(default_factory=dict)
    """Client -> its score after the last round in which it took part, and the number of that round."""

    def read(self, clients: Sequence[ClientId], round_number: int) -> Array:
        """The scores of `clients` before round `round_number`."""
        return np.array([self._current(client, round_number) for client in clients])

    def write(self, clients: Sequence[ClientId], scores: Array, round_number: int) -> Array:
        """Normalise, store and return the scores of a finished round."""
        stored = np.array([math.tanh(score) if self.normalise else score for score in scores])
        for client, score in zip(clients, stored, strict=True):
            self.scores[client] = (float(score), round_number)
        return stored

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
    """The score of a new client, drawn from N(0, 10^-3).

    It depends on the client's id and the seed alone, not on the order in which clients join. 10^-3 is the variance with
    "variance" and the standard deviation with "deviation"; with "zero" the score is 0.
    """
    if init == "zero":
        return 0.0
    kind = "s" if isinstance(client, str) else "i"
    digest = hashlib.blake2b(f"{seed}:{kind}:{client}".encode(), digest_size=16).digest()
    deviation = 1e-3**0.5 if init == "variance" else 1e-3
    return float(np.random.default_rng(int.from_bytes(digest, "little")).normal(0.0, deviation))
