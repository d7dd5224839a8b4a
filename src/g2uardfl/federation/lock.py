"""A lock that allows one server per file: a second process that tries to write the same state or audit gets an error.

The lock is on a hidden file in the same folder, because the file itself is replaced (the state) or renamed (the audit).
Symbolic links are resolved, so a file has one lock, whatever its names. The operating system releases it when
the process ends, however it ends. The hidden file stays: deleting it could let two servers in.
"""

from __future__ import annotations

import logging
import os
import weakref
from contextlib import suppress
from pathlib import Path

from ..core.errors import StateError
from ..core.files import real_path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

_LONGEST_NUMBER = 20
"""Digits of a process id that are read from a lock file, which anybody could have written."""
_held: dict[Path, tuple[int, object]] = {}
"""For each lock file that this process has locked its descriptor, and who in this process may write."""


class WriterLock:
    """The right to write a file, for one object of one process until that object is deleted.

    Within a process the latest object has the right, so that a strategy can replace an earlier one with the same path.

    Parameters
    ----------
    path
        The file to be written; its folder must exist.
    setting
        The name of the setting that `path` comes from, for the error message.
    """

    def __init__(self, path: str | os.PathLike[str], setting: str) -> None:
        self.path = Path(path)
        real = real_path(path)
        self._file = real.with_name(f".{real.name}.lock")
        self._owner = object()
        earlier = _held.get(self._file)
        descriptor = _locked(self._file, self.path, setting) if earlier is None else earlier[0]
        _held[self._file] = descriptor, self._owner
        weakref.finalize(self, _release, self._file, self._owner)

    def require(self) -> None:
        """Raise `StateError` if a later object of this process has taken the file over, or this process is a fork."""
        if _held.get(self._file, (0, None))[1] is not self._owner:
            raise StateError(f"{self.path} is now written by a later strategy: use that one, or choose other paths")


def _locked(file: Path, path: Path, setting: str) -> int:
    """The descriptor of `file`, locked by this process."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StateError(f"cannot write {file}: {error.strerror or error}; choose another {setting}") from error
    try:
        if fcntl is None:
            raise OSError("this system has no flock")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        number = os.read(descriptor, _LONGEST_NUMBER)
        os.close(descriptor)
        process = f"process {int(number)}" if number.isdigit() else "another process"
        message = f"{path} is used by another server ({process}): stop it, or choose another {setting}"
        raise StateError(message) from None
    except OSError as error:
        logger.warning("%s cannot be locked (%s): make sure that only one server uses it", path, error)
    with suppress(OSError):  # The number only serves the error message of others.
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
    return descriptor


def _release(file: Path, owner: object) -> None:
    if file in _held and _held[file][1] is owner:
        os.close(_held.pop(file)[0])


def _forget() -> None:
    """Close the descriptors in a forked process, which would otherwise keep the locks of a server that was killed."""
    for descriptor, _ in _held.values():
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
