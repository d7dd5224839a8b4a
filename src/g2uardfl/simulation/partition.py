"""Who has which training samples: the division of a data set among the clients.

Every split ends after a fixed number of steps, uses every sample exactly once, gives every client at least one, and
is the same for the same seed. A split is a list with one sorted array of sample indices per client.
"""

from __future__ import annotations

import heapq
import math

import numpy as np
import numpy.typing as npt

from ..core.errors import ConfigError

Indices = npt.NDArray[np.int64]

LARGEST_ALPHA = 1e9
"""Beyond this the shares are equal to within float precision of the sample counts, and gamma draws would overflow."""


def partition(
    labels: npt.ArrayLike,
    num_clients: int,
    alpha: float,
    seed: int,
    groups: npt.ArrayLike | None = None,
    kind: str = "dirichlet",
) -> list[Indices]:
    """Divide samples among clients in the way a run asks for.

    Parameters
    ----------
    labels
        The class of each sample.
    num_clients
        Number of clients.
    alpha
        Concentration of the Dirichlet split: the smaller, the more the clients differ; infinity is the IID split.
    seed
        Decides the split, together with the other arguments.
    groups
        For each sample the group it belongs to by nature, as the task's `natural_groups` gives it.
    kind
        "dirichlet" (default), or "natural" to keep each group whole.

    Returns
    -------
    list of arrays
        For each client the sorted indices of its samples.

    Examples
    --------
    >>> clients = partition([0, 0, 1, 1, 1], num_clients=2, alpha=float("inf"), seed=0)
    >>> [len(indices) for indices in clients]
    [3, 2]
    """
    if kind == "natural":
        if groups is None:
            raise ConfigError("this task's data has no natural groups: use the dirichlet partition instead")
        return natural(groups, num_clients, seed)
    if kind != "dirichlet":
        raise ConfigError(f"unknown partition {kind!r}: choose dirichlet or natural")
    if alpha == math.inf:
        return iid(len(np.asarray(labels)), num_clients, seed)
    return dirichlet(labels, num_clients, alpha, seed)


def iid(num_samples: int, num_clients: int, seed: int) -> list[Indices]:
    """Deal shuffled samples evenly: client sizes differ by one at most."""
    _check_enough(num_samples, num_clients)
    shuffled = np.random.default_rng(seed).permutation(num_samples).astype(np.int64)
    return [np.sort(part) for part in np.array_split(shuffled, num_clients)]


def dirichlet(labels: npt.ArrayLike, num_clients: int, alpha: float, seed: int) -> list[Indices]:
    """Divide the samples of each class among the clients by shares drawn from a symmetric Dirichlet(alpha).

    Each class is cut at its rounded cumulative shares, so that a client's count is within one of its share. Small
    `alpha` leaves clients without a sample; redrawing until none is left would never end (200 clients at 0.05), so
    each of them gets a random sample of the client that has most.
    """
    classes = np.asarray(labels)
    if classes.ndim != 1:
        raise ConfigError(
            f"a dirichlet partition needs one label per sample, not labels of shape {classes.shape}: "
            "use alpha = infinity or the natural partition"
        )
    if not alpha > 0:
        raise ConfigError(f"alpha is {alpha}: it must be a positive number (infinity means IID)")
    _check_enough(len(classes), num_clients)

    random = np.random.default_rng(seed)
    concentration = np.full(num_clients, min(alpha, LARGEST_ALPHA))
    pieces: list[list[Indices]] = [[] for _ in range(num_clients)]
    for members in _members(classes):
        cuts = np.rint(np.cumsum(random.dirichlet(concentration)) * len(members)).astype(np.int64)
        cuts[-1] = len(members)  # the shares' sum may miss 1 by a rounding error
        shuffled = random.permutation(members)
        starts = np.concatenate([[0], cuts[:-1]])
        for client in np.flatnonzero(cuts > starts):
            pieces[client].append(shuffled[starts[client] : cuts[client]])

    empty = np.empty(0, dtype=np.int64)
    clients = [np.concatenate([empty, *own]) for own in pieces]
    return [np.sort(client) for client in _feed_the_empty(clients, random)]


def natural(groups: npt.ArrayLike, num_clients: int, seed: int) -> list[Indices]:
    """Deal whole groups (threads, writers) to clients, the largest first and always to the client with least so far."""
    ids = np.asarray(groups)
    _check_enough(len(ids), num_clients)
    members = _members(ids)
    if len(members) < num_clients:
        raise ConfigError(
            f"{num_clients} clients but only {len(members)} natural groups: "
            f"ask for at most {len(members)} clients, or use the dirichlet partition"
        )
    random = np.random.default_rng(seed)
    largest_first = sorted((members[i] for i in random.permutation(len(members))), key=len, reverse=True)
    pieces: list[list[Indices]] = [[] for _ in range(num_clients)]
    least = [(0, client) for client in range(num_clients)]
    for group in largest_first:
        size, client = least[0]
        pieces[client].append(group)
        heapq.heapreplace(least, (size + len(group), client))
    return [np.sort(np.concatenate(own)) for own in pieces]


def _members(labels: npt.NDArray[np.generic]) -> list[Indices]:
    """For each distinct label, in order, the indices of its samples; quick for as many labels as a vocabulary has."""
    order = np.argsort(labels, kind="stable").astype(np.int64)
    _, counts = np.unique(labels, return_counts=True)
    return np.split(order, np.cumsum(counts)[:-1])


def _feed_the_empty(clients: list[Indices], random: np.random.Generator) -> list[Indices]:
    """Give each client that has nothing one sample of the client that has most at that moment."""
    fed = [random.permutation(own) for own in clients]  # so that the last one, which is given away, is any
    richest = [(-len(own), client) for client, own in enumerate(fed)]
    heapq.heapify(richest)
    for client in [client for client, own in enumerate(fed) if len(own) == 0]:
        size, donor = richest[0]
        fed[client], fed[donor] = fed[donor][-1:], fed[donor][:-1]
        heapq.heapreplace(richest, (size + 1, donor))
    return fed


def _check_enough(num_samples: int, num_clients: int) -> None:
    if num_clients < 1:
        raise ConfigError(f"{num_clients} clients: there must be at least one")
    if num_clients > num_samples:
        raise ConfigError(
            f"{num_clients} clients cannot share {num_samples} samples: ask for at most {num_samples} clients"
        )
