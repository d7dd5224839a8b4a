"""Rebuilds the published files of MNIST and CIFAR-10, to verify stored images by the published MD5 sums."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping

import numpy as np

from .catalogue import Original
from .residual import Bytes, decode_images


def idx_bytes(array: Bytes) -> bytes:
    """A `uint8` array as the content of an idx file: magic number, sizes (big-endian), values.

    >>> idx_bytes(np.array([7, 9], dtype=np.uint8)).hex()
    '00000801000000020709'
    """
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def cifar_bytes(images: Bytes, labels: Bytes) -> bytes:
    """Images (N, 32, 32, 3) and labels as a CIFAR-10 binary batch: for each image label, red, green and blue plane."""
    planes = np.moveaxis(images, -1, 1).reshape(len(images), -1)
    return np.concatenate([labels[:, None], planes], axis=1, dtype=np.uint8).tobytes()


def item_count(original: Original, arrays: Mapping[str, Bytes]) -> int:
    """The number of samples in the rebuilt `original`."""
    return len(arrays["labels"] if original.format == "cifar-binary" else arrays[original.array])


def rebuilt_md5(original: Original, arrays: Mapping[str, Bytes]) -> str:
    """The MD5 sum of `original`, rebuilt from the stored `arrays`."""
    if original.format == "cifar-binary":
        content = cifar_bytes(decode_images(arrays[original.array]), arrays["labels"])
    else:
        content = idx_bytes(arrays[original.array])
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
