"""Writes stored files under temporary names and gives them their real names all at once, or not at all."""

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
"""Writes one row of a table, a field an argument."""


class Staging:
    """Files on their way into a data folder.

    Within the `with` block files are written beside their final place under temporary names. `commit` renames them;
    leaving the block without it removes every trace, the folders that were made for them included.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: dict[str, Path] = {}
        """Stored path to temporary path."""
        self._made: list[Path] = []

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for temporary in self.written.values():
            temporary.unlink(missing_ok=True)
        for made in reversed(self._made):
            with contextlib.suppress(OSError):  # not empty: somebody uses it
                made.rmdir()

    def place(self, file: str) -> Path:
        """A temporary path for the stored file `file`, in the folder where it will be."""
        final = self.folder / file
        self._make(final.parent)
        temporary = final.parent / f".{final.name}.{uuid.uuid4().hex}.part"
        self.written[file] = temporary
        return temporary

    def write_bytes(self, file: str, content: bytes) -> None:
        """Write a file as it is."""
        self.place(file).write_bytes(content)

    def write_arrays(self, file: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write a compressed `.npz` file; the same arrays give the same bytes."""
        with self.place(file).open("wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, **arrays)

    @contextlib.contextmanager
    def open_table(self, file: str, *columns: str) -> Iterator[WriteRow]:
        """Open a `.tsv.gz` table with these `columns` for writing row by row; the same rows give the same bytes."""
        with (
            self.place(file).open("wb") as raw,
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) as packed,
        ):

            def write_row(*fields: object) -> None:
                packed.write(("\t".join(map(str, fields)) + "\n").encode())

            write_row(*columns)
            yield write_row

    def commit(self) -> None:
        """Give every file its real name."""
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
