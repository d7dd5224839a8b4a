"""The updates of a round as a (clients x parameters) matrix that is computed lazily, one block of columns at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .layout import ModelLayout, Weights, as_tensor, largest_usable
from .numerics import empty
from .threads import for_each, in_parallel, one_thread

_BLOCK_SIZE = 1 << 19
"""The number of values in a block of `each_block` on a CPU: 2 MiB in float32, so that a block stays in the core's
caches."""
_GPU_BLOCK_SIZE = 1 << 24
"""The number of values in a block of `each_block` on a GPU: 64 MiB in float32. Larger blocks need fewer kernel launches
and more memory."""
_SUM_COLUMNS = 1 << 17
"""The number of columns that `weighted_sum` adds up in one task. A sum needs so little work per value that threads with
smaller tasks mostly wait for each other."""
_CLIENTS_AT_ONCE = 10
"""The number of clients in a partial sum or mean. Smaller groups accumulate less rounding error in a mean, and larger
ones pass over the result less often."""
_MEAN_COLUMNS = 1 << 21
"""The number of columns that `mean` averages over all clients before the next ones: 8 MiB in float32, so that the
running mean stays in the CPU's largest cache."""

Index = tuple[slice | list[int], slice]
"""Rows and columns of the matrix."""
Result = TypeVar("Result")


class UpdateCheckError(Exception):
    """A quick check cannot rule out that an update is not finite or too large; check each client separately."""


