"""Fields and validation for frozen dataclasses of settings.

A settings class declares each field with one of the functions here, such as `number` or `choice`. `build` creates an
instance from names and values, and raises a `ConfigError` that names the first unknown setting or invalid value.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from .errors import ConfigError
from .text import suggestion

Settings = TypeVar("Settings")


def number(default: float, low: float, high: float, *, above: bool = False) -> Any:
    """A field for a number in [low, high], or in (low, high] with `above`; an integer if `default` is one."""
    integer = isinstance(default, int)
    return dataclasses.field(default=default, metadata={"low": low, "high": high, "above": above, "integer": integer})


def optional_number(low: float, high: float, *, above: bool = False, integer: bool = False) -> Any:
    """A field for a number as in `number`, or None (the default) for a value that is determined elsewhere."""
    rules = {"low": low, "high": high, "above": above, "integer": integer, "optional": True}
    return dataclasses.field(default=None, metadata=rules)


def seed() -> Any:
    """A field for a seed: a whole number, or None, which draws one from the operating system."""
    return optional_number(0, 2**63 - 1, integer=True)


def choice(default: str, *options: str) -> Any:
    """A field for one of several strings."""
    return dataclasses.field(default=default, metadata={"options": options})


def switch(default: bool) -> Any:
    """A field for True or False."""
    return dataclasses.field(default=default, metadata={"switch": True})


def text(default: str) -> Any:
    """A field for any string."""
    return dataclasses.field(default=default, metadata={"text": True})


def table() -> Any:
    """A field for a table of further settings."""
    return dataclasses.field(default_factory=dict, metadata={"table": True})


@dataclasses.dataclass(frozen=True)
class NoSettings:
    """The settings of a class that has none."""


def check(settings: object) -> None:
    """Raise a `ConfigError` that names the first field with an invalid value, the value and the valid range."""
    for item in dataclasses.fields(settings):  # type: ignore[arg-type]
        problem = _problem(item, getattr(settings, item.name))
        if problem:
            raise ConfigError(f"{item.name}={getattr(settings, item.name)!r} is not allowed: {problem}")


def build(kind: type[Settings], values: Mapping[str, Any], owner: str = "") -> Settings:
    """An instance of `kind` from names and values; raises `ConfigError` for an unknown name or an invalid value.

    Parameters
    ----------
    kind
        The dataclass.
    values
        The values by name; the others have their defaults.
    owner
        The name of the class, for error messages (default: not named).
    """
    known = {item.name: item for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise unknown_setting(name, list(known), owner)
    settings = kind(**{name: _as_declared(known[name], value) for name, value in values.items()})
    check(settings)
    return settings


def unknown_setting(name: str, known: Sequence[str], owner: str = "") -> ConfigError:
    """The error for a setting that `owner` does not have; it suggests the most similar of the `known` ones.

    >>> str(unknown_setting("sed", ["seed", "window"]))
    "unknown setting 'sed': did you mean seed?"
    """
    if not known:
        return ConfigError(f"unknown setting {name!r}: {owner or 'it'} has no settings")
    return ConfigError(f"unknown setting {name!r}{owner and f' of {owner}'}: {suggestion(name, known)}")


def _as_declared(item: dataclasses.Field[Any], value: Any) -> Any:
    """`value`, with 2.0 converted to 2 for an integer field, because a configuration file may hold either."""
    is_integer = isinstance(value, float) and value.is_integer() and item.metadata.get("integer", False)
    return int(value) if is_integer else value


def allowed_values(item: dataclasses.Field[Any]) -> str:
    """What a valid value of the field is, as the end of a sentence that begins with "it must be".

    >>> Example = dataclasses.make_dataclass("Example", [("share", float, number(0.5, 0, 1))])
    >>> allowed_values(dataclasses.fields(Example)[0])
    'a number from 0 to 1'
    """
    rules = item.metadata
    if "options" in rules:
        return f"one of {', '.join(map(repr, rules['options']))}"
    if "switch" in rules:
        return "True or False"
    if "low" in rules:
        limits = _range(rules["low"], rules["high"], rules["above"])
        return f"a {'whole ' if rules['integer'] else ''}number {limits}"
    return "a table of settings" if "table" in rules else "a string" if "text" in rules else "any value"


def _problem(item: dataclasses.Field[Any], value: Any) -> str | None:
    """What a valid value of the field looks like, if `value` is invalid."""
    rules = item.metadata
    if "options" in rules:
        return None if value in rules["options"] else f"choose {allowed_values(item)}"
    if "switch" in rules:
        return None if isinstance(value, bool) else f"choose {allowed_values(item)}"
    if "low" in rules:
        low, high, above, is_integer = rules["low"], rules["high"], rules["above"], rules["integer"]
        if value is None and rules.get("optional"):
            return None
        in_range = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
        valid = in_range and not (above and value == low) and not (is_integer and value % 1 != 0)
    else:
        kinds = {"text": str, "table": dict}
        valid = all(isinstance(value, kind) for rule, kind in kinds.items() if rule in rules)
    return None if valid else f"it must be {allowed_values(item)}"


def _range(low: float, high: float, above: bool) -> str:
    if math.isinf(high):
        return f"above {low:g}" if above else f"of at least {low:g}"
    return f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
