"""Brings published files into the data folder: convert, verify, then rename; or leave everything as it was."""

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


@dataclass(frozen=True)
class Imported:
    """What an import stored."""

    dataset: Dataset
    files: tuple[Path, ...]
    remarks: tuple[str, ...]
    """Where the files are not the published data, in one line each."""


def import_dataset(
    name: str,
    files: Iterable[Path | str],
    data_dir: Path | str | None = None,
    *,
    published_only: bool = False,
    progress: Progress = silent,
) -> Imported:
    """Read the published `files` of the data set `name` and store them in the data folder.

    Parameters
    ----------
    name
        A name of the catalogue.
    files
        The published files; folders and tar or zip archives are opened up, `.gz` is unpacked.
    data_dir
        The data folder; None means `G2UARDFL_DATA` or the platform's cache folder.
    published_only
        Refuse anything but the published data where its checksums are known. Otherwise a file with fewer or more
        samples is stored with a remark; one with as many samples but other content is damaged and always refused.
    progress
        Is told how far the work is.

    Raises
    ------
    DataError
        A file is missing, damaged or of another format. The data folder is left as it was.
    """
    dataset, folder = find(name), find_folder(data_dir)
    read_manifest(folder)  # a damaged one is better found before the work than after it
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
        raise DataError(f"cannot write to {folder} ({error.strerror or error}): name another --data-dir") from error
    return Imported(dataset, tuple(folder / file for file in entries), remarks)


def _compare_with_published(stored: StoredFile, path: Path, published_only: bool) -> list[str]:
    """Remarks on the originals that were not the published ones; raises if one must be damaged."""
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
                f"{original.name} is altered: expected md5 {original.md5}, found {md5}: get it again and import it anew"
            )
        remarks.append(f"{original.name}: {items:,} samples, not the {original.items:,} published; stored as it is")
    return remarks