class SentUpdates:
    """Each client's weights minus the global model's, as a lazy matrix (clients x parameters).

    `updates[:, columns]` computes some columns of all clients, and `updates.row(i)` the update of one client. Most
    rules need no more, and such blocks stay in the CPU's caches. `updates.matrix` computes the whole matrix once.

    Parameters
    ----------
    layout
        The layout of the model.
    global_vector
        The flat global model.
    sent
        The weights of each client.
    check
        Whether to check values when columns are read (default: False). A block then raises `UpdateCheckError` if its
        sum of squares is so large that the norm of an update could exceed `largest_usable`. Blocks that cover all
        columns and pass prove that every update is usable; the reader then calls `mark_checked`.

    Examples
    --------
    >>> layout = ModelLayout.of({"w": np.ones(3)})
    >>> updates = SentUpdates(layout, torch.ones(3), [{"w": np.array([1.0, 2.0, 3.0])}, {"w": np.zeros(3)}])
    >>> updates[:, 1:3]
    tensor([[ 1.,  2.],
            [-1., -1.]])
    """

    def __init__(
        self, layout: ModelLayout, global_vector: Tensor, sent: Sequence[Weights], check: bool = False
    ) -> None:
        self.shape = (len(sent), len(global_vector))
        self.dtype, self.device = global_vector.dtype, global_vector.device
        self._layout, self._global_vector, self._sent = layout, global_vector, list(sent)
        self.needs_check = check
        """Whether values are checked when columns are read."""
        # The largest sum of squares per column. The margin of 4 covers rounding errors of the sum.
        self._largest_square = largest_usable(self.dtype) ** 2 / 4 / self.shape[1]
        self._buffers: list[npt.NDArray[Any]] = []
        if self.device.type != "cpu":
            # Otherwise all threads of a rule would compute the matrix at the same time.
            _ = self.matrix

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def is_materialised(self) -> bool:
        """Whether `matrix` has been computed; blocks and rows are then views of it."""
        return "matrix" in self.__dict__

    def mark_checked(self) -> None:
        """Skip further checks, because every column of every client has been read."""
        self.needs_check = False

    def __getitem__(self, index: Index) -> Tensor:
        return self._read_block(index)

    @contextmanager
    def temporary_block(self, index: Index) -> Iterator[Tensor]:
        """`updates[index]` in a reusable buffer; allocating new memory can take longer than the computation."""
        if self.is_materialised:
            yield self.matrix[index]
            return
        try:
            buffer = self._buffers.pop()
        except IndexError:  # Other threads use all buffers.
            buffer = np.empty(0, self._global_vector.numpy().dtype)
        size = len(self._rows(index)) * len(range(self.shape[1])[index[1]])
        buffer = buffer if len(buffer) >= size else np.empty(size, buffer.dtype)
        yield self._read_block(index, buffer)
        self._buffers.append(buffer)

    def _rows(self, index: Index) -> Sequence[int]:
        return range(len(self))[index[0]] if isinstance(index[0], slice) else index[0]

    def _read_block(self, index: Index, buffer: npt.NDArray[Any] | None = None) -> Tensor:
        if self.is_materialised:
            return self.matrix[index]
        rows = self._rows(index)
        start, stop, _ = index[1].indices(self.shape[1])
        global_values = self._global_vector.numpy()
        shape = len(rows), max(stop - start, 0)
        block = np.empty(shape, global_values.dtype) if buffer is None else buffer[: math.prod(shape)].reshape(shape)
        with np.errstate(over="ignore", invalid="ignore"):
            for name, columns, inside in self._parameters_in(slice(start, stop)):
                arrays, subtrahend = self._arrays[name], global_values[columns]
                for client, row in zip(rows, block[:, columns.start - start : columns.stop - start], strict=True):
                    np.subtract(arrays[client][inside], subtrahend, row)
            if self.needs_check:
                values = block.reshape(-1)
                self._check_squares(float(values @ values), block.shape[1])
        return torch.from_numpy(block)

    @torch.no_grad()
    def mean(self, shares: npt.NDArray[np.float64]) -> Tensor:
        """The weighted mean of all updates, for `shares` that are not negative and sum to 1.

        It averages the clients' weights with the recurrence m <- m + t (w - m), and subtracts the global model from the
        mean. That takes half as long as a sum of updates, because no single update is stored. Clients are averaged in
        groups, whose means are then averaged, to limit the accumulated rounding error: the result is almost as exact
        as the precision of weights allows, and exact if all clients send the same weights.
        """
        # Clients with a share of 0 matter only for the check.
        clients = range(len(self)) if self.needs_check else np.flatnonzero(shares).tolist()
        sent, shares = [self._sent[client] for client in clients], shares[clients]
        result = empty(self.shape[1], dtype=self.dtype, device=self.device)
        groups = range(0, len(sent), _CLIENTS_AT_ONCE)
        buffer_size = min(_MEAN_COLUMNS, self.shape[1]) if len(groups) > 1 else 0
        buffer = empty(buffer_size, dtype=self.dtype, device=self.device)
        group_steps = _mean_steps(np.add.reduceat(shares, groups))
        for start in range(0, self.shape[1], _MEAN_COLUMNS):
            mean = result[start : start + _MEAN_COLUMNS]
            global_part = self._global_vector[start : start + _MEAN_COLUMNS]
            squares = float(torch.dot(global_part, global_part)) if self.needs_check else 0.0
            for first, step in zip(groups, group_steps, strict=True):
                group = slice(first, first + _CLIENTS_AT_ONCE)
                group_mean = mean if first == 0 else buffer[: len(mean)]
                squares += self._group_mean(sent[group], _mean_steps(shares[group]), start, out=group_mean)
                if first > 0:
                    mean.lerp_(group_mean, step)
            if self.needs_check:
                # (w - g)^2 is at most twice w^2 + g^2.
                self._check_squares(2 * squares, len(mean))
            mean.sub_(global_part)
        return result

    def _group_mean(self, sent: Sequence[Weights], steps: Sequence[float], start: int, out: Tensor) -> float:
        """Write the mean of some clients' weights from column `start` on to `out`.

        Returns the sum of squared weights if a check needs it, and else 0.
        """
        parameters = [
            (name, inside, out[columns.start - start : columns.stop - start])
            for name, columns, inside in self._parameters_in(slice(start, start + len(out)))
        ]
        squares = []
        for client, (weights, step) in enumerate(zip(sent, steps, strict=True)):
            for name, inside, mean in parameters:
                values = _flat(weights[name])
                if len(values) > len(mean):
                    values = values[inside]
                if values.dtype != self.dtype:
                    values = values.to(self.dtype)
                mean.copy_(values) if client == 0 else mean.lerp_(values, step)
                if self.needs_check:
                    squares.append(torch.dot(values, values))
        return float(torch.stack(squares).sum()) if squares else 0.0

    def _parameters_in(self, columns: slice) -> Iterator[tuple[str, slice, slice]]:
        """The parameters that overlap `columns`: name, overlapping columns, and their position in the parameter."""
        for entry in self._layout.parameters:
            first, last = max(columns.start, entry.columns.start), min(columns.stop, entry.columns.stop)
            if first < last:
                yield entry.name, slice(first, last), slice(first - entry.columns.start, last - entry.columns.start)

    def _check_squares(self, squares: float, columns: int) -> None:
        # The comparison is also False for NaN.
        if not squares <= self._largest_square * columns:
            raise UpdateCheckError

    def row(self, client: int) -> Tensor:
        """The update of one client."""
        if self.is_materialised:
            return self.matrix[client]
        result = empty(self.shape[1], dtype=self.dtype, device=self.device)
        with one_thread():
            self._layout.subtract(self._sent[client], self._global_vector, out=result)
        return result

    @cached_property
    def matrix(self) -> Tensor:
        """The updates of all clients."""
        result = empty(*self.shape, dtype=self.dtype, device=self.device)

        def subtract(client: int) -> None:
            self._layout.subtract(self._sent[client], self._global_vector, out=result[client])

        for_each(subtract, range(len(self)))
        return result

    @cached_property
    def _arrays(self) -> dict[str, list[npt.NDArray[Any]]]:
        """For each parameter one flat array from each client."""
        return {
            entry.name: [_flat(weights[entry.name]).detach().numpy() for weights in self._sent]
            for entry in self._layout.parameters
        }


