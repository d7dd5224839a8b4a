"""Frozen settings that check themselves: unknown names and impossible values are refused in one sentence."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from .errors import ConfigError

Settings = TypeVar("Settings")


def number(default: float, low: float, high: float, *, above: bool = False) -> Any:
    """A number in [low, high], or in (low, high] with `above`."""
    return dataclasses.field(default=default, metadata={"low": low, "high": high, "above": above})


def choice(default: str, *options: str) -> Any:
    """One of a few words."""
    return dataclasses.field(default=default, metadata={"options": options})


def switch(default: bool) -> Any:
    """On or off."""
    return dataclasses.field(default=default, metadata={"switch": True})


@dataclasses.dataclass(frozen=True)
class NoSettings:
    """For what has nothing to set."""


def check(settings: object) -> None:
    """Raise `ConfigError` naming the first field whose value is not allowed, the value and what is allowed."""
    for item in dataclasses.fields(settings):  # type: ignore[arg-type]
        problem = _problem(item, getattr(settings, item.name))
        if problem:
            raise ConfigError(f"{item.name}={getattr(settings, item.name)!r} is not allowed: {problem}")


def build(kind: type[Settings], values: Mapping[str, Any], also: tuple[str, ...] = ()) -> Settings:
    """Make settings from names and values; an unknown name is refused with the nearest known ones.

    `also` are names that can be given, too, but do not belong here.
    """
    known = {item.name: item for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise unknown_setting(name, [*also, *known])
    settings = kind(**{name: _whole(known[name], value) for name, value in values.items()})
    check(settings)
    return settings


def unknown_setting(name: str, known: Sequence[str]) -> ConfigError:
    """The error for a setting that does not exist, with the nearest of the `known` ones.

    >>> str(unknown_setting("sed", ["seed", "window"]))
    "unknown setting 'sed': did you mean seed?"
    """
    import difflib

    close = difflib.get_close_matches(name, known, 3)
    known_ones = f"known are {', '.join(known)}" if known else "there are none"
    hint = f"did you mean {' or '.join(close)}?" if close else known_ones
    return ConfigError(f"unknown setting {name!r}: {hint}")


def _whole(item: dataclasses.Field[Any], value: Any) -> Any:
    """2.0 as 2 where a whole number is asked for."""
    whole = isinstance(item.default, int) and not isinstance(item.default, bool)
    return int(value) if whole and isinstance(value, float) and value.is_integer() else value


def _problem(item: dataclasses.Field[Any], value: Any) -> str | None:
    rules = item.metadata
    if "options" in rules:
        return None if value in rules["options"] else f"choose one of {', '.join(map(repr, rules['options']))}"
    if "switch" in rules:
        return None if isinstance(value, bool) else "it is a switch, True or False"
    if "low" in rules:
        low, high, above, whole = rules["low"], rules["high"], rules["above"], isinstance(item.default, int)
        allowed = f"a {'whole ' if whole else ''}number {_range(low, high, above)}"
        fits = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
        if not fits or (above and value == low) or (whole and value % 1 != 0):
            return f"it must be {allowed}"
    return None


def _range(low: float, high: float, above: bool) -> str:
    if math.isinf(high):
        return f"above {low:g}" if above else f"of at least {low:g}"
    return f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
