"""Reads the stored formats: arrays (`.npz`, never pickles), tables (`.tsv.gz`) and lines (`.txt`).

Files of the catalogue are hashed before they are used, which takes a fraction of a second and prevents training on
altered data.
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import catalogue
from .checking import is_intact
from .folder import data_dir as find_folder
from .folder import locate, unusable
from .manifest import read_manifest

UNREADABLE = (ValueError, KeyError, OSError, EOFError, zlib.error, zipfile.BadZipFile)
"""The exceptions that NumPy and the standard library raise for damaged `.npz` and `.gz` files."""


def read_arrays(path: Path, only: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of a `.npz` file by name, or those named in `only` (default: all)."""
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files if only is None or name in only}


def load_arrays(
    file: str, data_dir: Path | str | None = None, *, only: Collection[str] | None = None
) -> dict[str, NDArray[Any]]:
    """The arrays of a stored file.

    Parameters
    ----------
    file
        The path relative to the data folder, such as `mnist/mnist.npz`.
    data_dir
        The data folder; None means `G2UARDFL_DATA` or the platform's cache folder (default: None).
    only
        The names of the arrays to read; None means all (default: None).

    Raises
    ------
    DataError
        The file is missing, damaged or altered; the message names the command that repairs it.
    """
    path = _intact(file, data_dir)
    try:
        return read_arrays(path, only)
    except UNREADABLE as error:
        raise unusable(file, find_folder(data_dir), f"is damaged ({_one_line(error)})") from error


def read_table(file: str, data_dir: Path | str | None = None) -> Iterator[dict[str, str]]:
    """The rows of a stored table, each a mapping from column to text.

    Tables are UTF-8, tab-separated, with a header line and without quoting. The file is checked before the iterator is
    returned.
    """
    return _rows(file, _intact(file, data_dir), find_folder(data_dir))


def read_lines(file: str, data_dir: Path | str | None = None) -> list[str]:
    """The non-empty lines of a stored text file, stripped."""
    path = _intact(file, data_dir)
    try:
        text = path.read_text(encoding="utf-8")
    except UNREADABLE as error:
        raise unusable(file, find_folder(data_dir), f"is damaged ({_one_line(error)})") from error
    return [line.strip() for line in text.split("\n") if line.strip()]


def _intact(file: str, data_dir: Path | str | None) -> Path:
    """The path of `file`, which is hashed first if it is in the catalogue."""
    path, folder = locate(file, data_dir), find_folder(data_dir)
    found = catalogue.owner(file)
    if found is None:
        return path
    stored, manifest = found[1], read_manifest(folder)
    if not is_intact(stored, path, manifest):
        expected = manifest.get(file, stored)
        raise unusable(
            file,
            folder,
            f"is altered or truncated (expected {expected.size:,} bytes with sha256 {expected.sha256}, "
            f"found {path.stat().st_size:,} bytes)",
        )
    return path


def _rows(file: str, path: Path, folder: Path) -> Iterator[dict[str, str]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as stream:
            columns = next(stream, "").rstrip("\n").split("\t")
            for line in stream:
                yield dict(zip(columns, line.rstrip("\n").split("\t"), strict=True))
    except UNREADABLE as error:
        raise unusable(file, folder, f"is damaged ({_one_line(error)})") from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