def temporary_block(updates: Tensor | SentUpdates, index: Index) -> AbstractContextManager[Tensor]:
    """`updates[index]` in a reusable buffer, valid only inside the `with` block."""
    return nullcontext(updates[index]) if isinstance(updates, Tensor) else updates.temporary_block(index)


def _flat(value: object) -> Tensor:
    tensor = (value if isinstance(value, Tensor) else as_tensor(value)).reshape(-1)
    if tensor.dtype == torch.bfloat16:  # NumPy has no bfloat16.
        tensor = tensor.float()
    return tensor if tensor.is_cpu else tensor.cpu()


def _mean_steps(shares: npt.NDArray[np.float64]) -> list[float]:
    """For each element the step t of the recurrence m <- m + t (w - m) that yields the weighted mean."""
    cumulative = np.cumsum(shares)
    steps: list[float] = np.divide(shares, cumulative, out=np.zeros(len(shares)), where=cumulative > 0).tolist()
    return steps


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

    >>> each_block(torch.tensor([[1.0, 2.0], [3.0, 5.0]]), lambda block: block.sum(dim=0))
    tensor([4., 7.])
    """
    clients, parameters = updates.shape
    size = max((_BLOCK_SIZE if updates.device.type == "cpu" else _GPU_BLOCK_SIZE) // clients, 1)
    result = empty(parameters, dtype=updates.dtype, device=updates.device)

    def apply(start: int) -> None:
        columns = slice(start, start + size)
        result[columns] = function(updates[:, columns])

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
    groups = [(rows, weights[rows].numpy()) for rows in _client_groups(updates, weights)]

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


def _client_groups(updates: SentUpdates, weights: Tensor) -> list[Any]:
    """The clients of each partial sum; without those of weight 0, unless a check has to read them."""
    starts = range(0, len(updates), _CLIENTS_AT_ONCE)
    if updates.needs_check or not weights.any():
        return [slice(start, start + _CLIENTS_AT_ONCE) for start in starts]
    clients = np.flatnonzero(weights.numpy()).tolist()
    return [clients[start : start + _CLIENTS_AT_ONCE] for start in starts if start < len(clients)]


def weighted_mean(updates: Tensor | SentUpdates, shares: npt.NDArray[np.float64]) -> Tensor:
    """The weighted mean of the rows of `updates`, for `shares` that are not negative and sum to 1.

    >>> weighted_mean(torch.tensor([[1.0, 2.0], [3.0, 5.0]]), np.array([0.5, 0.5]))
    tensor([2.0000, 3.5000])
    """
    if isinstance(updates, SentUpdates) and not updates.is_materialised:
        return updates.mean(shares)
    return weighted_sum(updates, torch.from_numpy(shares).to(updates.device, updates.dtype))
