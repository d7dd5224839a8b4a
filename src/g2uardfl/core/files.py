"""Atomic file writes."""

from __future__ import annotations

import glob
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def real_path(path: str | os.PathLike[str]) -> Path:
    """The absolute path of a file, behind symbolic links; the file need not exist."""
    return Path(os.path.realpath(path))


@contextmanager
def atomic_write(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` when the block succeeds and is deleted when it fails.

    A crash at any moment leaves either the old file or the complete new one at `path`. Where `path` is a symbolic link
    it stays one, and the file behind it is replaced. Only the owner may read a `private` file, from its first byte;
    otherwise the umask decides (default: False).
    """
    path = real_path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    mode = 0o600 if private else 0o666
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def delete_unfinished(path: Path) -> None:
    """Delete the temporary files of killed writers of `path`; only its single writer may call this."""
    path = real_path(path)
    for unfinished in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 32}.part"):
        unfinished.unlink(missing_ok=True)
