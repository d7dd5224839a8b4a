"""Exact statistics of large matrices, row by row: quantiles without sorting, inner products without cancellation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .threads import in_parallel

Array = npt.NDArray[np.float64]

_SMALL = 1 << 14
"""Rows up to this length are partitioned outright."""
_SAMPLE = 1 << 13
_CHUNK = 1 << 16
"""How many columns a core multiplies at a time, so that they stay in its cache."""
_GPU_CHUNK = 1 << 22


def row_quantiles(matrix: Tensor, quantiles: Sequence[float]) -> Array:
    """The `quantiles` of each row, interpolated linearly between neighbours as `numpy.quantile` does.

    Long rows are not sorted. An evenly spaced sample gives a first guess for each quantile; counting what lies
    below the guess corrects it to within a few sample steps; only what lies inside those is collected and
    partitioned. A bracket that missed shows in the counts, and the row is then partitioned whole, so that the result
    is exact for any data.

    >>> row_quantiles(torch.tensor([[3.0, 1.0, 2.0, 10.0]]), [0.5])
    array([[2.5]])
    """
    if matrix.device.type != "cpu":
        return _sorted_quantiles(torch.sort(matrix, dim=1).values, quantiles)
    rows = matrix.numpy()
    if rows.shape[1] <= _SMALL:
        ranks, _ = _ranks(rows.shape[1], quantiles)
        partitioned = np.partition(rows, np.unique(ranks), axis=1)
        return _interpolate(partitioned[:, ranks], rows.shape[1], quantiles)
    return np.stack([_long_row_quantiles(row, quantiles) for row in rows])


def _long_row_quantiles(row: npt.NDArray[np.floating], quantiles: Sequence[float]) -> Array:
    sample = np.sort(row[:: len(row) // _SAMPLE])
    ranks, _ = _ranks(len(row), quantiles)
    values = np.empty((len(quantiles), 2), row.dtype)
    for k, quantile in enumerate(quantiles):
        pair = ranks[2 * k : 2 * k + 2]
        guess = round(quantile * (len(sample) - 1))
        shift = (pair[0] - np.count_nonzero(row < sample[guess])) * len(sample) / len(row)
        margin = 4.0 * np.sqrt(abs(shift)) + 4
        first, last = int(guess + shift - margin), int(guess + shift + margin) + 1
        low = sample[min(first, len(sample) - 1)] if first >= 0 else -np.inf
        high = sample[max(last, 0)] if last < len(sample) else np.inf
        inside = row >= low
        below = len(row) - np.count_nonzero(inside)
        inside &= row <= high
        wanted = [rank - below for rank in pair]
        if wanted[0] < 0 or wanted[1] >= np.count_nonzero(inside):
            values[k] = np.partition(row, pair)[pair]
        elif low == high:
            # A value that fills the bracket, such as the zeros of parameters nobody touched.
            values[k] = low
        else:
            candidates = row[inside]
            candidates.partition(wanted)
            values[k] = candidates[wanted]
    result: Array = _interpolate(values.reshape(1, -1), len(row), quantiles)[0]
    return result


def _ranks(length: int, quantiles: Sequence[float]) -> tuple[list[int], Array]:
    """For each quantile the ranks of its two neighbours, and how far it lies from the first towards the second."""
    positions = np.asarray(quantiles, dtype=np.float64) * (length - 1)
    lower = np.floor(positions).astype(int)
    upper = np.minimum(lower + 1, length - 1)
    return [int(rank) for pair in zip(lower, upper, strict=True) for rank in pair], positions - lower


def _interpolate(neighbours: npt.NDArray[np.floating], length: int, quantiles: Sequence[float]) -> Array:
    _, fractions = _ranks(length, quantiles)
    pairs = neighbours.astype(np.float64).reshape(len(neighbours), -1, 2)
    result: Array = pairs[..., 0] * (1 - fractions) + pairs[..., 1] * fractions
    return result


def _sorted_quantiles(ordered: Tensor, quantiles: Sequence[float]) -> Array:
    ranks, _ = _ranks(ordered.shape[1], quantiles)
    return _interpolate(ordered[:, ranks].cpu().numpy(), ordered.shape[1], quantiles)


@dataclass(frozen=True)
class InnerProducts:
    """Inner products between a global vector and client updates, for each layer, accumulated in float64.

    Everything about angles and lengths follows from these without ever subtracting two large numbers: the product
    of two clients' weights is `gg + gu_i + gu_j + uu_ij`, where the updates stay small beside the model.
    """

    gg: Array
    """(layers,): the global model with itself."""
    gu: Array
    """(layers, clients): the global model with each update."""
    uu: Array
    """(layers, clients, clients): the updates with each other."""

    @cached_property
    def total(self) -> InnerProducts:
        """The products over the whole model, as a single layer."""
        return InnerProducts(
            self.gg.sum(0, keepdims=True), self.gu.sum(0, keepdims=True), self.uu.sum(0, keepdims=True)
        )

    @property
    def ww(self) -> Array:
        """(layers, clients, clients): the clients' weights with each other."""
        return self.gg[:, None, None] + self.gu[:, :, None] + self.gu[:, None, :] + self.uu

    @property
    def gw(self) -> Array:
        """(layers, clients): the global model with each client's weights."""
        return self.gg[:, None] + self.gu


