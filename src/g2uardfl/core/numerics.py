"""Statistics of large matrices: exact quantiles without sorting, inner products in float64, cosines and z-scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .threads import in_parallel

Array = npt.NDArray[np.float64]

_SORTED_COLUMNS = 1 << 10
"""The maximum number of columns of rows that are sorted completely: the calls of a search would take longer."""
_CHUNK_COLUMNS = 1 << 16
"""The number of columns in one matrix product on a CPU: 512 KiB per client in float64. Smaller chunks stay in the cache
and share the work evenly among threads; larger ones have less overhead."""
_GPU_CHUNK_COLUMNS = 1 << 22
"""The number of columns in one matrix product on a GPU: 32 MiB per client in float64. Larger chunks need fewer kernel
launches and more memory."""


def share_of(count: int, share: float) -> int:
    """`share` of `count`, rounded down, with an allowance for the rounding of `share` to a binary number.

    >>> share_of(100, 0.29), math.floor(100 * 0.29)
    (29, 28)
    """
    return math.floor(share * count + 1e-9)


def row_quantiles(matrix: Tensor, quantiles: Sequence[float]) -> Array:
    """The `quantiles` of each row, interpolated linearly between neighbours as `numpy.quantile` does.

    Long rows are not sorted but partitioned, each part further at the ranks inside it.

    >>> row_quantiles(torch.tensor([[3.0, 1.0, 2.0, 10.0]]), [0.5])
    array([[2.5]])
    """
    columns = matrix.shape[1]
    positions = np.asarray(quantiles, dtype=np.float64) * (columns - 1)
    lower = np.floor(positions).astype(int)
    pairs = np.stack([lower, np.minimum(lower + 1, columns - 1)], axis=1)
    ranks = pairs.reshape(-1).tolist()
    if matrix.device.type != "cpu":
        neighbours = torch.sort(matrix, dim=1).values[:, ranks].cpu().numpy()
    elif columns <= _SORTED_COLUMNS:
        neighbours = np.sort(matrix.numpy(), axis=1)[:, ranks]
    else:
        neighbours = np.stack([_order_statistics(row.copy(), ranks) for row in matrix.numpy()])
    low, high = np.moveaxis(neighbours.astype(np.float64).reshape(len(neighbours), -1, 2), 2, 0)
    fractions = positions - lower
    result: Array = low * (1 - fractions) + high * fractions
    return result


def _order_statistics(values: npt.NDArray[np.floating], ranks: Sequence[int]) -> npt.NDArray[np.floating]:
    """The values of some ranks, for which `values` are reordered.

    NumPy partitions at one rank several times faster than at several.
    """
    wanted = sorted(set(ranks))
    found: dict[int, np.floating] = {}
    parts = [(0, len(values), wanted)]
    while parts:
        start, stop, inside = parts.pop()
        part = values[start:stop]
        if not inside:
            continue
        if inside == [stop - 1]:
            found[stop - 1] = part.max()
        elif inside == [start]:
            found[start] = part.min()
        else:
            middle = inside[len(inside) // 2]
            part.partition(middle - start)
            found[middle] = values[middle]
            parts.append((start, middle, [rank for rank in inside if rank < middle]))
            parts.append((middle + 1, stop, [rank for rank in inside if rank > middle]))
    return np.array([found[rank] for rank in ranks])


@dataclass(frozen=True)
class InnerProducts:
    """Inner products of a global vector and client updates, for each layer, accumulated in float64.

    Cosines and norms follow from these without cancellation: the inner product of two clients' weights is
    `gg + gu_i + gu_j + uu_ij`, where the updates are small compared with the model.
    """

    gg: Array
    """(layers,): the squared norm of the global model."""
    gu: Array
    """(layers, clients): the inner product of the global model and each update."""
    uu: Array
    """(layers, clients, clients): the inner products of the updates."""

    @cached_property
    def total(self) -> InnerProducts:
        """The inner products over the whole model, as a single layer."""
        return InnerProducts(
            self.gg.sum(0, keepdims=True), self.gu.sum(0, keepdims=True), self.uu.sum(0, keepdims=True)
        )

    @property
    def ww(self) -> Array:
        """(layers, clients, clients): the inner products of the clients' weights."""
        return self.gg[:, None, None] + self.gu[:, :, None] + self.gu[:, None, :] + self.uu

    @property
    def gw(self) -> Array:
        """(layers, clients): the inner product of the global model and each client's weights."""
        return self.gg[:, None] + self.gu


def inner_products(updates: Tensor, global_vector: Tensor, columns: Sequence[slice]) -> InnerProducts:
    """The `InnerProducts` of a round in one pass over the updates; `columns` holds the columns of each layer."""
    clients = len(updates)
    gg, gu = np.zeros(len(columns)), np.zeros((len(columns), clients))
    uu = np.zeros((len(columns), clients, clients))
    size = _CHUNK_COLUMNS if updates.device.type == "cpu" else _GPU_CHUNK_COLUMNS
    chunks = [
        (index, slice(start, min(start + size, layer.stop)))
        for index, layer in enumerate(columns)
        for start in range(layer.start, layer.stop, size)
    ]

    def products(item: tuple[int, slice]) -> tuple[Tensor, Tensor, Tensor]:
        g, u = global_vector[item[1]].double(), updates[:, item[1]].double()
        return g @ g, u @ g, u @ u.T

    for (index, _), (chunk_gg, chunk_gu, chunk_uu) in zip(chunks, in_parallel(products, chunks), strict=True):
        gg[index] += float(chunk_gg)
        gu[index] += chunk_gu.cpu().numpy()
        uu[index] += chunk_uu.cpu().numpy()
    return InnerProducts(gg, gu, uu)


def cosine(product: Array, first_squared: Array, second_squared: Array) -> Array:
    """Cosine similarity from an inner product and the two squared norms; 0 for a zero vector."""
    norms = np.sqrt(np.maximum(first_squared, 0)) * np.sqrt(np.maximum(second_squared, 0))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(norms > 0, product / np.where(norms > 0, norms, 1.0), 0.0)
    result: Array = np.clip(np.nan_to_num(ratio, nan=0.0), -1.0, 1.0)
    return result


def z_scores(values: Array, axis: int | None = 0) -> Array:
    """Standardise to mean 0 and standard deviation 1; values that are constant or overflow become 0."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scale = np.max(np.abs(values), axis=axis, keepdims=True)
        scaled = values / np.where(scale > 0, scale, 1.0)
        centred = scaled - scaled.mean(axis=axis, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=axis, keepdims=True))
        # The largest absolute value is 1 here, so smaller deviations are rounding errors of float64 (2e-16).
        varies = deviation > 1e-12
        result = np.where(varies, centred / np.where(varies, deviation, 1.0), 0.0)
    return np.where(np.isfinite(result), result, 0.0)


def empty(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised tensor in float64 or float32.

    NumPy allocates it on a CPU: it requests huge pages, which makes the first write several times faster.
    """
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(shape, np.float64 if dtype == torch.float64 else np.float32))
