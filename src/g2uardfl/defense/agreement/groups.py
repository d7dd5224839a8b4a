"""Groups of similar submissions, and the test whether they are beyond chance and beyond any other group.

The model is that of a planted community. Each submission belongs to the group with a probability; the mean similarity
to the members follows one normal distribution inside the group and another one, with the same variance, outside. Each
client has its own rate of submissions that belong, with a beta distribution as prior. The fit alternates between the
two from starts at both ends of the graph's leading eigenvectors.

The score of a group is its strength (the mean sum of a member's edges to all members, at most the graph's largest
eigenvalue) times its separation (the distance of its clients from all others in standard deviations). The scores of
honest groups depend on the task, the data and the window. The test is therefore relative: a group is removed, and its
score is compared with that of the best group among the remaining submissions. Without attackers the two are similar.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...core.numerics import Array, share_of
from ...core.threads import for_each
from ..stages import Edges, Mask
from .reputation import PRIOR
from .similarity import Numbers

_MAX_GROUPS = 3
"""The maximum number of groups of attackers."""
_EIGENVECTORS = 3
"""The number of leading eigenvectors from both ends of which the fit starts: the first may show what honest clients
share."""
_BLOCK, _BLOCKS = 8, 6
"""The number of vectors in a block and of blocks; their span holds the eigenvectors to about 1 % if a group stands
out."""
_STEPS = 15
"""The maximum number of steps of a fit."""
_COLUMNS = 1 << 11
"""How many columns of a large graph a thread multiplies at once."""
_MAX_EDGES = 1 << 20
"""The usual similarity of the remaining submissions is the median of at most about this many edges."""
MIN_OTHERS = 5
"""The minimum number of clients that must remain for comparison."""
_USUAL_LEAD, _SPREAD, _MAX_SPREAD = 1.45, 2.1, 0.5
"""The median of leads without attackers, and the standard deviation of their logarithm: the second over the square root
of the number of clients, but at most the third. `benchmarks/false_alarms.py` measures them on recorded rounds."""
_NOISE = 3.0
"""The score of the best group in a graph of pure noise."""
_CHANCE = 2.0 * math.sqrt(2 / math.pi) / math.sqrt(1 - 2 / math.pi)
"""The separation of the two halves of one normal distribution, which is no evidence of two groups."""


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
    edges: Edges, people: Numbers, convictions: Array, false_alarm_rate: float, max_share: float
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
    view = _View.of(edges, people, convictions)
    largest, required = share_of(view.clients, max_share), required_lead(view.clients, false_alarm_rate)
    others = max(MIN_OTHERS, view.clients - largest)
    found: list[Group] = []
    chosen: list[Group] = []
    # A group may hold only some submissions of a client, so the rest does not show how few other clients there are.
    while view.clients >= MIN_OTHERS + 2 and len(found) <= _MAX_GROUPS:
        rest = view if not found else view.without(np.any([one.members for one in found], axis=0))
        group = _best_group(rest, largest)
        lead = found[-1].score / max(_NOISE, group.score if group else 0.0) if found else 0.0
        if lead >= max(required, chosen[0].lead if chosen else 0.0) and rest.remaining >= others:
            chosen = [replace(one, lead=lead) for one in found]
        # A group with a lower score cannot have the required lead, and later groups are expected to score even lower.
        if group is None or group.score < required * _NOISE:
            break
        found.append(group)
    return chosen


@dataclass(frozen=True, eq=False)
class _View:
    """Some submissions of a graph.

    All candidate groups are computed together, as the rows of (groups x submissions) arrays.
    """

    edges: Edges
    person: Numbers
    """For each submission the number of its client, from 0 without gaps."""
    convictions: Array
    present: Array
    """1 for each submission of the view, and 0 for all others."""
    usual: float = 0.0
    """What is subtracted from each edge."""

    @staticmethod
    def of(edges: Edges, people: Numbers, convictions: Array) -> _View:
        """All submissions."""
        return _View(edges, np.unique(people, return_inverse=True)[1], convictions, np.ones(len(people)))

    @cached_property
    def clients(self) -> int:
        """The number of clients in the whole graph."""
        return int(self.person.max()) + 1

    @cached_property
    def submissions(self) -> Array:
        """How many submissions the client of each submission has in the view."""
        result: Array = self.of_client(self.present[None])[0]
        return result

    @property
    def remaining(self) -> int:
        """The number of clients with a submission in the view."""
        return int(np.count_nonzero(np.bincount(self.person, self.present)))

    def without(self, members: Mask) -> _View:
        """The other submissions. Without the earlier groups all of them are slightly similar, which is subtracted."""
        rows = np.flatnonzero((self.present > 0) & ~members)
        some = rows[:: 1 + len(rows) ** 2 // _MAX_EDGES]
        comparable = (self.person[some, None] != self.person[rows]) & (some[:, None] < rows)
        values = self.edges[np.ix_(some, rows)][comparable]
        usual = max(0.0, float(np.median(values))) if len(values) else 0.0
        return replace(self, present=self.present * ~members, usual=usual)

    def of_client(self, values: Array) -> Array:
        """For each submission the sum of the values of all submissions of its client."""
        rows = np.arange(len(values))[:, None] * self.clients + self.person
        result: Array = np.bincount(rows.ravel(), values.ravel(), len(values) * self.clients)[rows]
        return result

    def sums(self, belonging: Array) -> tuple[Array, Array, Array]:
        """For each submission the sum of its edges to members, and the members of other clients and of its own."""
        own = self.of_client(belonging)
        others = belonging.sum(axis=1, keepdims=True) - own
        return self.present * (_product(belonging, self.edges) - self.usual * others), others, own


def _product(vectors: Array, edges: Edges) -> Array:
    """`vectors` times the graph, on several threads if the graph is large."""
    rows = vectors.astype(edges.dtype)
    if len(edges) <= _COLUMNS:
        return (edges @ rows.T).T.astype(np.float64, order="C")
    result = np.empty(vectors.shape)

    def multiply(start: int) -> None:
        columns = slice(start, start + _COLUMNS)
        result[:, columns] = rows @ edges[:, columns]

    for_each(multiply, range(0, len(edges), _COLUMNS))
    return result


def _best_group(view: _View, largest: int) -> Group | None:
    """The group with the highest score, of two to `largest` clients, if there is one."""
    vectors = _leading_eigenvectors(view)
    ends = np.stack([vectors, -vectors], axis=1).reshape(-1, len(view.person))
    starts = view.present * (ends > np.maximum(ends.max(axis=1, initial=0.0, keepdims=True), 0.0) / 2)
    starts = starts[starts.any(axis=1)]
    if not len(starts):
        return None
    candidates = np.stack([starts, _fitted(view, starts)], axis=1).reshape(-1, len(view.person))
    scores = _scores(view, candidates, largest)
    best = int(np.argmax(scores))
    return Group(candidates[best], float(scores[best])) if scores[best] > 0 else None


def _leading_eigenvectors(view: _View) -> Array:
    """(vectors x submissions): by the block Lanczos method, with a start that is always the same."""
    count = len(view.person)
    if count <= _BLOCKS * _BLOCK:
        basis = np.diag(view.present)
        images = view.sums(basis)[0]
    else:
        basis, images = np.zeros((2, 0, count))
        rest = np.random.default_rng(0).standard_normal((_BLOCK, count))
        for _ in range(_BLOCKS):
            for _ in range(2):
                rest = rest - (rest @ basis.T) @ basis
            block = np.linalg.qr((rest * view.present).T).Q.T
            rest = view.sums(block)[0]
            basis, images = np.concatenate([basis, block]), np.concatenate([images, rest])
    ritz = basis @ images.T
    return np.linalg.eigh((ritz + ritz.T) / 2).eigenvectors[:, -_EIGENVECTORS:].T @ basis


def _fitted(view: _View, starts: Array) -> Array:
    """Fit the model by mean-field steps from each start; the last probabilities before a group would vanish."""
    result = starts.copy()
    active = np.arange(len(starts))
    for _ in range(_STEPS):
        belonging = result[active]
        rest = view.present - belonging
        sums, others, own = view.sums(belonging)
        closeness = sums / np.maximum(others, 1e-9)
        size, size_of_rest = belonging.sum(axis=1, keepdims=True), rest.sum(axis=1, keepdims=True)
        share = np.clip(size / (size + size_of_rest), 1e-3, 1 - 1e-3)
        inside = np.sum(belonging * closeness, axis=1, keepdims=True) / size
        outside = np.sum(rest * closeness, axis=1, keepdims=True) / np.maximum(size_of_rest, 1e-9)
        squares = belonging * (closeness - inside) ** 2 + rest * (closeness - outside) ** 2
        variance = squares.sum(axis=1, keepdims=True) / (size + size_of_rest)
        # The rate of each client from its other submissions: the mean of a beta distribution.
        own -= belonging
        malicious = PRIOR * share + own + view.convictions
        benign = PRIOR * (1 - share) + view.submissions - view.present - own
        slope = (inside - outside) / np.maximum(variance, 1e-9)
        odds = slope * (closeness - (inside + outside) / 2) + np.log(malicious / benign)
        updated = view.present * (0.5 + 0.5 * np.tanh(odds / 2))
        remains = updated.sum(axis=1) >= 1.5
        result[active[remains]] = updated[remains]
        active = active[remains & (np.abs(updated - belonging).max(axis=1) >= 1e-3)]
        if not len(active):
            break
    return result


def _scores(view: _View, candidates: Array, largest: int) -> Array:
    """The score of each group; 0 for one that has too few or too many clients, or whose clients are not similar.

    A client counts once for its submissions in the group and once for the others: it may have become hostile late.
    """
    members = candidates > 0.5
    sums, others, _ = view.sums(members.astype(np.float64))
    strength = np.sum(sums * members, axis=1) / np.maximum(members.sum(axis=1), 1)
    # (groups x clients x outside or inside): the mean similarity of a client's submissions, and whether it has any.
    shape = len(candidates), view.clients, 2
    parts = (np.arange(shape[0])[:, None] * 2 * view.clients + 2 * view.person + members).ravel()
    present = np.broadcast_to(view.present, candidates.shape).ravel()
    sizes, closeness = (
        np.bincount(parts, values, math.prod(shape)).reshape(shape)
        for values in (present, (sums / np.maximum(others, 1e-9)).ravel())
    )
    has = sizes > 0
    clients, of_client = has.sum(axis=1), closeness / np.maximum(sizes, 1)
    means = np.sum(of_client * has, axis=1) / np.maximum(clients, 1)
    squares = np.sum(has * (of_client - means[:, None]) ** 2, axis=(1, 2))
    deviations = np.sqrt(squares / np.maximum(clients.sum(axis=1) - 2, 1))
    separation = (means[:, 1] - means[:, 0]) / np.maximum(deviations, 1e-9)
    allowed = (clients[:, 1] >= 2) & (clients[:, 1] <= min(largest, view.remaining - 1)) & (view.remaining >= 4)
    found = allowed & (strength > 0) & (separation > 0)
    scores: Array = strength * np.clip(separation, _CHANCE, 4 * _CHANCE) / math.sqrt(view.present.sum())
    return np.where(found, scores, 0.0)
