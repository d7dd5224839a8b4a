"""Statistics, counters and other integer arrays: detection of false values, and their values in the next model.

These arrays are not part of the updates that rules compare, so they are checked here, once for all rules. For each
value, m is the lower median of the clients, and r the smallest distance from m that covers a majority of the clients.
Both depend on honest clients only, as long as these are a majority.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.layout import Entry, ModelLayout, Weights, as_tensor
from ..core.numerics import Array
from ._coordinates import sorted_columns
from ._shares import FEWEST_TO_COMPARE

Buffers = Mapping[str, Tensor]
"""One client's statistics and counters by name."""
Mask = npt.NDArray[np.bool_]

_REACH = 2.0
"""The distance from m to which values are clipped, in multiples of r. For normally distributed clients that is Huber's
constant, 1.345 standard deviations: a robust mean, with a standard error only 4 % larger than without the limit (10
clients)."""
_OUTLIER = {"statistic": 20.0, "counter": 1e6}
"""The z-score above which a client is flagged, by the kind of array. Counters have a limit of their own, because they
grow with the number of samples, of which a client may have thousands of times as many as the others."""
_SUSPICIOUS = 0.25
"""The share of this limit above which a client that is not flagged is named in the note of the round."""
_BLOCK_SIZE = 1 << 20
"""The number of values of all clients that are examined at once: 8 MiB in float64."""
_EXACT = float(2**53)
"""Integers up to this size are exact in float64."""


@dataclass(frozen=True)
class Outlier:
    """The array in which a client differs most from the other clients."""

    name: str
    z_score: float
    flagged: bool
    """Whether the client is flagged as malicious; otherwise its values are clipped."""

    def __str__(self) -> str:
        module, _, leaf = self.name.rpartition(".")
        array = f"{leaf} of {module!r}" if module else repr(leaf)
        return f"{array} is far outside what the other clients send (robust z-score {self.z_score:.3g})"


def screen(layout: ModelLayout, buffers: Sequence[Buffers]) -> list[Outlier | None]:
    """For each client the array that is far outside the values of the others, or None.

    z = max |x - m| / max(1.4826 r, s), where s is the root mean square of m and r over the array, and at least 1: a
    value far outside differs much from what the clients show, and from the scale of the array itself. Nobody is flagged
    if that would leave no majority.
    """
    clients = len(buffers)
    if clients < FEWEST_TO_COMPARE:
        return [None] * clients
    names, worst, ratios = [""] * clients, np.zeros(clients), np.zeros(clients)
    for entry in layout.buffers:
        z_scores = _z_scores(entry, buffers)
        for client in np.flatnonzero(z_scores / _OUTLIER[entry.kind] > ratios):
            names[client], worst[client] = entry.name, z_scores[client]
            ratios[client] = z_scores[client] / _OUTLIER[entry.kind]
    flagged = (ratios > 1) & (np.count_nonzero(ratios > 1) < clients / 2)
    return [
        Outlier(name, float(z_score), bool(lies)) if ratio > _SUSPICIOUS else None
        for name, z_score, ratio, lies in zip(names, worst, ratios, flagged, strict=True)
    ]


def _z_scores(entry: Entry, buffers: Sequence[Buffers]) -> Array:
    """The largest z-score of each client in one array."""
    blocks = _Blocks(entry, buffers)
    found = [_median_and_spread(block) for block in blocks]
    squares = sum(float(torch.dot(m.double(), m.double()) + torch.dot(r, r)) for m, r in found)
    scale = max(1.0, math.sqrt(squares / entry.size))
    largest = np.zeros(len(buffers))
    for block, (median, spread) in zip(blocks, found, strict=True):
        scores = _differences(block, median).abs() / (1.4826 * spread).clamp(min=scale)
        largest = np.maximum(largest, scores.amax(dim=1).numpy())
    return largest


