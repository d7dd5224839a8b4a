"""Is there a second cluster at all? Communities of submissions that agree with each other beyond chance.

The ends of the agreement graph's leading eigenvectors are where submissions agree most with each other. From each end
a community is grown: whoever agrees with its members joins, whoever does not leaves. If all are honest, the mean
agreement with the members forms one hump over the submissions; attackers make a second one. Which of the two it is
decides the Bayesian information criterion, and how surely a submission belongs, the mixture that was fitted.

Honest clients whose data differ form communities too, one for each kind of data. They have many of their like, while
attackers have none: so a community is believed only if it stands out from all that is left in the graph without it.
Nor is it believed if it takes in nearly everybody of the rounds it is from: that is what those rounds had in common.
Most clients are honest, so a majority is none, unless nobody else has much in common: then it is they who attack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...core.numerics import Array
from .agreement import Sketches, agree_on_average

FEWEST_CLIENTS = 5
"""Among fewer clients no community is looked for."""
_MOST = 7
"""How many communities are looked for at most, one after the other."""
_VECTORS = 3
"""How many leading eigenvectors are looked at: the first may show something honest clients have in common."""
SMALLEST = 3
"""How many clients make a community."""
_NEARLY_ALL = 0.8
"""Attackers are seldom more than this share of a round."""
FAR_LESS = 1 / 3
"""Clients whose updates have this share of the mean cosine of others' have far less in common than they."""
_PATIENCE = 5
"""How often a community is looked over."""
_NOISE = 0.5
"""Something of this strength is always left, in units of the largest eigenvalue of a graph of pure noise."""
_WELL_CUT = 0.85
"""From which share of the variance on a cut in two is one between two humps: a single one is not cut that well."""
_EM_STEPS, _EM_TOLERANCE = 100, 1e-5


@dataclass(frozen=True, eq=False)
class _Everybody:
    """Who the submissions are of."""

    people: npt.NDArray[np.int64]
    convicted: npt.NDArray[np.bool_]
    rows: npt.NDArray[np.int64]
    """Which of the `sketches` are theirs; these are many numbers, and seldom needed."""
    sketches: Sketches | None

    def only(self, some: npt.NDArray[np.int64]) -> _Everybody:
        """Of some submissions alone."""
        return _Everybody(self.people[some], self.convicted[some], self.rows[some], self.sketches)

    def are_mostly(self, members: npt.NDArray[np.bool_]) -> bool:
        """Whether the members are more than half of the clients without a bad record: then they are the honest ones.

        Unless the others have far less in common than they: near convergence honest clients have next to nothing.
        """
        if 2 * _count(self.people[members & ~self.convicted]) <= _count(self.people[~self.convicted]):
            return False
        others = ~members & ~self.convicted
        if self.sketches is None or _count(self.people[others]) < SMALLEST:
            return True
        those, these = (agree_on_average(self.sketches[self.rows[some]]) for some in (others, members))
        return those > FAR_LESS * these


@dataclass(frozen=True, eq=False)
class Community:
    """Submissions that agree with each other beyond chance."""

    evidence: float
    """By how much the BIC prefers two humps to one; above 10 is called very strong."""
    strength: float
    """The sum of a member's edges to all members, on average: no more than the graph's largest eigenvalue."""
    belonging: Array
    """For each submission the probability that it belongs."""
    agreement: float
    """The mean agreement of its members with each other."""

    @property
    def members(self) -> npt.NDArray[np.bool_]:
        """Who rather belongs than not."""
        return self.belonging > 0.5


