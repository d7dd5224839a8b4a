"""Checks of the constructors of rules and attacks against their settings and docstrings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import re
from typing import Any

CONSTANTS = {"inf": math.inf, "1/3": 1 / 3}
"""Defaults that are written as no literal of Python."""


def settings_of(kind: Any) -> dict[str, Any]:
    """The default of every setting of a rule or an attack."""
    return {item.name: item.default for item in dataclasses.fields(kind.Settings)}


def keyword_defaults(kind: Any) -> dict[str, Any]:
    """The default of every keyword-only argument of the constructor."""
    parameters = inspect.signature(kind).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}


def unnamed_arguments(kind: Any) -> list[str]:
    """The arguments of the constructor that stand for any others."""
    parameters = inspect.signature(kind).parameters.values()
    return [one.name for one in parameters if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]


def documented_defaults(kind: Any) -> dict[str, Any]:
    """The "(default: ...)" of every entry of the docstring's Parameters section."""
    found = re.search(r"Parameters\n-+\n(.*?)(?:\n\n|\Z)", inspect.getdoc(kind) or "", flags=re.DOTALL)
    entries = re.split(r"^(\S+)\n", found[1] if found else "", flags=re.MULTILINE)[1:]
    defaults = {}
    for name, text in zip(entries[::2], entries[1::2], strict=True):
        written = re.search(r"\(default:\s+(.*?)\)\.", text, flags=re.DOTALL)
        if written:
            defaults[name] = CONSTANTS[written[1]] if written[1] in CONSTANTS else ast.literal_eval(written[1])
    return defaults


def other_values(kind: Any) -> dict[str, Any]:
    """For every setting an allowed value that is not its default."""
    values: dict[str, Any] = {}
    for item in dataclasses.fields(kind.Settings):
        default = item.default
        if isinstance(default, bool):
            values[item.name] = not default
        elif isinstance(default, str):
            values[item.name] = next((name for name in item.metadata.get("options", ()) if name != default), "another")
        elif default is None:
            values[item.name] = max(1, item.metadata["low"])
        elif isinstance(default, int):
            values[item.name] = default + 1
        else:
            halfway = (min(default, 2.0) + item.metadata["low"]) / 2
            values[item.name] = default + 1 if halfway == default else halfway
    return values


def impossible_values(kind: Any) -> dict[str, Any]:
    """For every setting a value that is not allowed."""
    values: dict[str, Any] = {}
    for item in dataclasses.fields(kind.Settings):
        if "low" in item.metadata:
            values[item.name] = item.metadata["low"] - (0 if item.metadata["above"] else 1)
        elif item.metadata:
            values[item.name] = "impossible"
    return values
