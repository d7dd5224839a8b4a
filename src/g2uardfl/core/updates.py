"""A round's updates as a (clients x parameters) matrix that need not be made: rules read blocks of its columns."""

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

_BLOCK = 1 << 19
"""How many numbers of the matrix a core handles at a time, so that they stay close to it."""
_WIDE = 1 << 17
_ROWS = 10
"""How many columns of how many clients are summed at a time, and how many clients are averaged. There is so little work
for each number that threads which come back sooner mostly wait for each other."""
_LONG = 1 << 21
"""How many numbers of each client in turn are added to the mean, which has to stay in the largest cache meanwhile."""
_GPU_BLOCK = 1 << 24

Result = TypeVar("Result")


class DoubtfulUpdateError(Exception):
    """Some update may hold NaN or infinity or be too long to be used: every client has to be checked on its own."""


class SentUpdates:
    """(clients x parameters): each client's weights minus the global model's, from what the clients sent.

    `updates[:, columns]` reads these columns of all clients, `updates.row(i)` all columns of one. Most rules need no
    more, and what they read stays in the cache. `updates.matrix` is the whole, made when it is first asked for.

    With `check`, reading columns raises `DoubtfulUpdateError` unless their squares sum to so little that, once all
    columns have been read, no update can be longer than is usable. Whoever has read them all says so with `all_read`.

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
        self.checks = check
        """Whether columns are still checked as they are read."""
        # What the squares may sum to for each column; a quarter of what is usable, since the sum is a rough one.
        self._largest_square = largest_usable(self.dtype) ** 2 / 4 / self.shape[1]
        self._spare: list[npt.NDArray[Any]] = []
        if self.device.type != "cpu":
            # There the rules' threads would all ask for it at once.
            _ = self.matrix

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def is_made(self) -> bool:
        """Whether `matrix` has been made; blocks and rows are then parts of it."""
        return "matrix" in self.__dict__

    def all_read(self) -> None:
        """Every column of every client has been read, and checked if there was a check: none is needed any more."""
        self.checks = False

    def __getitem__(self, index: tuple[slice | list[int], slice]) -> Tensor:
        return self._read_block(index)

    @contextmanager
    def borrowed(self, index: tuple[slice | list[int], slice]) -> Iterator[Tensor]:
        """`updates[index]` in memory that the next one gets again: fresh memory may take longer than its use."""
        if self.is_made:
            yield self.matrix[index]
            return
        try:
            memory = self._spare.pop()
        except IndexError:  # Every thread has its own, and another may have been faster.
            memory = np.empty(0, self._global_vector.numpy().dtype)
        rows = len(range(len(self))[index[0]]) if isinstance(index[0], slice) else len(index[0])
        size = rows * len(range(self.shape[1])[index[1]])
        memory = memory if len(memory) >= size else np.empty(size, memory.dtype)
        yield self._read_block(index, memory)
        self._spare.append(memory)

    def _read_block(self, index: tuple[slice | list[int], slice], memory: npt.NDArray[Any] | None = None) -> Tensor:
        if self.is_made:
            return self.matrix[index]
        rows = range(len(self))[index[0]] if isinstance(index[0], slice) else index[0]
        start, stop, _ = index[1].indices(self.shape[1])
        subtracted = self._global_vector.numpy()
        shape = len(rows), max(stop - start, 0)
        block = np.empty(shape, subtracted.dtype) if memory is None else memory[: math.prod(shape)].reshape(shape)
        with np.errstate(over="ignore", invalid="ignore"):
            for name, own, inside in self._parts(slice(start, stop)):
                arrays, before = self._arrays[name], subtracted[own]
                for client, row in zip(rows, block[:, own.start - start : own.stop - start], strict=True):
                    np.subtract(arrays[client][inside], before, row)
            if self.checks:
                numbers = block.reshape(-1)
                self._doubt(float(numbers @ numbers), block.shape[1])
        return torch.from_numpy(block)

    @torch.no_grad()
    def mean(self, shares: npt.NDArray[np.float64]) -> Tensor:
        """The mean update of all clients, weighted by `shares`, which are not negative and sum to 1.

        It is the mean of what they sent, m <- m + t (w - m) for one after the other, less the global model: with no
        difference to store it takes half the time of a sum of updates. Ten at a time, so that roundings do not add
        up: it is nearly as exact as weights can be stored, and where everybody sends the same it is that.
        """
        # Once everything has been checked, clients without a share need not be read.
        read = range(len(self)) if self.checks else np.flatnonzero(shares).tolist()
        messages, shares = [self._sent[client] for client in read], shares[read]
        result = empty(self.shape[1], like=self)
        tens = range(0, len(messages), _ROWS)
        spare = empty(min(_LONG, self.shape[1]), like=self) if len(tens) > 1 else result
        tens_steps = _steps(np.add.reduceat(shares, tens))
        for start in range(0, self.shape[1], _LONG):
            mean, before = result[start : start + _LONG], self._global_vector[start : start + _LONG]
            squares = float(torch.dot(before, before)) if self.checks else 0.0
            for first, step in zip(tens, tens_steps, strict=True):
                clients = slice(first, first + _ROWS)
                into = mean if first == 0 else spare[: len(mean)]
                squares += self._mean_of_few(messages[clients], _steps(shares[clients]), start, into)
                if first > 0:
                    mean.lerp_(into, step)
            if self.checks:
                # (w - g)^2 is at most twice w^2 + g^2.
                self._doubt(2 * squares, len(mean))
            mean.sub_(before)
        return result

    def _mean_of_few(self, sent: Sequence[Weights], steps: Sequence[float], start: int, mean: Tensor) -> float:
        """Write the mean of the columns from `start` into `mean`; answers with the sum of squares if that is wanted."""
        parts = [
            (name, inside, mean[own.start - start : own.stop - start])
            for name, own, inside in self._parts(slice(start, start + len(mean)))
        ]
        squares = []
        for client, (weights, step) in enumerate(zip(sent, steps, strict=True)):
            for name, inside, part in parts:
                numbers = _flat(weights[name])
                if len(numbers) > len(part):
                    numbers = numbers[inside]
                if numbers.dtype != self.dtype:
                    numbers = numbers.to(self.dtype)
                part.copy_(numbers) if client == 0 else part.lerp_(numbers, step)
                if self.checks:
                    squares.append(torch.dot(numbers, numbers))
        return float(torch.stack(squares).sum()) if squares else 0.0

    def _parts(self, columns: slice) -> Iterator[tuple[str, slice, slice]]:
        """The parameters that have some of `columns`: the name, these columns, and where they are in the parameter."""
        for entry in self._layout.parameters:
            first, last = max(columns.start, entry.columns.start), min(columns.stop, entry.columns.stop)
            if first < last:
                yield entry.name, slice(first, last), slice(first - entry.columns.start, last - entry.columns.start)

    def _doubt(self, squares: float, columns: int) -> None:
        if not squares <= self._largest_square * columns:
            raise DoubtfulUpdateError

    def row(self, client: int) -> Tensor:
        """The update of one client."""
        if self.is_made:
            return self.matrix[client]
        with one_thread():
            return self._read(client, empty(self.shape[1], like=self._global_vector))

    @cached_property
    def matrix(self) -> Tensor:
        """All columns of all clients."""
        whole = empty(*self.shape, like=self._global_vector)
        for_each(lambda client: self._read(client, whole[client]), range(len(self)))
        return whole

    def _read(self, client: int, out: Tensor) -> Tensor:
        self._layout.subtract(self._sent[client], self._global_vector, out=out)
        return out

    @cached_property
    def _arrays(self) -> dict[str, list[npt.NDArray[Any]]]:
        """For each parameter one flat array from each client."""
        return {
            entry.name: [_flat(weights[entry.name]).detach().numpy() for weights in self._sent]
            for entry in self._layout.parameters
        }


def borrowed(updates: Tensor | SentUpdates, index: tuple[slice | list[int], slice]) -> AbstractContextManager[Tensor]:
    """`updates[index]` for a while: whoever reads further has to have done with it."""
    return nullcontext(updates[index]) if isinstance(updates, Tensor) else updates.borrowed(index)


def _flat(value: object) -> Tensor:
    tensor = (value if isinstance(value, Tensor) else as_tensor(value)).reshape(-1)
    if tensor.dtype == torch.bfloat16:  # NumPy does not know it.
        tensor = tensor.float()
    return tensor if tensor.is_cpu else tensor.cpu()


def _steps(shares: npt.NDArray[np.float64]) -> list[float]:
    """How far the mean so far has to go towards each one in turn."""
    so_far = np.cumsum(shares)
    steps: list[float] = np.divide(shares, so_far, out=np.zeros(len(so_far)), where=so_far > 0).tolist()
    return steps


def each_row(updates: Tensor | SentUpdates, function: Callable[[Tensor], Result]) -> list[Result]:
    """`function` of each client's update.

    >>> each_row(torch.tensor([[1.0, 2.0], [3.0, 5.0]]), lambda row: float(row.sum()))
    [3.0, 8.0]
    """

    def work(client: int) -> Result:
        return function(updates[client] if isinstance(updates, Tensor) else updates.row(client))

    return list(in_parallel(work, range(len(updates))))


def each_block(updates: Tensor | SentUpdates, function: Callable[[Tensor], Tensor]) -> Tensor:
    """One number for each column of `updates`: `function` turns (clients x columns) into (columns,).

    >>> each_block(torch.tensor([[1.0, 2.0], [3.0, 5.0]]), lambda block: block.sum(dim=0))
    tensor([4., 7.])
    """
    clients, parameters = updates.shape
    size = max((_BLOCK if updates.device.type == "cpu" else _GPU_BLOCK) // clients, 1)
    result = empty(parameters, like=updates)

    def work(start: int) -> None:
        columns = slice(start, start + size)
        result[columns] = function(updates[:, columns])

    for_each(work, range(0, parameters, size))
    return result


def weighted_sum(updates: Tensor | SentUpdates, weights: Tensor) -> Tensor:
    """The sum of the rows of `updates`, each times its weight.

    >>> weighted_sum(torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([2.0, -1.0]))
    tensor([-1., -1.])
    """
    if isinstance(updates, SentUpdates) and not updates.is_made:
        return _sum_on_the_way(updates, weights)
    matrix = updates if isinstance(updates, Tensor) else updates.matrix
    if updates.device.type != "cpu":
        return weights @ matrix
    result = empty(updates.shape[1], like=updates)
    np.matmul(weights.numpy(), matrix.numpy(), out=result.numpy())
    return result


def _sum_on_the_way(updates: SentUpdates, weights: Tensor) -> Tensor:
    """The weighted sum of updates that are read for it alone."""
    result = empty(updates.shape[1], like=updates)
    groups = [(rows, weights[rows].numpy()) for rows in _groups(updates, weights)]

    def work(start: int) -> None:
        columns = slice(start, start + _WIDE)
        total = result[columns].numpy()
        for number, (rows, factors) in enumerate(groups):
            with updates.borrowed((rows, columns)) as block:
                if number == 0:
                    np.matmul(factors, block.numpy(), out=total)
                else:
                    total += factors @ block.numpy()

    for_each(work, range(0, len(result), _WIDE))
    return result


def _groups(updates: SentUpdates, weights: Tensor) -> list[Any]:
    """Which clients to sum at a time; those without weight are left out where they would be read for nothing."""
    starts = range(0, len(updates), _ROWS)
    if updates.checks or not weights.any():
        return [slice(start, start + _ROWS) for start in starts]
    weighed = np.flatnonzero(weights.numpy()).tolist()
    return [weighed[start : start + _ROWS] for start in starts if start < len(weighed)]


def weighted_mean(updates: Tensor | SentUpdates, shares: npt.NDArray[np.float64]) -> Tensor:
    """The sum of the rows of `updates`, each times its share, where shares are not negative and sum to 1.

    >>> weighted_mean(torch.tensor([[1.0, 2.0], [3.0, 5.0]]), np.array([0.5, 0.5]))
    tensor([2.0000, 3.5000])
    """
    if isinstance(updates, SentUpdates) and not updates.is_made:
        return updates.mean(shares)
    return weighted_sum(updates, torch.from_numpy(shares).to(updates.device, updates.dtype))
