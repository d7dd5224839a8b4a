"""Progress of long work, reported through a callback."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called as `progress(what, done, total)`; a total of 0 means that it is unknown."""


def silent(what: str, done: int, total: int) -> None:
    """Report nothing."""
