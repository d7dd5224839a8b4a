"""Partitions of a data set among the clients: IID, Dirichlet, or by natural groups.

A partition is a list with one sorted array of sample indices per client. It contains every sample exactly once, gives
every client at least one sample, and is the same for the same seed.
"""

from __future__ import annotations

import heapq
import math

import numpy as np
import numpy.typing as npt

from ..core.errors import ConfigError

Indices = npt.NDArray[np.int64]
"""The sorted indices of a client's samples."""

LARGEST_ALPHA = 1e9
"""Largest concentration that is drawn from: above it all shares are practically equal, and gamma variates overflow."""


def partition(
    labels: npt.ArrayLike,
    num_clients: int,
    alpha: float,
    seed: int,
    groups: npt.ArrayLike | None = None,
    kind: str = "dirichlet",
) -> list[Indices]:
    """Divide samples among clients.

    Parameters
    ----------
    labels
        The class of each sample.
    num_clients
        Number of clients.
    alpha
        Concentration of the Dirichlet distribution: small values give heterogeneous clients; infinity is IID.
    seed
        Determines the partition, together with the other arguments.
    groups
        The natural group of each sample (`Task.natural_groups`); only for `kind="natural"` (default: None).
    kind
        "dirichlet", or "natural" to keep each group whole (default: "dirichlet").

    Returns
    -------
    list of arrays
        The sorted sample indices of each client.

    Examples
    --------
    >>> clients = partition([0, 0, 1, 1, 1], num_clients=2, alpha=float("inf"), seed=0)
    >>> [len(indices) for indices in clients]
    [3, 2]
    """
    if kind == "natural":
        if groups is None:
            raise ConfigError("this task has no natural groups: use the dirichlet partition")
        return natural(groups, num_clients, seed)
    if kind != "dirichlet":
        raise ConfigError(f"unknown partition {kind!r}: choose dirichlet or natural")
    if alpha == math.inf:
        return iid(len(np.asarray(labels)), num_clients, seed)
    return dirichlet(labels, num_clients, alpha, seed)


def iid(num_samples: int, num_clients: int, seed: int) -> list[Indices]:
    """Divide shuffled samples evenly: the sizes of two clients differ by at most one."""
    _check_enough(num_samples, num_clients)
    shuffled = np.random.default_rng(seed).permutation(num_samples).astype(np.int64)
    return [np.sort(part) for part in np.array_split(shuffled, num_clients)]


def dirichlet(labels: npt.ArrayLike, num_clients: int, alpha: float, seed: int) -> list[Indices]:
    """Divide the samples of each class in proportions drawn from a symmetric Dirichlet(alpha).

    Each class is cut at its rounded cumulative proportions, so that a client's count differs from its proportion by
    less than one sample. With a small `alpha` some clients get no sample. Redrawing until every client has one may not
    terminate, so each empty client takes a random sample from the client that has most.
    """
    classes = np.asarray(labels)
    if classes.ndim != 1:
        raise ConfigError(
            f"a dirichlet partition needs one label per sample, not labels of shape {classes.shape}: "
            "use alpha = infinity or the natural partition"
        )
    if not alpha > 0:
        raise ConfigError(f"alpha is {alpha}: it must be a positive number (infinity is IID)")
    _check_enough(len(classes), num_clients)

    random = np.random.default_rng(seed)
    concentration = np.full(num_clients, min(alpha, LARGEST_ALPHA))
    pieces: list[list[Indices]] = [[] for _ in range(num_clients)]
    for members in _members(classes):
        cuts = np.rint(np.cumsum(random.dirichlet(concentration)) * len(members)).astype(np.int64)
        cuts[-1] = len(members)  # the sum of the proportions may differ from 1 by a rounding error
        shuffled = random.permutation(members)
        starts = np.concatenate([[0], cuts[:-1]])
        for client in np.flatnonzero(cuts > starts):
            pieces[client].append(shuffled[starts[client] : cuts[client]])

    empty = np.empty(0, dtype=np.int64)
    clients = [np.concatenate([empty, *own]) for own in pieces]
    return [np.sort(client) for client in _fill_empty(clients, random)]


def natural(groups: npt.ArrayLike, num_clients: int, seed: int) -> list[Indices]:
    """Assign whole groups (threads, writers), the largest first, each to the client with the fewest samples so far."""
    ids = np.asarray(groups)
    _check_enough(len(ids), num_clients)
    members = _members(ids)
    if len(members) < num_clients:
        raise ConfigError(
            f"{num_clients} clients cannot share {len(members)} natural groups: "
            f"choose at most {len(members)} clients, or the dirichlet partition"
        )
    random = np.random.default_rng(seed)
    largest_first = sorted((members[i] for i in random.permutation(len(members))), key=len, reverse=True)
    pieces: list[list[Indices]] = [[] for _ in range(num_clients)]
    smallest = [(0, client) for client in range(num_clients)]
    for group in largest_first:
        size, client = smallest[0]
        pieces[client].append(group)
        heapq.heapreplace(smallest, (size + len(group), client))
    return [np.sort(np.concatenate(own)) for own in pieces]


def _members(labels: npt.NDArray[np.generic]) -> list[Indices]:
    """The sample indices of each distinct label, in ascending order of labels; fast for large vocabularies too."""
    order = np.argsort(labels, kind="stable").astype(np.int64)
    _, counts = np.unique(labels, return_counts=True)
    return np.split(order, np.cumsum(counts)[:-1])


def _fill_empty(clients: list[Indices], random: np.random.Generator) -> list[Indices]:
    """Move one sample to each empty client from the client that has most at that moment."""
    filled = [random.permutation(own) for own in clients]  # so that the last sample, which is moved, is a random one
    largest = [(-len(own), client) for client, own in enumerate(filled)]
    heapq.heapify(largest)
    for client in [client for client, own in enumerate(filled) if len(own) == 0]:
        size, donor = largest[0]
        filled[client], filled[donor] = filled[donor][-1:], filled[donor][:-1]
        heapq.heapreplace(largest, (size + 1, donor))
    return filled


def _check_enough(num_samples: int, num_clients: int) -> None:
    if num_clients < 1:
        raise ConfigError(f"clients={num_clients} is not allowed: at least one client is needed")
    if num_clients > num_samples:
        raise ConfigError(
            f"{num_clients} clients cannot share {num_samples} samples: choose at most {num_samples} clients"
        )
