"""Groups of similar submissions, and the test whether they are beyond chance and beyond any other group.

The model is that of a planted community. Each submission belongs to the group with a probability; the mean similarity
to the members follows one normal distribution inside the group and another one, with the same variance, outside. Each
client has its own rate of submissions that belong, with a beta distribution as prior. The fit alternates between the
two from starts at both ends of the graph's leading eigenvectors.

The score of a group is its strength (the mean sum of a member's edges to all members, at most the graph's largest
eigenvalue) times its separation (the distance of its clients from all others in standard deviations). The scores of
honest groups depend on the task, the data and the window. The test is therefore relative: a group is removed, and its
score is compared with that of the best group in what is left. Without attackers the two are alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ...core.numerics import Array
from ..stages import Mask
from .reputation import PRIOR
from .similarity import Numbers

_MAX_GROUPS = 3
"""At most so many groups of attackers are distinguished."""
_EIGENVECTORS = 3
"""The fit starts at both ends of so many leading eigenvectors: the first may show what honest clients share."""
_STEPS = 15
"""A fit has at most so many steps."""
MIN_OTHERS = 5
"""So many clients at least must remain, to compare with."""
_USUAL_LEAD, _SPREAD, _MAX_SPREAD = 1.45, 2.1, 0.5
"""The median of leads without attackers, and the standard deviation of their logarithm: the second over the square root
of the number of clients, but at most the third. `benchmarks/false_alarms.py` measures them on recorded rounds."""
_NOISE = 3.0
"""The score of the best group in a graph of pure noise."""
_CHANCE = 2.0 * math.sqrt(2 / math.pi) / math.sqrt(1 - 2 / math.pi)
"""The separation of the two halves of one normal distribution; a smaller one is not more separate than that."""


@dataclass(frozen=True, eq=False)
class Group:
    """Submissions that are similar to each other."""

    belonging: Array
    """For each submission the probability that it belongs."""
    score: float
    """Strength times separation, divided by the square root of the number of submissions in the graph."""
    lead: float = 1.0
    """How many times as high its score is as that of the best group that remains."""

    @property
    def members(self) -> Mask:
        """Submissions that belong with a probability above one half."""
        result: Mask = self.belonging > 0.5
        return result


def required_lead(clients: int, false_alarm_rate: float) -> float:
    """The lead that the best group of honest submissions exceeds with probability `false_alarm_rate`.

    The logarithms of leads without attackers are about normal, and vary the less the more clients there are.

    >>> [round(required_lead(clients, 0.01), 1) for clients in (10, 50, 150)]
    [4.6, 2.9, 2.2]
    """
    from scipy.special import ndtri  # type: ignore[import-untyped]

    spread = min(_MAX_SPREAD, _SPREAD / math.sqrt(clients))
    return _USUAL_LEAD * math.exp(-float(ndtri(false_alarm_rate)) * spread)


def find_groups(
    edges: Array, people: Numbers, convictions: Array, false_alarm_rate: float, max_share: float
) -> list[Group]:
    """The groups whose scores are beyond chance, the best first.

    Parameters
    ----------
    edges
        The similarity graph; 0 between submissions of one client.
    people
        For each submission the number of its client.
    convictions
        For each submission how often its client was convicted in the past, which adds to the prior of its rate.
    false_alarm_rate
        The probability that a group is found in a graph without attackers.
    max_share
        The groups together have at most this share of the clients.
    """
    remaining = np.arange(len(edges))
    clients = _count(people)
    largest, required = math.floor(max_share * clients + 1e-9), required_lead(clients, false_alarm_rate)
    others = max(MIN_OTHERS, clients - largest)
    found: list[Group] = []
    chosen: list[Group] = []
    # A group may have some submissions of a client only, so that what remains does not show how few clients there are.
    while clients >= MIN_OTHERS + 2 and len(found) <= _MAX_GROUPS:
        group = _best_group(edges, people, convictions, remaining, largest)
        lead = found[-1].score / max(_NOISE, group.score if group else 0.0) if found else 0.0
        if lead >= max(required, chosen[0].lead if chosen else 0.0) and _count(people[remaining]) >= others:
            chosen = [replace(one, lead=lead) for one in found]
        if group is None:
            break
        found.append(group)
        remaining = remaining[~group.members[remaining]]
    return chosen


def _count(people: Numbers) -> int:
    return len(np.unique(people))


def _best_group(edges: Array, people: Numbers, convictions: Array, some: Numbers, largest: int) -> Group | None:
    """The group with the highest score among `some` submissions, of two to `largest` clients, if there is one."""
    graph, _, person = edges[np.ix_(some, some)], *np.unique(people[some], return_inverse=True)
    comparable = person[:, None] != person[None, :]
    if len(some) < len(edges) and comparable.any():
        # Without an earlier group, all others seem a little similar.
        graph = np.where(comparable, graph - max(0.0, float(np.median(graph[comparable]))), 0.0)
    if not graph.any():
        return None
    pairs = comparable.astype(np.float64)
    groups: list[Group | None] = []
    for vector in _leading_eigenvectors(graph).T:
        for end in (vector, -vector):
            start = (end > max(0.0, end.max()) / 2).astype(np.float64)
            if start.any():
                fitted = _fitted(graph, pairs, person, convictions[some], start)
                groups += [_scored(graph, pairs, person, one, largest) for one in (start, fitted)]
    best = max((one for one in groups if one is not None), key=lambda one: one.score, default=None)
    if best is None:
        return None
    belonging = np.zeros(len(edges))
    belonging[some] = best.belonging
    return replace(best, belonging=belonging)


def _leading_eigenvectors(graph: Array) -> Array:
    """(submissions x vectors), to about 1 %."""
    from scipy.sparse.linalg import eigsh  # type: ignore[import-untyped]

    vectors: Array
    if len(graph) <= 4 * _EIGENVECTORS:
        vectors = np.linalg.eigh(graph).eigenvectors[:, -_EIGENVECTORS:]
        return vectors
    # Where eigenvalues coincide the iteration would restart at random; a small diagonal separates them.
    apart = np.diag(np.linspace(0.0, 1e-3 * float(np.abs(graph).max()), len(graph)))
    _, vectors = eigsh(graph + apart, k=_EIGENVECTORS, which="LA", v0=np.linspace(1.0, 2.0, len(graph)), tol=0.01)
    return vectors


def _similarity(edges: Array, pairs: Array, belonging: Array) -> Array:
    """For each submission the mean of its edges to the members."""
    result: Array = (edges @ belonging) / np.maximum(pairs @ belonging, 1e-9)
    return result


def _fitted(edges: Array, pairs: Array, person: Numbers, convictions: Array, start: Array) -> Array:
    """Fit the model by mean-field steps from `start`; the last probabilities before the group would vanish."""
    belonging, submissions = start, np.bincount(person)[person]
    for _ in range(_STEPS):
        closeness = _similarity(edges, pairs, belonging)
        share = float(np.clip(belonging.mean(), 1e-3, 1 - 1e-3))
        inside = float(belonging @ closeness) / float(belonging.sum())
        outside = float((1 - belonging) @ closeness) / max(float((1 - belonging).sum()), 1e-9)
        variance = float(belonging @ (closeness - inside) ** 2 + (1 - belonging) @ (closeness - outside) ** 2)
        # The rate of each client from its other submissions: the mean of a beta distribution.
        others = np.bincount(person, belonging)[person] - belonging
        malicious = PRIOR * share + others + convictions
        benign = PRIOR * (1 - share) + submissions - 1 - others
        slope = (inside - outside) / max(variance / len(belonging), 1e-9)
        odds = slope * (closeness - (inside + outside) / 2) + np.log(malicious / benign)
        updated: Array = 0.5 + 0.5 * np.tanh(odds / 2)
        if updated.sum() < 1.5:
            break
        settled = float(np.abs(updated - belonging).max()) < 1e-3
        belonging = updated
        if settled:
            break
    return belonging


def _scored(edges: Array, pairs: Array, person: Numbers, belonging: Array, largest: int) -> Group | None:
    """The group of these probabilities; None if it has too few or too many clients, or if they are not similar.

    A client counts once for its submissions in the group and once for the others: it may have become hostile late.
    """
    members = belonging > 0.5
    part = 2 * person + members
    sizes = np.bincount(part, minlength=2 * int(person.max()) + 2)
    clients, in_group = len(sizes) // 2, int(np.count_nonzero(sizes[1::2]))
    if not 2 <= in_group <= min(largest, clients - 1) or clients < 4:
        return None
    strength = float(edges[np.ix_(members, members)].sum()) / int(members.sum())
    similarity = _similarity(edges, pairs, members.astype(np.float64))
    closeness = np.bincount(part, similarity, minlength=len(sizes)) / np.maximum(sizes, 1)
    inside, outside = closeness[1::2][sizes[1::2] > 0], closeness[::2][sizes[::2] > 0]
    variance = (inside.var() * len(inside) + outside.var() * len(outside)) / (len(inside) + len(outside) - 2)
    separation = (inside.mean() - outside.mean()) / max(math.sqrt(variance), 1e-9)
    if strength <= 0 or separation <= 0:
        return None
    return Group(belonging, strength * float(np.clip(separation, _CHANCE, 4 * _CHANCE)) / math.sqrt(len(edges)))
