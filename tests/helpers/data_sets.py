"""Data folders for tests, and small files in the published format of MNIST."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from g2uardfl import data
from g2uardfl.core.errors import DataError
from g2uardfl.data import catalogue

MNIST_TRAIN_COUNTS = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
MNIST_TEST_COUNTS = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)
"""The published numbers of images of each digit."""

DIGITS = np.random.default_rng(0).integers(0, 256, (12, 28, 28), dtype=np.uint8)
DIGIT_LABELS = np.arange(12, dtype=np.uint8) % 10
"""The images and labels of a small MNIST: eight for training, four for testing."""


def store(folder: Path, file: str, content: bytes) -> Path:
    """Add a file to a data folder and its manifest, as an import does."""
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    data.record(folder, {file: data.Entry(hashlib.sha256(content).hexdigest(), len(content))})
    return path


def store_table(folder: Path, file: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Path:
    """Add a `.tsv.gz` table to a data folder and its manifest."""
    lines = ["\t".join(columns), *("\t".join(map(str, row)) for row in rows)]
    return store(folder, file, gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))


def assert_one_line(error: pytest.ExceptionInfo[DataError], *words: str) -> None:
    """Check that an error message is one line and contains all `words`."""
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def files_in(folder: Path) -> list[str]:
    """All files and folders below `folder`, by their relative paths."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def idx(array: np.ndarray) -> bytes:
    """The content of an idx file."""
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder: Path, packed: bool = True) -> list[Path]:
    """Write the small MNIST in its published format: four idx files, gzipped if `packed`."""
    folder.mkdir(exist_ok=True)
    contents = {
        "train-images-idx3-ubyte": idx(DIGITS[:8]),
        "train-labels-idx1-ubyte": idx(DIGIT_LABELS[:8]),
        "t10k-images-idx3-ubyte": idx(DIGITS[8:]),
        "t10k-labels-idx1-ubyte": idx(DIGIT_LABELS[8:]),
    }
    paths = []
    for name, content in contents.items():
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
        paths.append(path)
    return paths


@pytest.fixture
def small_mnist_is_published(monkeypatch: pytest.MonkeyPatch) -> catalogue.Dataset:
    """The catalogue has the checksums of the small MNIST."""
    contents = {"x_train": DIGITS[:8], "y_train": DIGIT_LABELS[:8], "x_test": DIGITS[8:], "y_test": DIGIT_LABELS[8:]}
    stored = catalogue.MNIST.files[0]
    originals = tuple(
        dataclasses.replace(
            original, md5=hashlib.md5(idx(contents[original.array])).hexdigest(), items=len(contents[original.array])
        )
        for original in stored.originals
    )
    files = (dataclasses.replace(stored, originals=originals),)
    mnist = dataclasses.replace(catalogue.MNIST, files=files)
    monkeypatch.setattr(catalogue, "DATASETS", (mnist, *catalogue.DATASETS[1:]))
    return mnist
