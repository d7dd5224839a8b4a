"""Validation of keyword arguments for classes that users select by name."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping
from typing import Any

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


def resolved_settings(made: Any, given: Mapping[str, Any], without: Collection[str] = ()) -> dict[str, Any]:
    """The settings with which the class of `made` makes the same object again: also those that were not given.

    Parameters
    ----------
    made
        A rule, an attack or a task; `configuration()` are its settings.
    given
        The settings it was made with, for a class that takes others than it reports.
    without
        Names that are left out (default: none).
    """
    parameters = inspect.signature(type(made)).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    usual = {name: one.default for name, one in parameters.items() if one.default is not one.empty}
    return {
        name: value
        for name, value in {**usual, **given, **made.configuration()}.items()
        if value is not None and name not in without and (takes_any or name in parameters)
    }
