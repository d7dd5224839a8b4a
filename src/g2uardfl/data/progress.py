"""How long work tells its caller how far it is, without knowing about terminals."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called as `progress(what, done, total)`; a total of 0 means that it is not known."""


def silent(what: str, done: int, total: int) -> None:
    """Tells nobody."""
