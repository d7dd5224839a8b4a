"""The files a user gives to an import: plain or gzipped, in a folder, or inside a tar or zip archive."""

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
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, tarfile.TarError, zipfile.BadZipFile)


@dataclass(frozen=True)
class Source:
    """One file to import. `open` reads it unpacked, whatever it is packed in."""

    name: str
    """Its file name without folders and without `.gz`."""
    origin: str
    """Where it is, for messages."""
    opener: Callable[[ExitStack], IO[bytes]]

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The content as a stream."""
        with ExitStack() as stack:
            try:
                stream = stack.enter_context(io.BufferedReader(cast(io.RawIOBase, self.opener(stack))))
                is_packed = stream.peek(2)[:2] == _GZIP_MAGIC
                yield cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=stream)) if is_packed else stream)
            except (*_DAMAGED, PermissionError) as error:
                raise DataError(f"{self.origin} cannot be read ({error}): get it again") from error

    def read(self) -> bytes:
        """The whole content."""
        with self.open() as stream:
            return stream.read()


def expand(files: Iterable[Path]) -> list[Source]:
    """Every file among `files`, with folders and archives opened up."""
    return [source for file in files for source in _expand_one(Path(file))]


def pick(
    sources: Iterable[Source], wanted: Mapping[str, str], dataset: str, needed: Iterable[str] | None = None
) -> dict[str, Source]:
    """Find for each key of `wanted` the first source whose name matches its regular expression.

    Raises
    ------
    DataError
        One of the `needed` keys (by default all) has no source.
    """
    sources = list(sources)
    found: dict[str, Source] = {}
    for key, pattern in wanted.items():
        for source in sources:
            if re.search(pattern, source.name, re.IGNORECASE):
                found[key] = source
                break
    missing = [key for key in (wanted if needed is None else needed) if key not in found]
    if missing:
        from .catalogue import find

        given = ", ".join(source.name for source in sources[:8]) or "none"
        raise DataError(
            f"nothing among the files gives {', '.join(missing)} of {dataset}: "
            f"give {find(dataset).import_files} (given: {given})"
        )
    return found


def _expand_one(path: Path) -> list[Source]:
    try:
        if path.is_dir():
            return [_plain(file) for file in sorted(path.rglob("*")) if file.is_file()]
        if not path.is_file():
            raise DataError(f"{path} is not there: check the name")
        if path.name.endswith((".tar", ".tar.gz", ".tgz")):
            with tarfile.open(path) as archive:
                members = [member.name for member in archive.getmembers() if member.isfile()]
            return [_member(path, name, _open_tar) for name in members]
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as packed:
                members = [name for name in packed.namelist() if not name.endswith("/")]
            return [_member(path, name, _open_zip) for name in members]
    except (*_DAMAGED, OSError) as error:
        raise DataError(f"{path} cannot be read ({error}): get it again") from error
    if path.suffix in (".rar", ".zst", ".xz", ".bz2", ".7z"):
        raise DataError(f"{path} is packed in a way that is not read here: unpack it and give the files in it")
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