def robust_mean(
    layout: ModelLayout, global_weights: Weights, buffers: Sequence[Buffers], shares: Array, voting: Mask
) -> dict[str, Tensor]:
    """The mean of statistics and counters, weighted by `shares`, with each value clipped to within 2 r of m.

    A variance is clipped to between m² / (m + 2 r) and m + 2 r, so that it stays positive. m and r are computed from
    the `voting` clients, not only from those with a share, because a rule that selects few clients may select
    attackers. With fewer than three, m is the global model's value, and values are clipped to within the root mean
    square of its array, or 1 if that is larger. Empty if no client has a share.
    """
    total = float(shares.sum())
    if not buffers or not total > 0:
        return {}
    weights = torch.from_numpy(shares / total)
    result = {}
    for entry in layout.buffers:
        model = _widened(as_tensor(global_weights[entry.name])).reshape(-1)
        scale = max(1.0, float(model.double().square().mean().sqrt()))
        parts = []
        blocks = _Blocks(entry, buffers)
        for block, columns in zip(blocks, blocks.columns, strict=True):
            if np.count_nonzero(voting) >= FEWEST_TO_COMPARE:
                centre, spread = _median_and_spread(block[torch.from_numpy(voting)])
                reach = _REACH * spread
            else:
                centre, reach = model[columns], torch.full((block.shape[1],), scale, dtype=torch.float64)
            # m² / (m + reach) - m, where both may be 0.
            low = -reach * (centre / (centre + reach)).nan_to_num(0.0) if entry.is_variance else -reach
            bounded = torch.minimum(torch.maximum(_differences(block, centre), low), reach)
            value = _moved(centre, weights @ bounded)
            parts.append(torch.maximum(value, model[columns]) if entry.never_decreases else value)
        result[entry.name] = torch.cat(parts).reshape(entry.shape)
    return result


def _widened(value: Tensor) -> Tensor:
    """The values on the CPU, in float64 or int64."""
    return value.to("cpu", torch.float64 if value.is_floating_point() else torch.int64)


class _Blocks:
    """(clients x columns) blocks of one array, in float64 or int64."""

    def __init__(self, entry: Entry, buffers: Sequence[Buffers]) -> None:
        self._rows = [values[entry.name].reshape(1, -1) for values in buffers]
        size = max(_BLOCK_SIZE // len(buffers), 1)
        self.columns = [slice(start, start + size) for start in range(0, entry.size, size)]
        # Few columns are copied once, however often they are read.
        self._whole = _widened(torch.cat(self._rows)) if len(self.columns) == 1 else None

    def __iter__(self) -> Iterator[Tensor]:
        if self._whole is not None:
            yield self._whole
            return
        for columns in self.columns:
            # Clients may send an array in different precisions.
            yield _widened(torch.cat([row[:, columns] for row in self._rows]))


def _median_and_spread(block: Tensor) -> tuple[Tensor, Tensor]:
    """For each column m and r.

    >>> _median_and_spread(torch.tensor([[1.0], [3.0], [4.0], [99.0]]))
    (tensor([3.]), tensor([2.], dtype=torch.float64))
    """
    median = sorted_columns(block)[(len(block) - 1) // 2]
    return median, sorted_columns(_differences(block, median).abs())[len(block) // 2]


def _differences(values: Tensor, centre: Tensor) -> Tensor:
    """`values` - `centre` in float64, for integers of any size."""
    rounded = values.double() - centre.double()
    if values.is_floating_point():
        return rounded
    # The difference of two integers may overflow, but not if it is that small.
    return torch.where(rounded.abs() < _EXACT, (values - centre).double(), rounded)


def _moved(centre: Tensor, change: Tensor) -> Tensor:
    """`centre` + `change`; for integers rounded, and without a change that float64 cannot represent exactly."""
    if centre.is_floating_point():
        return centre + change
    rounded = change.round()
    return centre + torch.where(rounded.abs() < _EXACT, rounded, 0.0).to(torch.int64)
