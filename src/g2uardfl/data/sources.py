"""The source files of an import: plain or gzipped, in a folder, or in a tar or zip archive."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, cast

from ..core.errors import DataError

_GZIP_MAGIC = b"\x1f\x8b"
"""The first two bytes of every gzip file."""
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, tarfile.TarError, zipfile.BadZipFile)
"""The exceptions that the standard library raises for damaged archives."""


@dataclass(frozen=True)
class Source:
    """One file to import, possibly compressed or in an archive."""

    name: str
    """The file name without folders and without `.gz`."""
    origin: str
    """The path, for messages."""
    opener: Callable[[ExitStack], IO[bytes]]
    """Opens the file and registers what must be closed."""

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The decompressed content as a stream."""
        with ExitStack() as stack:
            try:
                stream = stack.enter_context(io.BufferedReader(cast(io.RawIOBase, self.opener(stack))))
                is_packed = stream.peek(2)[:2] == _GZIP_MAGIC
                yield cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=stream)) if is_packed else stream)
            except (*_DAMAGED, PermissionError) as error:
                raise DataError(f"{self.origin} cannot be read ({error}): download it again") from error

    def read(self) -> bytes:
        """The whole decompressed content."""
        with self.open() as stream:
            return stream.read()


def expand(files: Iterable[Path]) -> list[Source]:
    """All files in `files`, including those in folders and archives."""
    return [source for file in files for source in _expand_one(Path(file))]


def pick(
    sources: Iterable[Source], patterns: Mapping[str, str], dataset: str, needed: Iterable[str] | None = None
) -> dict[str, Source]:
    """Find for each key of `patterns` the first source whose name matches the regular expression.

    Parameters
    ----------
    sources
        All sources of the import.
    patterns
        Regular expressions of file names, by key; case is ignored.
    dataset
        The name of the data set, for messages.
    needed
        The keys that must have a source; None means all (default: None).

    Raises
    ------
    DataError
        One of the `needed` keys has no source.
    """
    sources = list(sources)
    found: dict[str, Source] = {}
    for key, pattern in patterns.items():
        for source in sources:
            if re.search(pattern, source.name, re.IGNORECASE):
                found[key] = source
                break
    missing = [key for key in (patterns if needed is None else needed) if key not in found]
    if missing:
        from .catalogue import find

        given = ", ".join(source.name for source in sources[:8]) or "none"
        raise DataError(
            f"no file contains {', '.join(missing)} of {dataset}: "
            f"expected {find(dataset).import_files} (given: {given})"
        )
    return found


def _expand_one(path: Path) -> list[Source]:
    try:
        if path.is_dir():
            return [_plain(file) for file in sorted(path.rglob("*")) if file.is_file()]
        if not path.is_file():
            raise DataError(f"{path} does not exist: check the name")
        if path.name.endswith((".tar", ".tar.gz", ".tgz")):
            with tarfile.open(path) as archive:
                members = [member.name for member in archive.getmembers() if member.isfile()]
            return [_member(path, name, _open_tar) for name in members]
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as packed:
                members = [name for name in packed.namelist() if not name.endswith("/")]
            return [_member(path, name, _open_zip) for name in members]
    except (*_DAMAGED, OSError) as error:
        raise DataError(f"{path} cannot be read ({error}): download it again") from error
    if path.suffix in (".rar", ".zst", ".xz", ".bz2", ".7z"):
        raise DataError(f"{path} has an unsupported archive format: unpack it and pass the files in it")
    return [_plain(path)]


def _plain(path: Path) -> Source:
    return Source(path.name.removesuffix(".gz"), str(path), lambda stack: stack.enter_context(path.open("rb")))


def _member(archive: Path, name: str, opener: Callable[[Path, str, ExitStack], IO[bytes]]) -> Source:
    return Source(Path(name).name.removesuffix(".gz"), f"{archive}:{name}", partial(opener, archive, name))


def _open_tar(path: Path, name: str, stack: ExitStack) -> IO[bytes]:
    archive = stack.enter_context(tarfile.open(path))  # noqa: SIM115 - the stack closes it
    stream = archive.extractfile(name)
    if stream is None:
        raise tarfile.TarError(f"{name} is not a file")
    return stream


def _open_zip(path: Path, name: str, stack: ExitStack) -> IO[bytes]:
    return stack.enter_context(zipfile.ZipFile(path)).open(name)
