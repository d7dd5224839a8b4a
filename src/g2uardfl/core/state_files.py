"""Saved state: one file of named arrays and one JSON document, without pickle, written whole or not at all.

The file is an uncompressed `.npz` archive. Its directory is at the end and every member carries a checksum, so a
truncated or altered file is noticed; a `kind` inside tells our files from others.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import StateError
from .files import replacing

_DOCUMENT = "state.json"


@dataclass(frozen=True)
class SavedState:
    """What something with memory needs in order to go on: JSON values and arrays of numbers."""

    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    @staticmethod
    def joined(parts: Mapping[str, SavedState], values: Mapping[str, Any] | None = None) -> SavedState:
        """One state from the named states of several parts, and further `values`.

        >>> SavedState.joined({"a": SavedState({"x": 1})}, {"y": 2}).values
        {'y': 2, 'a': {'x': 1}}
        """
        together = {**(values or {}), **{name: part.values for name, part in parts.items()}}
        arrays = {f"{name}.{key}": array for name, part in parts.items() for key, array in part.arrays.items()}
        return SavedState(together, arrays)

    def part(self, name: str) -> SavedState:
        """The part `name` of a joined state; KeyError where there is none."""
        start = f"{name}."
        arrays = {key[len(start) :]: array for key, array in self.arrays.items() if key.startswith(start)}
        return SavedState(self.values[name], arrays)


def write_state(path: str | os.PathLike[str], kind: str, state: SavedState) -> None:
    """Write `state` beside `path` and rename it into place, so that a crash leaves the old file or the new one."""
    target = Path(path)
    document = json.dumps({"kind": kind, "version": 1, "values": state.values})
    members: dict[str, Any] = {_DOCUMENT: np.frombuffer(document.encode(), dtype=np.uint8), **state.arrays}
    try:
        with replacing(target) as file:
            np.savez(file, **members)
    except OSError as error:
        raise StateError(
            f"cannot write {target}: {error.strerror or error}; choose a folder that exists, is writable and has room"
        ) from error


def read_state(path: str | os.PathLike[str], kind: str) -> SavedState:
    """Read what `write_state` wrote; anything else is one clear `StateError`."""
    target = Path(path)
    try:
        with np.load(target, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        document = json.loads(arrays.pop(_DOCUMENT).tobytes())
    except FileNotFoundError as error:
        raise StateError(f"{target} does not exist") from error
    except (OSError, ValueError, KeyError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise StateError(
            f"{target} is not a {kind} file of g2uardfl, or it is damaged: restore it or start anew"
        ) from error
    if not isinstance(document, dict) or document.get("kind") != kind or not isinstance(document.get("values"), dict):
        found = document.get("kind") if isinstance(document, dict) else None
        raise StateError(f"{target} holds {found or 'something else'}, not a {kind}")
    if document.get("version") != 1:
        raise StateError(f"{target} was written by another version of g2uardfl (format {document.get('version')})")
    return SavedState(document["values"], arrays)
