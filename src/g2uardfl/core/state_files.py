"""Saved state: one file with named arrays and a JSON document, without pickle, written atomically.

The file is an uncompressed `.npz` archive, followed by a line with the SHA-256 sum of the archive, which NumPy ignores.
The sum is verified before anything is parsed, so a damaged file raises one error and is never loaded as another state.
A `kind` identifies the file's content.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from .errors import StateError
from .files import atomic_write

_DOCUMENT = "state.json"
"""The name of the JSON document in the archive."""
_VERSION = 2
_BLOCK = 1 << 20
"""Bytes that are read at a time to verify a checksum."""


@dataclass(frozen=True)
class SavedState:
    """The state of an object: JSON values and arrays of numbers."""

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
    """Write `state` atomically; raises `StateError` if the file cannot be written.

    A state can hold secrets, so only its owner may read the file.
    """
    target = Path(path)
    objects = [name for name, array in state.arrays.items() if array.dtype.hasobject]
    if objects:
        raise StateError(f"the array {objects[0]!r} holds Python objects, which cannot be saved: use numbers or JSON")
    document = json.dumps({"kind": kind, "version": _VERSION, "values": state.values})
    members: dict[str, Any] = {_DOCUMENT: np.frombuffer(document.encode(), dtype=np.uint8), **state.arrays}
    try:
        with atomic_write(target, private=True) as file:
            hashed = _Hashed(file)
            np.savez(hashed, **members)
            file.write(_checksum_line(hashed.digest.hexdigest()))
    except OSError as error:
        raise StateError(
            f"cannot write {target}: {error.strerror or error}; choose a writable folder with enough free space"
        ) from error


def read_state(path: str | os.PathLike[str], kind: str) -> SavedState:
    """Read a file that `write_state` wrote; raises `StateError` for any other file.

    The file is read twice, first in blocks to verify its checksum; only the arrays are held in memory.
    """
    target = Path(path)
    damaged = (
        f"{target} is not a {kind} file of g2uardfl, or it is damaged, or an earlier version wrote it (without a "
        "checksum): restore it from a copy or start over"
    )
    try:
        with target.open("rb") as file:
            content = _parsed(file) if _is_intact(file) else None
    except FileNotFoundError as error:
        raise StateError(f"{target} does not exist") from error
    except OSError as error:
        raise StateError(f"cannot read {target}: {error.strerror or error}") from error
    except Exception as error:  # If another program wrote an intact file, the errors have many types.
        raise StateError(damaged) from error
    if content is None:
        raise StateError(damaged)
    found, version, state = content
    if found != kind:
        raise StateError(f"{target} holds {found}, not a {kind}")
    if version != _VERSION:
        raise StateError(f"{target} was written by another version of g2uardfl (format {version})")
    return state


class _Hashed(io.RawIOBase):
    """Hashes what is written to a file. It cannot seek, so hashed bytes never change."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._file.write(data)


def _checksum_line(digest: str) -> bytes:
    # Hexadecimal digits cannot contain the signature by which the end of an archive is found.
    return f"\ng2uardfl sha256 {digest}\n".encode()


def _parsed(file: BinaryIO) -> tuple[str, int, SavedState]:
    """Kind, version and content of a file."""
    file.seek(0)
    with np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    document = json.loads(arrays.pop(_DOCUMENT).tobytes())
    return document["kind"], document["version"], SavedState(dict(document["values"]), arrays)


def _is_intact(file: BinaryIO) -> bool:
    """Whether a file ends with the checksum of everything before it."""
    digest = hashlib.sha256()
    size = file.seek(0, os.SEEK_END) - len(_checksum_line(digest.hexdigest()))
    file.seek(0)
    for start in range(0, size, _BLOCK):
        digest.update(file.read(min(_BLOCK, size - start)))
    return file.read() == _checksum_line(digest.hexdigest())
