"""Communities: groups of submissions by several clients that are more similar to each other than chance allows.

Candidates are the ends of the leading eigenvectors of the similarity graph, where submissions are most similar. Each is
grown: similar submissions join, dissimilar ones leave. Among honest clients, the mean similarity with the members is
one normal distribution over all submissions; attackers form a second one. The Bayesian information criterion decides
between one and two, and the fitted mixture gives the probability that a submission belongs.

Honest clients with different data form communities, too: one for each kind of data, about equally strong. Attackers
form one. A community is therefore accepted only if it is clearly stronger than everything that remains in the graph
without it. A community that covers nearly all clients of its rounds is ignored: its similarity is what those rounds had
in common. A majority of the clients is honest, unless the remaining clients have much less in common.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ...core.numerics import Array
from ..stages import Mask
from .mixture import two_components
from .similarity import Numbers
from .sketches import Sketches, mean_cosine

MIN_CLIENTS = 5
"""With fewer clients no community is searched for: there would be no majority to compare with."""
MIN_MEMBERS = 3
"""A community has at least this many clients; two that are similar are twins (`twins.py`)."""
MAX_COSINE_RATIO = 1 / 3
"""Clients have much less in common than others if their mean cosine is at most this share of the others'."""
_MAX_COMMUNITIES = 7
"""At most this many communities are searched for, one after the other."""
_EIGENVECTORS = 3
"""Candidates are the ends of this many leading eigenvectors: the first may show something honest clients share."""
_MAX_ROUND_SHARE = 0.8
"""Attackers rarely make up more than this share of a round."""
_GROWTH_STEPS = 5
"""A candidate is grown at most this many times."""
_NOISE_SHARE = 0.5
"""Communities are compared with noise of at least this strength, as a share of the largest eigenvalue of pure noise."""


@dataclass(frozen=True, eq=False)
class Community:
    """Submissions that are more similar to each other than chance allows."""

    evidence: float
    """The difference of the Bayesian information criterion between one component and two; above 10 is very strong."""
    strength: float
    """The sum of a member's edges to all members, on average; at most the graph's largest eigenvalue."""
    belonging: Array
    """For each submission the probability that it belongs."""
    similarity: float
    """The mean similarity of the members with each other."""

    @property
    def members(self) -> Mask:
        """Submissions that belong with a probability above one half."""
        result: Mask = self.belonging > 0.5
        return result


@dataclass(frozen=True, eq=False)
class _Senders:
    """The clients behind the submissions of a graph."""

    people: Numbers
    rounds: Numbers
    suspects: Mask
    rows: Numbers
    """The rows of `sketches` that belong to the submissions."""
    sketches: Sketches | None
    ids_per_client: float
    """How many ids a client has on average."""

    def only(self, some: Numbers) -> _Senders:
        """Those of some submissions."""
        return replace(
            self, people=self.people[some], rounds=self.rounds[some], suspects=self.suspects[some], rows=self.rows[some]
        )

    def count(self, some: Mask | Numbers) -> float:
        """From how many clients some submissions come: at least as many as sent one in the same round."""
        together = np.unique(self.rounds[some], return_counts=True)[1].max(initial=0)
        return max(float(together), _count(self.people[some]) / self.ids_per_client)

    def are_honest_majority(self, members: Mask) -> bool:
        """Whether the members are the honest majority: more than half of the clients who are no suspects.

        They are not if the other clients have much less in common: near convergence honest clients have almost nothing
        in common.
        """
        if 2 * _count(self.people[members & ~self.suspects]) <= _count(self.people[~self.suspects]):
            return False
        others = ~members & ~self.suspects
        if self.sketches is None or _count(self.people[others]) < MIN_MEMBERS:
            return True
        of_others, of_members = (mean_cosine(self.sketches[self.rows[some]]) for some in (others, members))
        return of_others > MAX_COSINE_RATIO * of_members


