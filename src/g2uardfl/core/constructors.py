"""Errors for arguments that a class chosen by name does not take."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from .settings import unknown_setting


def refuse_unknown_names(kind: type, names: Iterable[str]) -> None:
    """Raise `ConfigError` with the nearest known names if the constructor of `kind` does not take one of `names`.

    A constructor with `**kwargs` takes every name and checks the names itself.

    >>> from fractions import Fraction
    >>> refuse_unknown_names(Fraction, ["numerator", "denominater"])
    Traceback (most recent call last):
        ...
    g2uardfl.core.errors.ConfigError: unknown setting 'denominater': did you mean denominator or numerator?
    """
    known = inspect.signature(kind).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        return
    for name in names:
        if name not in known:
            raise unknown_setting(name, list(known))
