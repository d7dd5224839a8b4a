"""Is there a second cluster at all? Communities of submissions that agree with each other beyond chance.

The ends of the agreement graph's leading eigenvectors are where submissions agree most with each other. From each end
a community is grown: whoever agrees with its members joins, whoever does not leaves. If all are honest, the mean
agreement with the members forms one hump over the submissions; attackers make a second one. Which of the two it is
decides the Bayesian information criterion, and how surely a submission belongs, the mixture that was fitted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..numerics import Array

FEWEST_CLIENTS = 5
"""Among fewer clients no community is looked for."""
_MOST = 5
"""How many communities are looked for at most, one after the other."""
_VECTORS = 3
"""How many leading eigenvectors are looked at: the first may show something honest clients have in common."""
_SMALLEST = 3
"""How many clients make a community; more than half of all are no community but the honest majority."""
_PATIENCE = 5
"""How often a community is looked over."""
_EM_STEPS, _EM_TOLERANCE = 100, 1e-5


@dataclass(frozen=True, eq=False)
class Community:
    """Submissions that agree with each other beyond chance."""

    evidence: float
    """By how much the BIC prefers two humps to one; above 10 is called very strong."""
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
    least_evidence: float,
    among: npt.NDArray[np.bool_] | None = None,
) -> list[Community]:
    """All communities that the evidence supports, the clearest first; `among` some of the submissions if given.

    Parameters
    ----------
    agreement
        The agreement graph's edges.
    people
        For each submission the number of its client. What a client sends again is no new evidence, so the criterion
        counts clients and not submissions.
    """
    left = np.arange(len(agreement)) if among is None else np.flatnonzero(among)
    found: list[Community] = []
    while len(found) < _MOST and len(np.unique(people[left])) >= FEWEST_CLIENTS:
        community = _leading_community(agreement[np.ix_(left, left)], people[left])
        if community is None or community.evidence < least_evidence:
            break
        belonging = np.zeros(len(agreement))
        belonging[left] = community.belonging
        found.append(Community(community.evidence, belonging, community.agreement))
        left = left[~community.members]
    return found


def _leading_community(agreement: Array, people: npt.NDArray[np.int64]) -> Community | None:
    if not agreement.any():
        return None
    from scipy.sparse.linalg import eigsh  # type: ignore[import-untyped]

    # Only a place to begin: two digits are enough. Where eigenvalues coincide the iteration would break off and go on
    # at random; a little on the diagonal sets them apart.
    apart = np.diag(np.linspace(0.0, 1e-3 * float(np.abs(agreement).max()), len(agreement)))
    vectors = eigsh(agreement + apart, k=_VECTORS, which="LA", v0=np.linspace(1.0, 2.0, len(agreement)), tol=0.01)[1]
    ends = (sign * vector for vector in vectors.T for sign in (1, -1))
    candidates = (_settled(agreement, people, two_humps(end)[1] > 0.5) for end in ends)
    return max((one for one in candidates if one is not None), key=lambda one: one.evidence, default=None)


def _settled(agreement: Array, people: npt.NDArray[np.int64], members: npt.NDArray[np.bool_]) -> Community | None:
    """Take in who agrees with the members and let go who does not, until nobody moves."""
    people = np.unique(people, return_inverse=True)[1]
    clients = int(people.max()) + 1
    strangers = people[:, None] != people[None, :]
    for _ in range(_PATIENCE):
        if len(np.unique(people[members])) < _SMALLEST:
            return None
        closeness = agreement[:, members].sum(axis=1) / np.maximum(1, strangers[:, members].sum(axis=1))
        _, belonging = two_humps(closeness)
        settled = bool(np.array_equal(members, belonging > 0.5))
        members = belonging > 0.5
        if settled:
            break
    if not _SMALLEST <= len(np.unique(people[members])) <= clients / 2:
        return None
    if closeness[members].mean() <= _by_chance(agreement[strangers], clients, members, people):
        return None
    gain, _ = two_humps(np.bincount(people, closeness) / np.bincount(people))
    evidence = 2.0 * gain * clients - 2.0 * math.log(clients)
    return Community(evidence, belonging, float(closeness[members].mean()))


def _by_chance(edges: Array, clients: int, members: npt.NDArray[np.bool_], people: npt.NDArray[np.int64]) -> float:
    """How much the members agree on average if they are the luckiest choice of so many clients."""
    size, count = int(members.sum()), len(np.unique(people[members]))
    choices = math.lgamma(clients + 1) - math.lgamma(count + 1) - math.lgamma(clients - count + 1)
    return 1.4826 * float(np.median(np.abs(edges))) * math.sqrt(4 * choices / (size * (size - 1)))


def two_humps(values: Array) -> tuple[float, Array]:
    """Two normal humps of one width, fitted to the values by expectation maximisation.

    Returns by how much the log-likelihood a value exceeds that of a single hump, and for each value the probability
    that it belongs to the upper hump. The fit begins at the median and at the mean of the highest tenth.

    >>> gain, upper = two_humps(np.array([0.0, 0.1, -0.1, 0.05, 5.0, 5.1]))
    >>> gain > 1, upper.round(2)
    (True, array([0., 0., 0., 0., 1., 1.]))
    """
    deviation = float(values.std())
    # Values that differ only by rounding do not vary.
    if not deviation > 1e-12 * float(np.abs(values).max(initial=0.0)):
        return 0.0, np.zeros(len(values))
    x = (values - values.mean()) / deviation
    means = np.array([np.median(x), np.sort(x)[-max(1, len(x) // 10) :].mean()])
    shares, variance, last = np.array([0.9, 0.1]), 0.5, -math.inf
    for _ in range(_EM_STEPS):
        joint = np.log(shares) - (x[:, None] - means) ** 2 / (2 * variance) - 0.5 * math.log(2 * math.pi * variance)
        total = np.logaddexp(joint[:, 0], joint[:, 1])
        responsibility = np.exp(joint - total[:, None])
        likelihood = float(total.mean())
        if likelihood - last < _EM_TOLERANCE:
            break
        last = likelihood
        sizes = np.maximum(responsibility.sum(axis=0), 1e-12)
        means = responsibility.T @ x / sizes
        shares = sizes / sizes.sum()
        variance = max(float(np.sum(responsibility * (x[:, None] - means) ** 2)) / len(x), 1e-6)
    one_hump = -0.5 * (math.log(2 * math.pi) + 1)
    return likelihood - one_hump, responsibility[:, int(np.argmax(means))]