def find_communities(
    edges: Array,
    people: Numbers,
    rounds: Numbers,
    min_evidence: float,
    min_lead: float,
    suspects: Mask | None = None,
    sketches: Sketches | None = None,
    clients: float | None = None,
) -> list[Community]:
    """All communities that are evident and clearly stronger than the rest of the graph, the strongest first.

    Parameters
    ----------
    edges
        The similarity graph.
    people
        For each submission the number of its client. Repeated submissions of a client are not independent evidence, so
        that the criterion counts clients.
    rounds
        For each submission its round.
    min_evidence
        The smallest `Community.evidence`; more is required in proportion to the structure that remains in the graph.
    min_lead
        How many times as strong as any other community each must be.
    suspects
        The submissions of clients that are suspected already. Of the others at most half can be attackers.
    sketches
        The directions of the submissions. With them more than half can be attackers, if the others have much less in
        common.
    clients
        How many clients sent the submissions, if these are fewer than the ids (default: None, one client for each id).
    """
    suspects = np.zeros(len(people), dtype=bool) if suspects is None else suspects
    remaining = np.arange(len(edges))
    ids_per_client = 1.0 if clients is None else _count(people) / clients
    senders = _Senders(people, rounds, suspects, remaining, sketches, ids_per_client)
    floor = _NOISE_SHARE * _noise_strength(edges, people)
    found: list[Community] = []
    while len(found) < _MAX_COMMUNITIES and senders.count(remaining) >= MIN_CLIENTS:
        graph = edges[np.ix_(remaining, remaining)]
        graph = _centred(graph, people[remaining]) if found else graph
        community = _most_evident(graph, senders.only(remaining), min_lead * floor)
        if community is None:
            break
        belonging = np.zeros(len(edges))
        belonging[remaining] = community.belonging
        found.append(replace(community, belonging=belonging))
        remaining = remaining[~community.members]
    evident = sorted((one for one in found if one.evidence >= min_evidence), key=lambda one: -one.strength)
    for count in range(len(evident), 0, -1):
        if _stand_out(evident[:count], found, edges, rounds, senders, floor, min_evidence, min_lead):
            return evident[:count]
    return []


def _stand_out(
    chosen: list[Community],
    found: list[Community],
    edges: Array,
    rounds: Numbers,
    senders: _Senders,
    floor: float,
    min_evidence: float,
    min_lead: float,
) -> bool:
    """Whether the chosen communities are those of attackers: a minority, and clearly stronger than all else."""
    weakest, others = chosen[-1].strength, [one.strength for one in found if one not in chosen]
    members = np.any([one.members for one in chosen], axis=0)
    if weakest < min_lead * max([floor, *others]) or senders.are_honest_majority(members):
        return False
    if any(_covers_its_rounds(one.members, members, rounds, senders.suspects) for one in chosen):
        return False
    rest = _centred(edges[np.ix_(~members, ~members)], senders.people[~members])
    values, vectors = _eigenvectors(rest)
    strongest_end = max(_strength(rest, two_components(end)[1] > 0.5) for end in _ends(vectors))
    required = min_evidence * max(1.0, values.max() / weakest)
    return bool(weakest >= min_lead * strongest_end and min(one.evidence for one in chosen) >= required)


def _covers_its_rounds(community: Mask, members: Mask, rounds: Numbers, suspects: Mask) -> bool:
    """Whether most of a community comes from rounds that `members`, all communities together, cover nearly whole."""
    _, place = np.unique(rounds, return_inverse=True)
    present, lost = (np.bincount(place, weights=rows & ~suspects) for rows in (np.ones_like(members), members))
    covered = (present >= MIN_MEMBERS) & (lost > _MAX_ROUND_SHARE * present)
    return bool(2 * np.count_nonzero(community & covered[place]) > np.count_nonzero(community))


