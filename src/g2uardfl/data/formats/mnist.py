"""The published format of MNIST: four idx files, gzipped or not."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ..progress import Progress
from ..sources import Source, pick
from ..staging import Staging

PATTERNS = {
    "x_train": r"^train.images",
    "y_train": r"^train.labels",
    "x_test": r"^(t10k|test).images",
    "y_test": r"^(t10k|test).labels",
}
"""Regular expressions of the published file names, by stored array."""


def read_idx(source: Source) -> NDArray[np.uint8]:
    """The array in an idx file of unsigned bytes."""
    content = source.read()
    if len(content) < 4 or content[:3] != b"\x00\x00\x08" or len(content) < 4 + 4 * content[3]:
        raise DataError(f"{source.origin} is not an idx file of unsigned bytes")
    header = 4 + 4 * content[3]
    shape = struct.unpack(f">{content[3]}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise DataError(
            f"{source.origin} is truncated or damaged: its header announces {math.prod(shape):,} bytes, "
            f"but it has {len(content) - header:,}: download it again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def convert(sources: Sequence[Source], staging: Staging, progress: Progress) -> None:
    """Store the four idx files as `mnist/mnist.npz`."""
    found = pick(sources, PATTERNS, "mnist")
    arrays: dict[str, NDArray[np.uint8]] = {}
    for done, (name, source) in enumerate(found.items()):
        progress("reading", done, len(found))
        arrays[name] = read_idx(source)
        expected = (28, 28) if name.startswith("x") else ()
        if arrays[name].shape[1:] != expected:
            raise DataError(f"{source.origin} is not an MNIST file: its shape is {arrays[name].shape}")
    for part in ("train", "test"):
        images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if len(images) != len(labels) or (len(labels) and labels.max() > 9):
            raise DataError(
                f"{found[f'x_{part}'].origin} and {found[f'y_{part}'].origin} do not match: "
                f"{len(images)} images, {len(labels)} labels"
            )
    progress("compressing", 0, 0)
    staging.write_arrays("mnist/mnist.npz", arrays)
