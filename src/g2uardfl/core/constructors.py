"""Construction of objects whose class a user selects by name, and their resolved settings."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from .errors import ConfigError
from .settings import unknown_setting

Made = TypeVar("Made")


def construct(kind: type[Made], settings: Mapping[str, Any], **others: Any) -> Made:
    """Create an object of `kind`; raises ConfigError if its constructor does not accept the settings.

    Parameters
    ----------
    kind
        A rule, an attack or a task. A constructor with `**kwargs` takes every name and checks the names itself.
    settings
        What the user chose, by name.
    **others
        Further arguments that are not settings.
    """
    parameters = inspect.signature(kind).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        known = [name for name in parameters if name not in others]
        for name in settings:
            if name not in known:
                raise unknown_setting(name, known, getattr(kind, "name", kind.__name__))
    try:
        return kind(**settings, **others)
    except TypeError as error:
        raise ConfigError(f"{kind.__name__} cannot be created: {error}") from error


def resolved_settings(made: Any, given: Mapping[str, Any], without: Collection[str] = ()) -> dict[str, Any]:
    """All settings that recreate `made`, including those that were not given.

    Parameters
    ----------
    made
        A rule, an attack or a task; `configuration()` returns its settings.
    given
        The settings it was created with, for a class that accepts settings that it does not report.
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
