"""The updates of a round as a (clients x parameters) matrix that is computed lazily, one block of columns at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .layout import ModelLayout, Weights, as_tensor
from .numerics import Array, empty
from .threads import for_each

CLIENTS_AT_ONCE = 10
"""The number of clients in a partial sum or mean. Smaller groups accumulate less rounding error in a mean, and larger
ones pass over the result less often."""
_ROW_COLUMNS = 1 << 17
"""The number of columns of one update that are measured at once on a CPU: 512 KiB in float32, so that they are read
from memory only once."""
_MEAN_COLUMNS = 1 << 18
"""The number of columns that `mean` averages over all clients in one task: 1 MiB in float32, so that the running mean
stays in the core's cache."""
_TASK_SIZE = 1 << 20
"""The minimum number of values for which another thread pays off: reading them takes about half a millisecond."""
_EXACT_PEAK = 1e-12
"""Below this largest absolute value, squares are summed in float64, because many of them would underflow in float32."""

Index = tuple[slice | list[int], slice]
"""Rows and columns of the matrix."""


class _Part(NamedTuple):
    """The part of a parameter in a range of columns."""

    number: int
    """The number of the parameter."""
    columns: slice
    """Its columns."""
    inside: slice
    """Their position in the parameter."""
    place: slice
    """Their position in the range."""