def find_communities(
    agreement: Array,
    people: npt.NDArray[np.int64],
    rounds: npt.NDArray[np.int64],
    least_evidence: float,
    least_lead: float,
    convicted: npt.NDArray[np.bool_] | None = None,
    sketches: Sketches | None = None,
) -> list[Community]:
    """All communities that the evidence supports and that stand out, the strongest first.

    Parameters
    ----------
    agreement
        The agreement graph's edges.
    people
        For each submission the number of its client. What a client sends again is no new evidence, so the criterion
        counts clients and not submissions.
    rounds
        For each submission its round.
    least_evidence
        How evident each must be; the more, the more structure is left in the graph without them.
    least_lead
        How many times as strong as any other community each must be.
    convicted
        Which submissions are of clients with a bad record. Of the others no more than half can be attackers.
    sketches
        The submissions' directions. With them more than half can be, if all others have far less in common.
    """
    convicted = np.zeros(len(people), dtype=bool) if convicted is None else convicted
    left = np.arange(len(agreement))
    everybody = _Everybody(people, convicted, left, sketches)
    floor = _NOISE * _noise(agreement, people)
    found: list[Community] = []
    while len(found) < _MOST and _count(people[left]) >= FEWEST_CLIENTS:
        graph = agreement[np.ix_(left, left)]
        graph = _centred(graph, people[left]) if found else graph
        community = _leading_community(graph, everybody.only(left), least_lead * floor)
        if community is None:
            break
        belonging = np.zeros(len(agreement))
        belonging[left] = community.belonging
        found.append(replace(community, belonging=belonging))
        left = left[~community.members]
    evident = sorted((one for one in found if one.evidence >= least_evidence), key=lambda one: -one.strength)
    for count in range(len(evident), 0, -1):
        believed = evident[:count]
        weakest, others = believed[-1].strength, [one.strength for one in found if one not in believed]
        members = np.any([one.members for one in believed], axis=0)
        if weakest < least_lead * max([floor, *others]) or everybody.are_mostly(members):
            continue
        if any(_whole_rounds(one.members, members, rounds, convicted) for one in believed):
            continue
        rest = _centred(agreement[np.ix_(~members, ~members)], people[~members])
        values, vectors = _eigenvectors(rest)
        at_ends = max(_strength(rest, two_humps(end)[1] > 0.5) for end in _ends(vectors))
        enough = least_evidence * max(1.0, values.max() / weakest)
        if weakest >= least_lead * at_ends and min(one.evidence for one in believed) >= enough:
            return believed
    return []


def _whole_rounds(
    community: npt.NDArray[np.bool_],
    members: npt.NDArray[np.bool_],
    rounds: npt.NDArray[np.int64],
    convicted: npt.NDArray[np.bool_],
) -> bool:
    """Whether most of a community are from rounds that nobody would be left of, among those without a bad record.

    `members` are those of all communities together.
    """
    _, place = np.unique(rounds, return_inverse=True)
    there, lost = (np.bincount(place, weights=rows & ~convicted) for rows in (np.ones_like(members), members))
    whole = (there >= SMALLEST) & (lost > _NEARLY_ALL * there)
    return bool(2 * np.count_nonzero(community & whole[place]) > np.count_nonzero(community))


def _count(people: npt.NDArray[np.int64]) -> int:
    return len(np.unique(people))


def _noise(agreement: Array, people: npt.NDArray[np.int64]) -> float:
    """The largest eigenvalue of a graph whose edges are nothing but noise (the edge of Wigner's semicircle)."""
    edges = np.abs(agreement[people[:, None] != people[None, :]])
    return 2.0 * 1.4826 * float(np.median(edges)) * math.sqrt(len(people)) if len(edges) else 0.0


def _centred(agreement: Array, people: npt.NDArray[np.int64]) -> Array:
    """The edges less their median, if that is positive.

    Beside attackers who pull the other way all others agree a little.
    """
    strangers = people[:, None] != people[None, :]
    in_common = float(np.median(agreement[strangers])) if strangers.any() else 0.0
    return np.where(strangers, agreement - max(0.0, in_common), 0.0)


def _leading_community(agreement: Array, everybody: _Everybody, least_strength: float) -> Community | None:
    """The most evident community, if one of `least_strength` is possible at all."""
    if not agreement.any():
        return None
    values, vectors = _eigenvectors(agreement)
    if values.max() < least_strength:
        return None
    candidates = (_settled(agreement, everybody, two_humps(end)[1] > 0.5) for end in _ends(vectors))
    return max((one for one in candidates if one is not None), key=lambda one: one.evidence, default=None)


def _eigenvectors(graph: Array) -> tuple[Array, Array]:
    """The largest eigenvalues, roughly, and their eigenvectors."""
    from scipy.sparse.linalg import eigsh  # type: ignore[import-untyped]

    if len(graph) <= _VECTORS or not graph.any():
        small = np.linalg.eigh(graph)
        return small.eigenvalues, small.eigenvectors
    # Where eigenvalues coincide the iteration would break off and go on at random; a little on the diagonal sets them
    # apart.
    apart = np.diag(np.linspace(0.0, 1e-3 * float(np.abs(graph).max(initial=0.0)), len(graph)))
    values, vectors = eigsh(graph + apart, k=_VECTORS, which="LA", v0=np.linspace(1.0, 2.0, len(graph)), tol=0.01)
    return values, vectors


