"""Functions that rules compute from all updates of a round, in one pass over blocks or rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from .numerics import Array, empty
from .sent import CLIENTS_AT_ONCE, Index
from .sent import SentUpdates as SentUpdates
from .threads import for_each, in_parallel

_BLOCK_SIZE = 1 << 19
"""The number of values in a block of `each_block` on a CPU: 2 MiB in float32, so that a block stays in the core's
caches."""
_MIN_COLUMNS = 1 << 13
"""The minimum number of columns of such a block: with fewer, reading a block client by client takes longer than its
work."""
_GPU_BLOCK_SIZE = 1 << 26
"""The number of values in a block of `each_block` on a GPU: 256 MiB in float32. Larger blocks need fewer kernel
launches and more memory."""
_SUM_COLUMNS = 1 << 17
"""The number of columns that `weighted_sum` adds up in one task. A sum needs so little work per value that threads with
smaller tasks mostly wait for each other."""

Result = TypeVar("Result")


def temporary_block(updates: Tensor | SentUpdates, index: Index) -> AbstractContextManager[Tensor]:
    """`updates[index]` in a reusable buffer, valid only inside the `with` block."""
    return nullcontext(updates[index]) if isinstance(updates, Tensor) else updates.temporary_block(index)


def norms_and_peaks(updates: Tensor | SentUpdates) -> Array:
    """(clients x 2): the norm and the largest absolute value of each update; NaN or infinity if it is not finite.

    >>> norms_and_peaks(torch.tensor([[3.0, -4.0], [0.0, 0.0]]))
    array([[5., 4.],
           [0., 0.]])
    """
    if isinstance(updates, SentUpdates):
        return updates.norms_and_peaks
    found = torch.stack([torch.linalg.vector_norm(updates.double(), dim=1), updates.abs().amax(dim=1).double()], dim=1)
    result: Array = found.cpu().numpy()
    return result


def each_row(updates: Tensor | SentUpdates, function: Callable[[Tensor], Result]) -> list[Result]:
    """`function` of each client's update.

    >>> each_row(torch.tensor([[1.0, 2.0], [3.0, 5.0]]), lambda row: float(row.sum()))
    [3.0, 8.0]
    """

    def apply(client: int) -> Result:
        return function(updates[client] if isinstance(updates, Tensor) else updates.row(client))

    return list(in_parallel(apply, range(len(updates))))


def each_block(updates: Tensor | SentUpdates, function: Callable[[Tensor], Tensor]) -> Tensor:
    """One value for each column of `updates`, where `function` maps (clients x columns) to (columns,).

    A block is valid only inside `function`.

    >>> each_block(torch.tensor([[1.0, 2.0], [3.0, 5.0]]), lambda block: block.sum(dim=0))
    tensor([4., 7.])
    """
    clients, parameters = updates.shape
    size = max((_BLOCK_SIZE if updates.device.type == "cpu" else _GPU_BLOCK_SIZE) // clients, _MIN_COLUMNS)
    result = empty(parameters, dtype=updates.dtype, device=updates.device)

    def apply(start: int) -> None:
        columns = slice(start, start + size)
        with temporary_block(updates, (slice(None), columns)) as block:
            result[columns] = function(block)

    for_each(apply, range(0, parameters, size))
    return result


def weighted_sum(updates: Tensor | SentUpdates, weights: Tensor) -> Tensor:
    """The weighted sum of the rows of `updates`.

    >>> weighted_sum(torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([2.0, -1.0]))
    tensor([-1., -1.])
    """
    if isinstance(updates, SentUpdates) and not updates.is_materialised:
        return _lazy_weighted_sum(updates, weights)
    matrix = updates if isinstance(updates, Tensor) else updates.matrix
    if updates.device.type != "cpu":
        return weights @ matrix
    result = empty(updates.shape[1], dtype=updates.dtype, device=updates.device)
    np.matmul(weights.numpy(), matrix.numpy(), out=result.numpy())
    return result


def _lazy_weighted_sum(updates: SentUpdates, weights: Tensor) -> Tensor:
    """The weighted sum, block by block, without computing `updates.matrix`."""
    result = empty(updates.shape[1], dtype=updates.dtype, device=updates.device)
    groups = [(rows, weights[rows].numpy()) for rows in _client_groups(weights)]

    def add_up(start: int) -> None:
        columns = slice(start, start + _SUM_COLUMNS)
        total = result[columns].numpy()
        for number, (rows, factors) in enumerate(groups):
            with updates.temporary_block((rows, columns)) as block:
                if number == 0:
                    np.matmul(factors, block.numpy(), out=total)
                else:
                    total += factors @ block.numpy()

    for_each(add_up, range(0, len(result), _SUM_COLUMNS))
    return result


def _client_groups(weights: Tensor) -> list[list[int]]:
    """The clients of each partial sum, without those of weight 0."""
    clients = np.flatnonzero(weights.numpy()).tolist() or [0]
    return [clients[start : start + CLIENTS_AT_ONCE] for start in range(0, len(clients), CLIENTS_AT_ONCE)]


def weighted_mean(updates: Tensor | SentUpdates, shares: Array) -> Tensor:
    """The weighted mean of the rows of `updates`, for `shares` that are not negative and sum to 1.

    >>> weighted_mean(torch.tensor([[1.0, 2.0], [3.0, 5.0]]), np.array([0.5, 0.5]))
    tensor([2.0000, 3.5000])
    """
    if isinstance(updates, SentUpdates) and not updates.is_materialised:
        return updates.mean(shares)
    return weighted_sum(updates, torch.from_numpy(shares).to(updates.device, updates.dtype))