class SentUpdates:
    """Each client's weights minus the global model's, as a lazy matrix (clients x parameters).

    `updates[:, columns]` computes some columns of all clients, and `updates.row(i)` the update of one client. Most
    rules need no more, and such blocks stay in the CPU's caches. `updates.matrix` computes the whole matrix once; on a
    GPU the constructor does this, in one batch.

    Parameters
    ----------
    layout
        The layout of the model.
    global_vector
        The flat global model.
    sent
        The weights of each client.

    Examples
    --------
    >>> layout = ModelLayout.of({"w": np.ones(3)})
    >>> updates = SentUpdates(layout, torch.ones(3), [{"w": np.array([1.0, 2.0, 3.0])}, {"w": np.zeros(3)}])
    >>> updates[:, 1:3]
    tensor([[ 1.,  2.],
            [-1., -1.]])
    """

    def __init__(self, layout: ModelLayout, global_vector: Tensor, sent: Sequence[Weights]) -> None:
        self.shape = (len(sent), len(global_vector))
        self.dtype, self.device = global_vector.dtype, global_vector.device
        self._global_vector, self._sent = global_vector, list(sent)
        self._entries = sorted(layout.parameters, key=lambda entry: entry.columns.start)
        self._starts = [entry.columns.start for entry in self._entries]
        self._buffers: list[Tensor] = []
        if self.device.type != "cpu":
            self.matrix = self._stacked()

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def is_materialised(self) -> bool:
        """Whether `matrix` has been computed; blocks and rows are then views of it."""
        return "matrix" in self.__dict__

    @cached_property
    def matrix(self) -> Tensor:
        """The updates of all clients."""
        result = self._empty(*self.shape)
        parts = self._parts_in(slice(0, self.shape[1]))
        for_each(lambda client: self._subtract(client, parts, result[client]), range(len(self)))
        return result

    @torch.no_grad()
    def _stacked(self) -> Tensor:
        """The matrix from one concatenation of all arrays of all clients, since a GPU is fast with few calls."""
        arrays = [array if array.dtype == self.dtype else array.to(self.dtype) for row in self._arrays for array in row]
        del self._arrays  # refers to the memory of the clients, which may be freed
        return torch.cat(arrays).view(self.shape).sub_(self._global_vector) if arrays else self._empty(*self.shape)

    def row(self, client: int) -> Tensor:
        """The update of one client."""
        if self.is_materialised:
            return self.matrix[client]
        result = self._empty(self.shape[1])
        self._subtract(client, self._parts_in(slice(0, self.shape[1])), result)
        return result

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
            buffer = self._empty(0)
        size = len(self._rows(index)) * len(range(self.shape[1])[index[1]])
        buffer = buffer if len(buffer) >= size else self._empty(size)
        yield self._read_block(index, buffer)
        self._buffers.append(buffer)

    def _rows(self, index: Index) -> Sequence[int]:
        return range(len(self))[index[0]] if isinstance(index[0], slice) else index[0]

    def _read_block(self, index: Index, buffer: Tensor | None = None) -> Tensor:
        if self.is_materialised:
            return self.matrix[index]
        rows = self._rows(index)
        start, stop, _ = index[1].indices(self.shape[1])
        shape = len(rows), max(stop - start, 0)
        block = self._empty(*shape) if buffer is None else buffer[: shape[0] * shape[1]].view(shape)
        parts = self._parts_in(slice(start, stop))
        for client, row in zip(rows, block, strict=True):
            self._subtract(client, parts, row)
        return block

    def norm_bounds(self) -> Array:
        """For each update an upper limit of its norm, up to rounding; NaN or infinity if it is not finite.

        On a CPU that is ||w|| + ||g||, from one read without a subtraction; on a GPU it is the norm itself.
        """
        if self.is_materialised:
            norms: Array = torch.linalg.vector_norm(self.matrix, dim=1).double().cpu().numpy()
            return norms
        squares = np.zeros((len(self), len(self._entries)))

        def square(task: tuple[int, int]) -> None:
            client, number = task
            values = self._arrays[client][number]
            values = values if values.dtype in (torch.float32, torch.float64) else values.float()
            squares[client, number] = torch.dot(values, values)

        tasks = [(client, number) for number in range(len(self._entries)) for client in range(len(self))]
        for_each(square, tasks, batch=_batch(self.shape[1] // len(self._entries)))
        bounds: Array = np.sqrt(squares.sum(axis=1)) + float(torch.linalg.vector_norm(self._global_vector))
        return bounds

    @cached_property
    def norms_and_peaks(self) -> Array:
        """(clients x 2): the norm and the largest absolute value of each update, from one pass over the values."""
        return self._exact(self._measured() if self.device.type == "cpu" else self._measured_in_a_batch())

    def note_measured(self, squares: Array, peaks: Array) -> None:
        """Store squared norms and peaks from another pass over all values, so that `norms_and_peaks` needs none."""
        self.__dict__["norms_and_peaks"] = self._exact(np.column_stack([np.sqrt(squares), peaks]))

    def _exact(self, found: Array) -> Array:
        for client in np.flatnonzero((found[:, 1] > 0) & (found[:, 1] < _EXACT_PEAK)).tolist():
            found[client, 0] = float(torch.linalg.vector_norm(self.row(client), dtype=torch.float64))
        return found

    def _measured(self) -> Array:
        clients, parameters = self.shape
        starts = range(0, parameters, _ROW_COLUMNS)
        parts = np.zeros((clients, len(starts), 2))

        def measure(task: tuple[int, int]) -> None:
            client, number = task
            columns = slice(starts[number], starts[number] + _ROW_COLUMNS)
            with self.temporary_block((slice(client, client + 1), columns)) as block:
                values = block.view(-1)
                lowest, highest = torch.aminmax(values)
                parts[client, number] = float(torch.dot(values, values)), max(-float(lowest), float(highest))

        tasks = [(client, number) for number in range(len(starts)) for client in range(clients)]
        for_each(measure, tasks, batch=_batch(min(parameters, _ROW_COLUMNS)))
        return np.column_stack([np.sqrt(parts[:, :, 0].sum(axis=1)), parts[:, :, 1].max(axis=1)])

    def _measured_in_a_batch(self) -> Array:
        if not len(self):
            return np.zeros((0, 2))
        lowest, highest = self.matrix.aminmax(dim=1)
        norms, peaks = torch.linalg.vector_norm(self.matrix, dim=1), torch.maximum(-lowest, highest)
        found: Array = torch.stack([norms, peaks], dim=1).double().cpu().numpy()
        return found

    def mean(self, shares: Array) -> Tensor:
        """The weighted mean of all updates, for `shares` that are not negative and sum to 1.

        It averages the clients' weights with the recurrence m <- m + t (w - m), and subtracts the global model from the
        mean. That takes half as long as a sum of updates, because no single update is stored. Clients are averaged in
        groups, whose means are then averaged, to limit the accumulated rounding error: the result is almost as exact
        as the precision of weights allows, and exact if all clients send the same weights.
        """
        clients = np.flatnonzero(shares)
        if not len(clients):
            return torch.zeros_like(self._global_vector)
        groups = [clients[first : first + CLIENTS_AT_ONCE] for first in range(0, len(clients), CLIENTS_AT_ONCE)]
        group_steps = _mean_steps(np.array([shares[group].sum() for group in groups]))
        members = [(group.tolist(), _mean_steps(shares[group])) for group in groups]
        result = self._empty(self.shape[1])

        def average(start: int) -> None:
            columns = slice(start, min(start + _MEAN_COLUMNS, self.shape[1]))
            parts, mean = self._parts_in(columns), result[columns]
            self._average(*members[0], parts, mean)
            group_mean = torch.empty_like(mean) if len(members) > 1 else mean
            for group, step in zip(members[1:], group_steps[1:], strict=True):
                self._average(*group, parts, group_mean)
                mean.lerp_(group_mean, step)
            mean.sub_(self._global_vector[columns])

        batch = _batch(len(clients) * min(self.shape[1], _MEAN_COLUMNS))
        for_each(average, range(0, self.shape[1], _MEAN_COLUMNS), batch)
        return result

    def _average(self, clients: Sequence[int], steps: Sequence[float], parts: Sequence[_Part], out: Tensor) -> None:
        """Write the mean of some clients' weights to `out`."""
        places = [out[part.place] for part in parts]
        for client, step in zip(clients, steps, strict=True):
            arrays = self._arrays[client]
            for part, mean in zip(parts, places, strict=True):
                values = arrays[part.number][part.inside]
                if step == 1.0:
                    mean.copy_(values)
                else:
                    mean.lerp_(values if values.dtype == self.dtype else values.to(self.dtype), step)

    def _subtract(self, client: int, parts: Sequence[_Part], out: Tensor) -> None:
        """Write the update of one client in the columns of `parts` to `out`."""
        arrays = self._arrays[client]
        for part in parts:
            torch.sub(arrays[part.number][part.inside], self._global_vector[part.columns], out=out[part.place])

    def _parts_in(self, columns: slice) -> list[_Part]:
        """The parts of parameters that make up `columns`."""
        found = []
        for number in range(max(bisect_right(self._starts, columns.start) - 1, 0), len(self._starts)):
            entry = self._entries[number].columns
            first, last = max(columns.start, entry.start), min(columns.stop, entry.stop)
            if first >= last:
                break
            found.append(_Part(number, *(slice(first - at, last - at) for at in (0, entry.start, columns.start))))
        return found

    @cached_property
    def _arrays(self) -> list[list[Tensor]]:
        """For each client one flat array for each parameter."""
        return [[_flat(weights[entry.name], self.device) for entry in self._entries] for weights in self._sent]

    def _empty(self, *shape: int) -> Tensor:
        return empty(*shape, dtype=self.dtype, device=self.device)


def _flat(value: object, device: torch.device) -> Tensor:
    tensor = value if isinstance(value, Tensor) and not value.requires_grad else as_tensor(value)
    return tensor.reshape(-1) if tensor.device == device else tensor.to(device).reshape(-1)


def _batch(size: int) -> int:
    """How many tasks of `size` values a thread takes at once."""
    return max(_TASK_SIZE // max(size, 1), 1)


def _mean_steps(shares: Array) -> list[float]:
    """For each element the step t of the recurrence m <- m + t (w - m) that yields the weighted mean."""
    cumulative = np.cumsum(shares)
    steps: list[float] = np.divide(shares, cumulative, out=np.zeros(len(shares)), where=cumulative > 0).tolist()
    return steps
