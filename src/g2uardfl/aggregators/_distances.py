"""Norms, inner products and distances of updates, accumulated in float64, for Krum and other distance-based rules."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ..core.numerics import Array
from ..core.threads import for_each, in_parallel
from ..core.updates import SentUpdates, temporary_block

_BLOCK_BYTES = 1 << 22
"""The size in bytes of the blocks that one core multiplies: 4 MiB, so that a block stays in the core's caches."""
_MIN_ROW_BYTES = 1 << 15
"""The fewest bytes of one client in such a block: 32 KiB, so that a matrix product outweighs its overhead."""
_PAIRWISE_CLIENTS = 32
"""Up to this many clients, updates are subtracted from each other; for more, distances follow from inner products.
Subtraction loses no digits to cancellation, and takes at most about a third longer up to 32 clients."""
_MIN_RELATIVE_DISTANCE = 0.02
"""The smallest ratio of a squared distance to the two squared norms for which float32 products suffice: cancellation
then magnifies their rounding error (6e-8) at most 50 times."""
_SUM_WIDTH = 1 << 16
"""The number of columns whose squared differences are summed in the model's precision before float64 takes over."""
_UNDERFLOW_MARGIN = 1e6
"""How many times the smallest normal number per column a squared distance must exceed. The squares that underflow then
change it by less than one part in a million."""
_GPU_BLOCK_NUMBERS = 1 << 26
"""The size of the blocks that a GPU multiplies, in numbers: 512 MiB in float64."""
_NORM_PIECE = 1 << 8
"""The number of squares summed in the model's precision for a norm: few enough to keep the seven digits of float32."""


def update_distances(updates: Tensor | SentUpdates) -> Array:
    """(clients x clients): ||Δw_i - Δw_j||², which equals the squared distance of the clients' weights.

    >>> update_distances(torch.tensor([[1.0, 2.0], [4.0, 6.0]]))
    array([[ 0., 25.],
           [25.,  0.]])
    """
    pairwise = len(updates) <= _PAIRWISE_CLIENTS
    if updates.device.type != "cpu" or (updates.dtype == torch.float64 and not pairwise):
        return squared_distances(update_products(updates))
    # Squares below the smallest normal number underflow, which matters only between nearly equal clients.
    underflow = _UNDERFLOW_MARGIN * torch.finfo(updates.dtype).tiny * updates.shape[1]
    if pairwise:
        result = _summed_differences(updates, slice(None), updates.dtype)
        inexact = result <= underflow
    else:
        products = update_products(updates, dtype=updates.dtype)
        squared, result = np.diagonal(products), squared_distances(products)
        inexact = result <= np.maximum(_MIN_RELATIVE_DISTANCE * (squared[:, None] + squared), underflow)
    np.fill_diagonal(inexact, False)
    rows = np.flatnonzero(inexact.any(axis=0)).tolist()
    if rows and pairwise:
        result[np.ix_(rows, rows)] = _summed_differences(updates, rows, torch.float64)
    elif rows:
        result[np.ix_(rows, rows)] = squared_distances(update_products(updates, rows))
    return result


def _summed_differences(updates: Tensor | SentUpdates, rows: slice | list[int], dtype: torch.dtype) -> Array:
    """||Δw_i - Δw_j||² between some clients, squared and summed over `_SUM_WIDTH` columns in `dtype`."""
    clients = len(np.arange(len(updates))[rows])
    squared = np.empty((math.ceil(updates.shape[1] / _SUM_WIDTH), clients * (clients - 1) // 2))

    def of_pairs(block: int) -> None:
        columns = slice(block * _SUM_WIDTH, (block + 1) * _SUM_WIDTH)
        squared[block] = torch.pdist(updates[rows, columns].to(dtype)).double().square_().numpy()

    for_each(of_pairs, range(len(squared)))
    result = np.zeros((clients, clients))
    result[np.triu_indices(clients, 1)] = squared.sum(axis=0)
    return result + result.T


def update_products(
    updates: Tensor | SentUpdates, rows: slice | list[int] = slice(None), dtype: torch.dtype = torch.float64
) -> Array:
    """(clients x clients): the inner products of all or some updates, in `dtype` and accumulated in float64.

    >>> update_products(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
    array([[5., 6.],
           [6., 9.]])
    """
    clients, parameters = updates.shape
    if updates.device.type != "cpu":
        size = max(_GPU_BLOCK_NUMBERS // clients, 1)
        chunks = (updates[rows, start : start + size].double() for start in range(0, parameters, size))
        return np.asarray(sum((chunk @ chunk.T).cpu().numpy() for chunk in chunks))
    size = max(_BLOCK_BYTES // clients, _MIN_ROW_BYTES) // dtype.itemsize

    def products(start: int) -> Array:
        with temporary_block(updates, (rows, slice(start, start + size))) as block:
            numbers = block.to(dtype).numpy()
            # NumPy computes only half of the product of a matrix with its own transpose.
            return np.asarray(numbers @ numbers.T, dtype=np.float64)

    return np.asarray(sum(in_parallel(products, range(0, parameters, size))))


def update_norms(updates: Tensor) -> Array:
    """||Δw_i|| for each client, from the norms of short pieces.

    A single float32 sum over a million parameters would be wrong by tenths of a percent.

    >>> update_norms(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    array([5., 0.])
    """
    whole = updates.shape[1] - updates.shape[1] % _NORM_PIECE

    def norm(row: Tensor) -> float:
        pieces = torch.linalg.vector_norm(row[:whole].view(-1, _NORM_PIECE), dim=1)
        return float(torch.linalg.vector_norm(torch.cat([pieces, row[whole:]]).double()))

    return np.array(list(in_parallel(norm, list(updates))))


def squared_distances(products: Array) -> Array:
    """||Δw_i - Δw_j||² from the inner products of the updates.

    >>> squared_distances(np.array([[1.0, 2.0], [2.0, 4.0]]))
    array([[0., 1.],
           [1., 0.]])
    """
    squared = np.diagonal(products)
    distances: Array = np.maximum(squared[:, None] + squared[None, :] - 2 * products, 0)
    np.fill_diagonal(distances, 0)
    return distances


def krum_scores(distances: Array, malicious_clients: int) -> Array:
    """For each client the sum of its n - f - 2 (at least one) smallest squared distances to other clients.

    >>> krum_scores(squared_distances(np.outer([0, 1, 2, 9], [0, 1, 2, 9]).astype(float)), 0)
    array([  5.,   2.,   5., 113.])
    """
    clients = len(distances)
    nearest = min(max(clients - malicious_clients - 2, 1), clients - 1)
    if nearest == 0:
        return np.zeros(clients)
    others = np.where(np.eye(clients, dtype=bool), np.inf, distances)
    with np.errstate(over="ignore"):
        scores: Array = np.partition(others, nearest - 1, axis=1)[:, :nearest].sum(axis=1)
    return scores


def tolerated_clients(requested: int, clients: int, factor: int) -> tuple[int, str]:
    """The largest f up to `requested` for which clients >= factor * f + 3, and a note if f was lowered.

    >>> tolerated_clients(2, 10, 2)
    (2, '')
    >>> tolerated_clients(2, 5, 2)
    (1, 'A round of 5 clients tolerates at most 1 malicious: f was lowered from 2 to 1.')
    """
    allowed = max(0, min(requested, (clients - 3) // factor))
    if allowed == requested:
        return requested, ""
    round_of = f"A round of {clients} client{'s' * (clients > 1)}"
    return allowed, f"{round_of} tolerates at most {allowed} malicious: f was lowered from {requested} to {allowed}."
