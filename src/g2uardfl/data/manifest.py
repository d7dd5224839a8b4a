"""The data folder's own record of what was fetched or imported into it: `manifest.json`.

A file that a user imports need not be the reference copy (the full Sentiment-140, another Reddit dump, the same images
packed by another zlib). What it was when it was imported is written down here, so that a later change is noticed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ..core.errors import DataError
from ..core.files import replacing

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Entry:
    """What a file was when it was stored."""

    sha256: str
    size: int
    imported_from: tuple[str, ...] = ()
    """The names of the files it was made from."""


def read_manifest(folder: Path) -> dict[str, Entry]:
    """The entries by stored path; empty where nothing was imported."""
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
    """Add `entries` to the manifest of `folder`, replacing those of the same files."""
    merged = {**read_manifest(folder), **entries}
    content = {"version": 1, "files": {file: asdict(entry) for file, entry in sorted(merged.items())}}
    with replacing(folder / MANIFEST) as file:
        file.write(f"{json.dumps(content, indent=2)}\n".encode())
