"""The files of an audit and the hash chain of its lines.

The audit at `audit.jsonl` continues `audit.jsonl.1`, `audit.jsonl.2` and so on, which were rotated in this order. The
hash of a line is the SHA-256 sum of its bytes without the line break.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..core.errors import StateError

BEGINNING = ""
"""Stands for the hash of a line before the first one."""
_STARTS = b'{"schema": '
"""How every line starts, so that only the end of an audit is ever cut off."""
_BLOCK = 1 << 16
"""Bytes that are read at a time to find the last line, which is rarely longer than 1000."""


@dataclass(frozen=True)
class Line:
    """A whole line, and where it is."""

    file: str
    number: int
    content: bytes

    def __str__(self) -> str:
        return f"line {self.number} of {self.file}"


def line_hash(content: bytes) -> str:
    """The hash of a line.

    >>> line_hash(b"{}")
    '44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a'
    """
    return hashlib.sha256(content).hexdigest()


def rotated(path: Path) -> list[Path]:
    """The earlier files of the audit at `path`, the oldest first."""
    found = (re.fullmatch(re.escape(path.name) + r"\.([1-9][0-9]*)", file.name) for file in path.parent.iterdir())
    return [path.with_name(f"{path.name}.{number}") for number in sorted(int(match[1]) for match in found if match)]


def rotate(path: Path) -> None:
    """Rename the file at `path` to the next number."""
    earlier = rotated(path)
    number = int(earlier[-1].suffix[1:]) + 1 if earlier else 1
    path.rename(path.with_name(f"{path.name}.{number}"))


def lines_of(path: Path) -> Iterator[Line]:
    """All whole lines of the audit at `path`; a last one that is still being written is left out."""
    earlier = rotated(path)
    for file in [*earlier, path] if path.exists() else earlier or [path]:
        with file.open("rb") as stream:
            for number, content in enumerate(stream, start=1):
                if content.endswith(b"\n") or file != path:
                    yield Line(file.name, number, content.removesuffix(b"\n"))


def repair(path: Path) -> str:
    """Cut off a last line that a killed writer left unfinished; returns the hash of the last whole line.

    The file is created if it does not exist.
    """
    with path.open("ab+") as file:
        last, unfinished = _end(file)
        if unfinished:
            # After a power failure the end can be filled with zeros.
            written = unfinished.rstrip(b"\0")[: len(_STARTS)]
            if not _STARTS.startswith(written):
                raise StateError(f"{path} is not an audit, or another version wrote it: choose another audit_path")
            file.truncate(file.seek(0, os.SEEK_END) - len(unfinished))
    if not last and (earlier := rotated(path)):
        with earlier[-1].open("rb") as before:
            last, _ = _end(before)
    return line_hash(last) if last else BEGINNING


def _end(file: BinaryIO) -> tuple[bytes, bytes]:
    """The last whole line of a file, and what follows it."""
    start, end = file.seek(0, os.SEEK_END), b""
    while start and end.count(b"\n") < 2:
        length = min(_BLOCK, start)
        start -= length
        file.seek(start)
        end = file.read(length) + end
    *_, last, unfinished = (b"\n" + end).split(b"\n")
    return last, unfinished
