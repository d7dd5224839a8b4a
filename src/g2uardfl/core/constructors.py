"""Validation of keyword arguments for classes that users select by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from .settings import unknown_setting


def refuse_unknown_names(kind: type, names: Iterable[str]) -> None:
    """Raise `ConfigError` if the constructor of `kind` lacks a parameter in `names`; it suggests similar ones.

    A constructor with `**kwargs` accepts every name and validates the names itself.

    >>> from fractions import Fraction
    >>> refuse_unknown_names(Fraction, ["numerator", "denominater"])
    Traceback (most recent call last):
        ...
    g2uardfl.core.errors.ConfigError: unknown setting 'denominater': did you mean denominator?
    """
    known = inspect.signature(kind).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        return
    for name in names:
        if name not in known:
            raise unknown_setting(name, list(known))
