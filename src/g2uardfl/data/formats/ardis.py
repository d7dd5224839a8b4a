"""The published format of ARDIS data set IV: two tables of pixels and two of one-hot labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ..progress import Progress
from ..sources import Source, pick
from ..staging import Staging

PATTERNS = {
    "x_train": r"train_2828\.csv$",
    "y_train": r"train_labels\.csv$",
    "x_test": r"test_2828\.csv$",
    "y_test": r"test_labels\.csv$",
}
"""Regular expressions of the published file names, by stored array."""


def read_numbers(source: Source) -> NDArray[np.uint8]:
    """A table of integers from 0 to 255, such as `7` or `7.000e+00`, separated by space, tab, comma or semicolon."""
    text = re.sub(r"[,;\t]", " ", source.read().decode("utf-8-sig", "replace"))
    try:
        numbers: NDArray[Any] = np.loadtxt(text.splitlines(), dtype=np.float64, ndmin=2)
    except ValueError as error:
        raise DataError(f"{source.origin} is not a table of numbers ({error})") from error
    if not numbers.size or not ((numbers >= 0) & (numbers <= 255) & (numbers == np.floor(numbers))).all():
        raise DataError(f"{source.origin} is not a table of integers from 0 to 255")
    return numbers.astype(np.uint8)


def read_labels(source: Source) -> NDArray[np.uint8]:
    """Digits from a table with ten one-hot columns, or with one column of digits."""
    table = read_numbers(source)
    if table.shape[1] == 10 and (table.sum(axis=1) == 1).all():
        return np.asarray(table.argmax(axis=1), dtype=np.uint8)
    if table.shape[1] == 1 and table.max() <= 9:
        return np.ascontiguousarray(table[:, 0])
    raise DataError(f"{source.origin} has neither ten one-hot columns nor one column of digits")


def convert(sources: Sequence[Source], staging: Staging, progress: Progress) -> None:
    """Store the four tables as `ardis/ardis_iv.npz`."""
    found = pick(sources, PATTERNS, "ardis")
    arrays: dict[str, NDArray[np.uint8]] = {}
    for done, part in enumerate(("train", "test")):
        progress("reading", done, 2)
        images = read_numbers(found[f"x_{part}"])
        labels = read_labels(found[f"y_{part}"])
        if images.shape != (len(labels), 28 * 28):
            raise DataError(
                f"{found[f'x_{part}'].origin} has {images.shape[0]} rows of {images.shape[1]} numbers: "
                f"expected {len(labels)} rows, one per label, of {28 * 28}"
            )
        arrays[f"x_{part}"], arrays[f"y_{part}"] = images.reshape(-1, 28, 28), labels
    staging.write_arrays("ardis/ardis_iv.npz", arrays)