def _ends(vectors: Array) -> list[Array]:
    return [sign * vector for vector in vectors.T for sign in (1, -1)]


def _strength(agreement: Array, members: npt.NDArray[np.bool_]) -> float:
    return float(agreement[np.ix_(members, members)].sum()) / max(1, int(members.sum()))


def _settled(agreement: Array, everybody: _Everybody, members: npt.NDArray[np.bool_]) -> Community | None:
    """Take in who agrees with the members and let go who does not, until nobody moves."""
    people = np.unique(everybody.people, return_inverse=True)[1]
    clients = int(people.max()) + 1
    strangers = people[:, None] != people[None, :]
    for _ in range(_PATIENCE):
        if _count(people[members]) < SMALLEST:
            return None
        closeness = agreement[:, members].sum(axis=1) / np.maximum(1, strangers[:, members].sum(axis=1))
        _, belonging = two_humps(closeness)
        settled = bool(np.array_equal(members, belonging > 0.5))
        members = belonging > 0.5
        if settled:
            break
    if _count(people[members]) < SMALLEST or everybody.are_mostly(members):
        return None
    gain, _ = two_humps(np.bincount(people, closeness) / np.bincount(people))
    evidence = 2.0 * gain * clients - 2.0 * math.log(clients)
    return Community(evidence, _strength(agreement, members), belonging, float(closeness[members].mean()))


def two_humps(values: Array) -> tuple[float, Array]:
    """Two normal humps of one width, fitted to the values by expectation maximisation.

    Returns by how much the log-likelihood a value exceeds that of a single hump, and for each value the probability
    that it belongs to the upper hump. Where a fit ends depends on where it begins: one begins with few values in the
    upper hump, one with the cut that sets the two parts furthest apart, and the better of them counts.

    >>> gain, upper = two_humps(np.array([0.0, 0.1, -0.1, 0.05, 5.0, 5.1]))
    >>> gain > 1, upper.round(2)
    (True, array([0., 0., 0., 0., 1., 1.]))
    """
    deviation = float(values.std())
    # Values that differ only by rounding do not vary.
    if not deviation > 1e-12 * float(np.abs(values).max(initial=0.0)):
        return 0.0, np.zeros(len(values))
    x = (values - values.mean()) / deviation
    ordered = np.sort(x)
    few = ordered[-max(1, len(x) // 10) :]
    likelihood, upper = _fitted(x, float(np.median(x)), float(few.mean()), 0.1)
    low, high, share = _best_cut(ordered)
    if -low * high > _WELL_CUT:
        likelihood, upper = max((likelihood, upper), _fitted(x, low, high, share), key=lambda fit: fit[0])
    one_hump = -0.5 * (math.log(2 * math.pi) + 1)
    return likelihood - one_hump, upper


def _best_cut(ordered: Array) -> tuple[float, float, float]:
    """The means of the two parts of sorted values of mean 0 that lie furthest apart, and the share of the upper one."""
    lower = np.arange(1, len(ordered))
    sums = np.cumsum(ordered)[:-1]
    between = sums**2 / (lower * (len(ordered) - lower))
    best = int(np.argmax(between))
    count, total = int(lower[best]), float(sums[best])
    return total / count, -total / (len(ordered) - count), 1 - count / len(ordered)


def _fitted(x: Array, low: float, high: float, share: float) -> tuple[float, Array]:
    """Expectation maximisation for values of mean 0 and variance 1: the mean log-likelihood, and who is in the upper.

    `share` is that of the upper hump at the beginning.
    """
    count = len(x)
    variance, last = 0.5, -math.inf
    for _ in range(_EM_STEPS):
        # Of two normals of one width the log-odds are a straight line.
        odds = math.log(share / (1 - share)) + (high - low) / variance * (x - (high + low) / 2)
        in_low = math.log(1 - share) - (1 + low**2) / (2 * variance) - 0.5 * math.log(2 * math.pi * variance)
        likelihood = in_low + float(np.logaddexp(0.0, odds).mean())
        upper: Array = 0.5 + 0.5 * np.tanh(odds / 2)
        if likelihood - last < _EM_TOLERANCE:
            break
        last = likelihood
        members, moment = min(max(float(upper.sum()), 1e-12), count - 1e-12), float(upper @ x)
        share, low, high = members / count, -moment / (count - members), moment / members
        variance = max(1 - (1 - share) * low**2 - share * high**2, 1e-6)
    return likelihood, upper if high >= low else 1 - upper
