"""The rule of a strategy, by name or as an object."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from .. import aggregators
from ..aggregators.base import Aggregator
from ..core.errors import ConfigError


def rule_of(aggregator: str | Aggregator, settings: Mapping[str, Any], keywords: Iterable[str]) -> Aggregator:
    """The rule of a strategy that takes `keywords`; the error suggests them for a misspelt name, too."""
    if not isinstance(aggregator, str):
        if settings:
            raise ConfigError(
                "Pass settings only together with a rule name; an Aggregator object is already configured."
            )
        return aggregator
    try:
        return aggregators.create(aggregator, **settings)
    except (ConfigError, TypeError) as error:
        for name in settings:
            meant = difflib.get_close_matches(name, list(keywords), 1, 0.8)
            if meant and repr(name) in str(error):
                raise ConfigError(f"unknown setting {name!r}: did you mean {meant[0]}?") from None
        raise
