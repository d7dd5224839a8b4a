"""The manifest of a data folder, `manifest.json`: the checksums of all imported files.

An imported file may differ from the reference copy (the full Sentiment-140, another Reddit dump, the same images
compressed by another zlib). The manifest records its checksum at the time of the import, so that later changes are
detected.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ..core.errors import DataError
from ..core.files import atomic_write

MANIFEST = "manifest.json"
"""Name of the manifest in a data folder."""


@dataclass(frozen=True)
class Entry:
    """The checksum and size of a stored file at the time of its import."""

    sha256: str
    size: int
    imported_from: tuple[str, ...] = ()
    """The names of the files from which it was made."""


def read_manifest(folder: Path) -> dict[str, Entry]:
    """The entries by stored path; empty if the folder has no manifest."""
    path = folder / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): check its permissions") from error
    try:
        return {
            file: Entry(str(entry["sha256"]), int(entry["size"]), tuple(map(str, entry["imported_from"])))
            for file, entry in json.loads(text)["files"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is damaged ({error}): delete it and import the data sets of this folder again"
        ) from error


def record(folder: Path, entries: dict[str, Entry]) -> None:
    """Add `entries` to the manifest of `folder`; entries of the same files are replaced."""
    merged = {**read_manifest(folder), **entries}
    content = {"version": 1, "files": {file: asdict(entry) for file, entry in sorted(merged.items())}}
    with atomic_write(folder / MANIFEST) as file:
        file.write(f"{json.dumps(content, indent=2)}\n".encode())
