"""Weights and samples in memory that the main process and its workers share.

A block is a flat tensor of bytes. `WeightLayout` maps the weights of a model to a row of a block, `SampleLocation` the
samples of a job to a part of a block, both without copying.
"""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import ConfigError, G2uardFLError
from ..tasks.base import Samples

_ALIGNMENT = 64
"""Every tensor begins at a multiple of this many bytes: a cache line, which is also enough for vector instructions."""
_SHM = "/dev/shm"  # noqa: S108 - where Linux keeps shared memory


class SharedMemory:
    """Named blocks of shared memory, at most one block per name.

    Parameters
    ----------
    announce
        Called with name and block when a block is created, to send it to the workers.
    """

    def __init__(self, announce: Callable[[str, Tensor], None]) -> None:
        self.blocks: dict[str, Tensor] = {}
        self._announce = announce
        self._exported: dict[str, weakref.ref[NDArray[Any]]] = {}

    def reserve(self, name: str, size: int) -> Tensor:
        """Return block `name` with at least `size` bytes; create a new one if it is too small or still in use."""
        block = self.blocks.get(name)
        if block is not None and len(block) >= size and not self._in_use(name):
            return block
        size = max(size, _ALIGNMENT)
        _check_free_memory(size)
        new: Tensor = torch.empty(size, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        self.blocks[name] = new
        self._announce(name, new)
        return new

    def export(self, name: str) -> Tensor:
        """Return block `name` for callers: it counts as in use while this tensor or a view of it exists."""
        # The views of a tensor share its storage, not its Python object; that storage keeps this array alive.
        array = self.blocks[name].numpy()
        self._exported[name] = weakref.ref(array)
        return torch.from_numpy(array)

    def _in_use(self, name: str) -> bool:
        return name in self._exported and self._exported[name]() is not None


@dataclass(frozen=True)
class WeightLayout:
    """The position of each weight of a model, buffers and integer counters included, in a row of bytes."""

    entries: tuple[tuple[str, torch.dtype, tuple[int, ...], int, int], ...]
    """Name, dtype, shape, first byte and number of bytes."""
    row_bytes: int

    @staticmethod
    def of(weights: Mapping[str, Tensor]) -> WeightLayout:
        """The layout of a state dict on the CPU."""
        entries = []
        offset = 0
        for name, value in weights.items():
            if value.device.type != "cpu":
                raise ConfigError(f"worker processes train on the CPU, but {name} is on {value.device}")
            entries.append((name, value.dtype, tuple(value.shape), offset, value.numel() * value.element_size()))
            offset = _aligned(offset + entries[-1][-1])
        return WeightLayout(tuple(entries), max(offset, _ALIGNMENT))

    def views(self, block: Tensor, row: int) -> dict[str, Tensor]:
        """The weights in a row, as views of the block."""
        start = row * self.row_bytes
        return {
            name: block[start + offset : start + offset + size].view(dtype).view(shape)
            for name, dtype, shape, offset, size in self.entries
        }

    def write(self, weights: Mapping[str, Tensor], block: Tensor, row: int) -> None:
        """Copy `weights` into a row."""
        for name, view in self.views(block, row).items():
            value = weights.get(name)
            if value is None or value.shape != view.shape:
                raise G2uardFLError(
                    f"the global model does not match the task's model: {name} is missing or has another shape"
                )
            view.copy_(value)


@dataclass(frozen=True)
class SampleLocation:
    """The location of a job's samples in a block: first byte, and dtype and shape of inputs and labels."""

    start: int
    dtypes: tuple[torch.dtype, torch.dtype]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]

    @staticmethod
    def of(samples: Samples, start: int) -> SampleLocation:
        """The location of `samples` if they begin at byte `start`."""
        x, y = samples.x, samples.y
        return SampleLocation(start, (x.dtype, y.dtype), (tuple(x.shape), tuple(y.shape)))

    @property
    def count(self) -> int:
        """The number of samples."""
        return self.shapes[1][0]

    @property
    def stop(self) -> int:
        """The first byte after the samples."""
        return self.start + sum(_aligned(size) for size in self._sizes)

    def samples(self, block: Tensor) -> Samples:
        """The samples, as views of the block."""
        parts = []
        offset = self.start
        for dtype, shape, size in zip(self.dtypes, self.shapes, self._sizes, strict=True):
            parts.append(block[offset : offset + size].view(dtype).view(shape))
            offset += _aligned(size)
        return Samples(*parts)

    @property
    def _sizes(self) -> list[int]:
        return [
            torch.Size(shape).numel() * dtype.itemsize for dtype, shape in zip(self.dtypes, self.shapes, strict=True)
        ]


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _check_free_memory(size: int) -> None:
    """Raise if shared memory is too small: Linux grants the allocation and kills the process that writes to it."""
    if Path(_SHM).is_dir():
        free = shutil.disk_usage(_SHM).free
        if free < size:
            raise G2uardFLError(
                f"worker processes need {size >> 20} MiB of shared memory, but {_SHM} has {free >> 20} MiB free: "
                "enlarge it (docker run --shm-size=2g) or train without workers"
            )
