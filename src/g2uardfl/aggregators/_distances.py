"""Distances between clients, from the float64 products of their updates: what Krum and its kin decide by."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..aggregation import Round
from ..numerics import Array, in_parallel, inner_products

_PIECE = 1 << 8


def update_products(round_: Round) -> Array:
    """(clients x clients): the inner products of the updates, in float64."""
    everything = slice(0, round_.layout.num_parameters)
    products: Array = inner_products(round_.updates, round_.global_vector, [everything]).uu[0]
    return products


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
    """||Δw_i - Δw_j||² from the products of the updates; the same as between the clients' weights.

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