def inner_products(updates: Tensor, global_vector: Tensor, columns: Sequence[slice]) -> InnerProducts:
    """The `InnerProducts` of a round, layer by layer (`columns`), in one pass over the updates."""
    clients = len(updates)
    gg, gu = np.zeros(len(columns)), np.zeros((len(columns), clients))
    uu = np.zeros((len(columns), clients, clients))
    size = _CHUNK if updates.device.type == "cpu" else _GPU_CHUNK
    chunks = [
        (index, slice(start, min(start + size, layer.stop)))
        for index, layer in enumerate(columns)
        for start in range(layer.start, layer.stop, size)
    ]

    def products(item: tuple[int, slice]) -> tuple[Tensor, Tensor, Tensor]:
        g, u = global_vector[item[1]].double(), updates[:, item[1]].double()
        return g @ g, u @ g, u @ u.T

    for (index, _), (of_global, with_global, of_updates) in zip(chunks, in_parallel(products, chunks), strict=True):
        gg[index] += float(of_global)
        gu[index] += with_global.cpu().numpy()
        uu[index] += of_updates.cpu().numpy()
    return InnerProducts(gg, gu, uu)


def cosine(product: Array, first_squared: Array, second_squared: Array) -> Array:
    """Cosine from an inner product and the two squared lengths; 0 where a vector has no length."""
    lengths = np.sqrt(np.maximum(first_squared, 0)) * np.sqrt(np.maximum(second_squared, 0))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(lengths > 0, product / np.where(lengths > 0, lengths, 1.0), 0.0)
    result: Array = np.clip(np.nan_to_num(ratio, nan=0.0), -1.0, 1.0)
    return result


def z_scores(values: Array, axis: int | None = 0) -> Array:
    """Subtract the mean and divide by the standard deviation; whatever does not vary, or overflows, becomes 0."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scale = np.max(np.abs(values), axis=axis, keepdims=True)
        scaled = values / np.where(scale > 0, scale, 1.0)
        centred = scaled - scaled.mean(axis=axis, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=axis, keepdims=True))
        # Numbers that differ only by rounding do not vary.
        varies = deviation > 1e-12
        result = np.where(varies, centred / np.where(varies, deviation, 1.0), 0.0)
    return np.where(np.isfinite(result), result, 0.0)


class _Placed(Protocol):
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...


def empty(*shape: int, like: _Placed) -> Tensor:
    """A tensor of whatever was in memory, in the dtype and on the device of `like`.

    On a CPU it is NumPy that asks for the memory: it asks for large pages, which come many times faster.
    """
    if like.device.type != "cpu":
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    return torch.from_numpy(np.empty(shape, np.float64 if like.dtype == torch.float64 else np.float32))
