"""Writes stored files under temporary names, and renames them when all of them are complete."""

from __future__ import annotations

import contextlib
import gzip
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

WriteRow = Callable[..., None]
"""Writes one row of a table; each argument is a field."""


class Staging:
    """New files of a data folder, which become visible together.

    Within the `with` block, files are written under temporary names in their final folders. `commit` renames them.
    Without `commit`, the end of the block deletes them and the folders that were created for them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: dict[str, Path] = {}
        """The temporary path of each stored path."""
        self._made: list[Path] = []

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for temporary in self.written.values():
            temporary.unlink(missing_ok=True)
        for made in reversed(self._made):
            with contextlib.suppress(OSError):  # another process has written to it
                made.rmdir()

    def place(self, file: str) -> Path:
        """A temporary path for the stored file `file`, in its final folder."""
        final = self.folder / file
        self._make(final.parent)
        temporary = final.parent / f".{final.name}.{uuid.uuid4().hex}.part"
        self.written[file] = temporary
        return temporary

    def write_bytes(self, file: str, content: bytes) -> None:
        """Write a file unchanged."""
        self.place(file).write_bytes(content)

    def write_arrays(self, file: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write a compressed `.npz` file; equal arrays give equal bytes."""
        with self.place(file).open("wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, **arrays)

    @contextlib.contextmanager
    def open_table(self, file: str, *columns: str) -> Iterator[WriteRow]:
        """Open a `.tsv.gz` table for writing row by row; equal rows give equal bytes."""
        with (
            self.place(file).open("wb") as raw,
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) as packed,
        ):

            def write_row(*fields: object) -> None:
                packed.write(("\t".join(map(str, fields)) + "\n").encode())

            write_row(*columns)
            yield write_row

    def commit(self) -> None:
        """Rename all files to their final names."""
        for file, temporary in self.written.items():
            os.replace(temporary, self.folder / file)
        self.written.clear()
        self._made.clear()

    def _make(self, folder: Path) -> None:
        missing = [folder, *folder.parents]
        missing = missing[: next(index for index, parent in enumerate(missing) if parent.exists())]
        for parent in reversed(missing):
            parent.mkdir(exist_ok=True)
            self._made.append(parent)
