"""Imports published files into the data folder: convert, verify, then rename; an error changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from ..core.errors import DataError
from .catalogue import Dataset, StoredFile, find
from .checking import file_sha256
from .folder import data_dir as find_folder
from .manifest import Entry, read_manifest, record
from .originals import item_count, rebuilt_md5
from .progress import Progress, silent
from .reading import read_arrays
from .sources import Source, expand
from .staging import Staging

Convert = Callable[[Sequence[Source], Staging, Progress], None]
"""The type of `convert` in each module of `formats`."""


@dataclass(frozen=True)
class Imported:
    """The result of an import."""

    dataset: Dataset
    files: tuple[Path, ...]
    remarks: tuple[str, ...]
    """One line for each file that differs from the published data."""


def import_dataset(
    name: str,
    files: Iterable[Path | str],
    data_dir: Path | str | None = None,
    *,
    published_only: bool = False,
    progress: Progress = silent,
) -> Imported:
    """Read the published files of a data set and store them in the data folder.

    Parameters
    ----------
    name
        The name of a data set.
    files
        The published files, or folders, tar archives and zip archives that contain them; `.gz` files are decompressed.
    data_dir
        The data folder; None means `G2UARDFL_DATA` or the platform's cache folder (default: None).
    published_only
        Refuse data that differs from the published data, if its checksums are known. Otherwise, a file with another
        number of samples is stored with a remark. A file with the same number of samples but other content is damaged
        and always rejected (default: False).
    progress
        Called with the progress of the work (default: `silent`).

    Raises
    ------
    DataError
        A file is missing, damaged or in another format. The data folder is unchanged.
    """
    dataset, folder = find(name), find_folder(data_dir)
    read_manifest(folder)  # so that a damaged manifest is reported before the work, not after it
    convert: Convert = import_module(f".formats.{dataset.name}", __package__).convert
    given = [Path(file) for file in files]
    sources = expand(given)
    try:
        with Staging(folder) as staging:
            convert(sources, staging, progress)
            progress("verifying", 0, 0)
            remarks = tuple(
                remark
                for stored in dataset.files
                if stored.path in staging.written
                for remark in _compare_with_published(stored, staging.written[stored.path], published_only)
            )
            entries = {
                file: Entry(file_sha256(path), path.stat().st_size, tuple(path.name for path in given))
                for file, path in staging.written.items()
            }
            staging.commit()
            record(folder, entries)
    except OSError as error:
        raise DataError(f"cannot write to {folder} ({error.strerror or error}): choose another --data-dir") from error
    return Imported(dataset, tuple(folder / file for file in entries), remarks)


def _compare_with_published(stored: StoredFile, path: Path, published_only: bool) -> list[str]:
    """One remark for each original file that is not the published one; `DataError` if it is damaged."""
    if not stored.originals:
        return []
    arrays = read_arrays(path)
    remarks = []
    for original in stored.originals:
        md5, items = rebuilt_md5(original, arrays), item_count(original, arrays)
        if md5 == original.md5:
            continue
        if published_only or items == original.items:
            raise DataError(
                f"{original.name} is altered: expected md5 {original.md5}, found {md5}: download and import it again"
            )
        remarks.append(f"{original.name}: {items:,} samples, not the {original.items:,} published; stored unchanged")
    return remarks
