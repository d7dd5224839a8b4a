"""Distances between clients and products of their updates, summed in float64: what Krum and its kin decide by."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ..core.numerics import Array
from ..core.threads import for_each, in_parallel
from ..core.updates import SentUpdates, borrowed

_CHUNK = 1 << 22
"""How many bytes a core multiplies at a time, so that they stay close to it."""
_SHORT = 1 << 15
"""No fewer bytes of a client than this at a time, so that there is something to multiply."""
_FEW = 32
"""Up to this many clients, it takes less time to subtract each from each than to multiply."""
_NEAR = 0.02
"""What share of two clients' squared lengths their squared distance has to be for products in float32 to suffice."""
_WIDTH = 1 << 16
"""Over how many columns differences are squared and summed in the precision of the model."""
_LOST = 1e6
"""How many of the smallest number a square has to be for what is lost below that number not to matter."""
_GPU_CHUNK = 1 << 26
_PIECE = 1 << 8
"""How many numbers are summed in the precision of the model."""


def update_distances(updates: Tensor | SentUpdates) -> Array:
    """(clients x clients): ||Δw_i - Δw_j||², the same as between the clients' weights.

    >>> update_distances(torch.tensor([[1.0, 2.0], [4.0, 6.0]]))
    array([[ 0., 25.],
           [25.,  0.]])
    """
    few = len(updates) <= _FEW
    if updates.device.type != "cpu" or (updates.dtype == torch.float64 and not few):
        return squared_distances(update_products(updates))
    # Squares of less than the smallest number are lost. Few clients are so close that those would matter.
    lost = _LOST * torch.finfo(updates.dtype).tiny * updates.shape[1]
    if few:
        result = _summed_differences(updates, slice(None), updates.dtype)
        _all_read(updates)
        near = result <= lost
    else:
        products = update_products(updates, dtype=updates.dtype)
        lengths, result = np.diagonal(products), squared_distances(products)
        near = result <= np.maximum(_NEAR * (lengths[:, None] + lengths), lost)
    np.fill_diagonal(near, False)
    rows = np.flatnonzero(near.any(axis=0)).tolist()
    if rows and few:
        result[np.ix_(rows, rows)] = _summed_differences(updates, rows, torch.float64)
    elif rows:
        result[np.ix_(rows, rows)] = squared_distances(update_products(updates, rows))
    return result


def _summed_differences(updates: Tensor | SentUpdates, rows: slice | list[int], dtype: torch.dtype) -> Array:
    """||Δw_i - Δw_j||² between some clients, squared and summed over `_WIDTH` columns in `dtype`."""
    clients = len(np.arange(len(updates))[rows])
    squared = np.empty((math.ceil(updates.shape[1] / _WIDTH), clients * (clients - 1) // 2))

    def of_pairs(block: int) -> None:
        columns = slice(block * _WIDTH, (block + 1) * _WIDTH)
        squared[block] = torch.pdist(updates[rows, columns].to(dtype)).double().square_()

    for_each(of_pairs, range(len(squared)))
    result = np.zeros((clients, clients))
    result[np.triu_indices(clients, 1)] = squared.sum(axis=0)
    return result + result.T


def _all_read(updates: Tensor | SentUpdates) -> None:
    if isinstance(updates, SentUpdates):
        updates.all_read()


def update_products(
    updates: Tensor | SentUpdates, rows: slice | list[int] = slice(None), dtype: torch.dtype = torch.float64
) -> Array:
    """(clients x clients): the inner products of the updates, or of some, in `dtype` and accumulated in float64.

    >>> update_products(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
    array([[5., 6.],
           [6., 9.]])
    """
    clients, parameters = updates.shape
    if updates.device.type != "cpu":
        size = max(_GPU_CHUNK // clients, 1)
        chunks = (updates[rows, start : start + size].double() for start in range(0, parameters, size))
        return np.asarray(sum((chunk @ chunk.T).cpu().numpy() for chunk in chunks))
    size = max(_CHUNK // clients, _SHORT) // dtype.itemsize

    def products(start: int) -> Array:
        with borrowed(updates, (rows, slice(start, start + size))) as block:
            numbers = block.to(dtype).numpy()
            # NumPy sees that a product with oneself is symmetric, and computes one half of it.
            return np.asarray(numbers @ numbers.T, dtype=np.float64)

    summed = np.asarray(sum(in_parallel(products, range(0, parameters, size))))
    _all_read(updates)
    return summed


def update_norms(updates: Tensor) -> Array:
    """||Δw_i|| for each client, from norms of short pieces: in one go, float32 would be off by tenths of a percent.

    >>> update_norms(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    array([5., 0.])
    """
    whole = updates.shape[1] - updates.shape[1] % _PIECE

    def norm(row: Tensor) -> float:
        pieces = torch.linalg.vector_norm(row[:whole].view(-1, _PIECE), dim=1)
        return float(torch.linalg.vector_norm(torch.cat([pieces, row[whole:]]).double()))

    return np.array(list(in_parallel(norm, list(updates))))


def squared_distances(products: Array) -> Array:
    """||Δw_i - Δw_j||² from the products of the updates.

    >>> squared_distances(np.array([[1.0, 2.0], [2.0, 4.0]]))
    array([[0., 1.],
           [1., 0.]])
    """
    squared = np.diagonal(products)
    distances: Array = np.maximum(squared[:, None] + squared[None, :] - 2 * products, 0)
    np.fill_diagonal(distances, 0)
    return distances


def krum_scores(distances: Array, malicious_clients: int) -> Array:
    """For each client the sum of the n - f - 2 smallest squared distances to others; at least one where there is one.

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


def tolerable(wanted: int, clients: int, each: int) -> tuple[int, str]:
    """The largest f up to `wanted` with clients >= each * f + 3, and a sentence for the round where that is less.

    >>> tolerable(2, 10, 2)
    (2, '')
    >>> tolerable(2, 5, 2)
    (1, 'Among 5 clients no more than 1 malicious can be tolerated: f was lowered from 2 to 1.')
    """
    allowed = max(0, min(wanted, (clients - 3) // each))
    if allowed == wanted:
        return wanted, ""
    among = f"{clients} client{'s' * (clients > 1)}"
    return (
        allowed,
        f"Among {among} no more than {allowed} malicious can be tolerated: f was lowered from {wanted} to {allowed}.",
    )