def number_of_clients(people: Numbers, rounds: Numbers) -> float:
    """How many clients the submissions come from, at most one for each id.

    A client can get new ids, and it resembles its own past, so that ids alone would make a community of it. If N
    clients take part at random, a share 1/N of the pairs of submissions of different rounds has the same client
    (Schnabel's estimate). Only pairs that are at least half of the rounds apart count, because ids that change from
    time to time return for a while. Where no id returns nothing shows that it is not the same clients in all rounds.

    >>> number_of_clients(np.array([0, 1, 2, 3, 4, 5]), np.array([1, 1, 2, 2, 3, 3]))
    2.0
    >>> number_of_clients(np.array([0, 1, 0, 2]), np.array([1, 1, 2, 2]))
    3.0
    """
    _, place, sizes = np.unique(rounds, return_inverse=True, return_counts=True)
    most, least_apart = float(sizes.max(initial=0)), max(1, len(sizes) // 2)
    apart = np.abs(place[:, None] - place[None, :]) >= least_apart
    returned = np.count_nonzero(apart & (people[:, None] == people[None, :]))
    if not returned:
        return most
    return float(np.clip(np.count_nonzero(apart) / returned, most, max(most, _count(people))))


def _count(people: Numbers) -> int:
    return len(np.unique(people))


def _noise_strength(edges: Array, people: Numbers) -> float:
    """The largest eigenvalue of a graph of pure noise (the edge of Wigner's semicircle)."""
    between = np.abs(edges[people[:, None] != people[None, :]])
    return 2.0 * 1.4826 * float(np.median(between)) * math.sqrt(len(people)) if len(between) else 0.0


def _centred(edges: Array, people: Numbers) -> Array:
    """The edges minus their median if that is positive: without attackers all others seem a little similar."""
    different_clients = people[:, None] != people[None, :]
    median = float(np.median(edges[different_clients])) if different_clients.any() else 0.0
    return np.where(different_clients, edges - max(0.0, median), 0.0)


def _most_evident(edges: Array, senders: _Senders, min_strength: float) -> Community | None:
    """The most evident community; None if none of `min_strength` is possible."""
    if not edges.any():
        return None
    values, vectors = _eigenvectors(edges)
    if values.max() < min_strength:
        return None
    candidates = (_grown(edges, senders, two_components(end)[1] > 0.5) for end in _ends(vectors))
    return max((one for one in candidates if one is not None), key=lambda one: one.evidence, default=None)


def _eigenvectors(graph: Array) -> tuple[Array, Array]:
    """The largest eigenvalues, to about 1 %, and their eigenvectors."""
    from scipy.sparse.linalg import eigsh  # type: ignore[import-untyped]

    if len(graph) <= _EIGENVECTORS or not graph.any():
        small = np.linalg.eigh(graph)
        return small.eigenvalues, small.eigenvectors
    # Where eigenvalues coincide the iteration would restart at random; a small diagonal separates them.
    apart = np.diag(np.linspace(0.0, 1e-3 * float(np.abs(graph).max(initial=0.0)), len(graph)))
    values, vectors = eigsh(graph + apart, k=_EIGENVECTORS, which="LA", v0=np.linspace(1.0, 2.0, len(graph)), tol=0.01)
    return values, vectors


def _ends(vectors: Array) -> list[Array]:
    return [sign * vector for vector in vectors.T for sign in (1, -1)]


def _strength(edges: Array, members: Mask) -> float:
    return float(edges[np.ix_(members, members)].sum()) / max(1, int(members.sum()))


def _grown(edges: Array, senders: _Senders, members: Mask) -> Community | None:
    """Add submissions similar to the members and drop dissimilar ones, until none moves."""
    people = np.unique(senders.people, return_inverse=True)[1]
    clients = senders.count(np.ones(len(people), dtype=bool))
    different_clients = people[:, None] != people[None, :]
    for _ in range(_GROWTH_STEPS):
        if senders.count(members) < MIN_MEMBERS:
            return None
        closeness = edges[:, members].sum(axis=1) / np.maximum(1, different_clients[:, members].sum(axis=1))
        _, belonging = two_components(closeness)
        settled = bool(np.array_equal(members, belonging > 0.5))
        members = belonging > 0.5
        if settled:
            break
    if senders.count(members) < MIN_MEMBERS or senders.are_honest_majority(members):
        return None
    gain, _ = two_components(np.bincount(people, closeness) / np.bincount(people))
    evidence = 2.0 * gain * clients - 2.0 * math.log(clients)
    return Community(evidence, _strength(edges, members), belonging, float(closeness[members].mean()))
