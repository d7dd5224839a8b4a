"""Integrity checks of the files in a data folder; every check hashes the file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .catalogue import Dataset, StoredFile
from .manifest import Entry

State = Literal["missing", "verified", "as imported", "altered", "incomplete"]
"""`verified`: the published data. `as imported`: unchanged since the import. `altered`: neither. `incomplete`: files of
the data set are missing."""


@dataclass(frozen=True)
class FileCheck:
    """The result of checking one stored file."""

    stored: StoredFile
    path: Path
    state: State
    size: int = 0
    sha256: str = ""


@dataclass(frozen=True)
class DatasetCheck:
    """The result of checking all files of a data set."""

    dataset: Dataset
    files: tuple[FileCheck, ...]

    @property
    def state(self) -> State:
        """The worst state of the files; missing optional files are ignored."""
        states = {check.state for check in self.files if not (check.stored.optional and check.state == "missing")}
        if "altered" in states:
            return "altered"
        if "missing" in states:
            return "missing" if states == {"missing"} else "incomplete"
        return "as imported" if "as imported" in states else "verified"

    @property
    def size(self) -> int:
        """The size of all present files in bytes."""
        return sum(check.size for check in self.files)


def file_sha256(path: Path) -> str:
    """The SHA-256 sum of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def check_file(stored: StoredFile, folder: Path, manifest: Mapping[str, Entry]) -> FileCheck:
    """Hash a stored file and determine its state.

    It is `verified` if it equals the reference copy, or if the original files rebuilt from it have the published MD5
    sums. It is `as imported` if its hash is in the manifest.
    """
    path = folder / stored.path
    if not path.is_file():
        return FileCheck(stored, path, "missing")
    sha256 = file_sha256(path)
    state: State = "altered"
    if sha256 == stored.sha256 or is_published(stored, path):
        state = "verified"
    elif stored.path in manifest and manifest[stored.path].sha256 == sha256:
        state = "as imported"
    return FileCheck(stored, path, state, path.stat().st_size, sha256)


def is_intact(stored: StoredFile, path: Path, manifest: Mapping[str, Entry]) -> bool:
    """Whether the file at `path` may be used: it is the reference copy, unchanged since its import, or published."""
    sha256 = file_sha256(path)
    imported = manifest.get(stored.path)
    return sha256 == stored.sha256 or (imported is not None and sha256 == imported.sha256) or is_published(stored, path)


def is_published(stored: StoredFile, path: Path) -> bool:
    """Whether the original files, rebuilt from the stored file at `path`, have the published MD5 sums."""
    from .originals import rebuilt_md5
    from .reading import UNREADABLE, read_arrays

    if not stored.originals:
        return False
    try:
        arrays = read_arrays(path)
        return all(rebuilt_md5(original, arrays) == original.md5 for original in stored.originals)
    except (*UNREADABLE, IndexError):
        return False


def check_dataset(dataset: Dataset, folder: Path, manifest: Mapping[str, Entry]) -> DatasetCheck:
    """Hash all files of a data set."""
    return DatasetCheck(dataset, tuple(check_file(stored, folder, manifest) for stored in dataset.files))
