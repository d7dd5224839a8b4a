"""Saved state: one file with named arrays and a JSON document, without pickle, written atomically.

The file is an uncompressed `.npz` archive. The archive ends with its directory and has a checksum for every member, and
the document lists the arrays, so that truncated and damaged files are detected. A `kind` identifies the file's content.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import StateError
from .files import atomic_write

_DOCUMENT = "state.json"
"""The name of the JSON document in the archive."""


@dataclass(frozen=True)
class SavedState:
    """The memory of an object: JSON values and arrays of numbers."""

    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    @staticmethod
    def joined(parts: Mapping[str, SavedState], values: Mapping[str, Any] | None = None) -> SavedState:
        """One state from the named states of several parts, with further `values`.

        >>> SavedState.joined({"a": SavedState({"x": 1})}, {"y": 2}).values
        {'y': 2, 'a': {'x': 1}}
        """
        joined_values = {**(values or {}), **{name: part.values for name, part in parts.items()}}
        arrays = {f"{name}.{key}": array for name, part in parts.items() for key, array in part.arrays.items()}
        return SavedState(joined_values, arrays)

    def part(self, name: str) -> SavedState:
        """The part `name` of a joined state; raises KeyError if it does not exist."""
        prefix = f"{name}."
        arrays = {key.removeprefix(prefix): array for key, array in self.arrays.items() if key.startswith(prefix)}
        return SavedState(self.values[name], arrays)


def write_state(path: str | os.PathLike[str], kind: str, state: SavedState) -> None:
    """Write `state` atomically; raises `StateError` if the file cannot be written."""
    target = Path(path)
    document = json.dumps({"kind": kind, "version": 1, "arrays": list(state.arrays), "values": state.values})
    members: dict[str, Any] = {_DOCUMENT: np.frombuffer(document.encode(), dtype=np.uint8), **state.arrays}
    try:
        with atomic_write(target) as file:
            np.savez(file, **members)
    except OSError as error:
        raise StateError(
            f"cannot write {target}: {error.strerror or error}; choose a writable folder with enough free space"
        ) from error


def read_state(path: str | os.PathLike[str], kind: str) -> SavedState:
    """Read a file that `write_state` wrote; raises `StateError` for any other file."""
    target = Path(path)
    damaged = f"{target} is not a {kind} file of g2uardfl, or it is damaged: restore it from a copy or start anew"
    try:
        with np.load(target, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        document = json.loads(arrays.pop(_DOCUMENT).tobytes())
    except FileNotFoundError as error:
        raise StateError(f"{target} does not exist") from error
    except Exception as error:  # zipfile and NumPy raise exceptions of many types for damaged files.
        raise StateError(damaged) from error
    if not isinstance(document, dict) or document.get("kind") != kind or not isinstance(document.get("values"), dict):
        found = document.get("kind") if isinstance(document, dict) else None
        raise StateError(f"{target} holds {found or 'something else'}, not a {kind}")
    if document.get("version") != 1:
        raise StateError(f"{target} was written by another version of g2uardfl (format {document.get('version')})")
    # Files of earlier releases do not list their arrays.
    if set(document.get("arrays", arrays)) != set(arrays):
        raise StateError(damaged)
    return SavedState(document["values"], arrays)
