"""Profiles: a choice of observer and four stages, by name.

Your own profile subclasses a built-in one and replaces a stage:

    from g2uardfl.defense.agreement import Default

    class Mine(Default):
        clustering = MyClustering

    guard = g2uardfl.G2uardFL(profile="my_module:Mine")
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from ..core.errors import ConfigError
from ..core.registry import Registry
from ..core.settings import build, unknown_setting
from .observation import Observer
from .stages import Clustering, Construction, Elimination, Filtering, Stage


class Profile:
    """A choice of one class for each part of a guard."""

    summary: ClassVar[str]
    """One line."""
    observer: ClassVar[type[Observer]]
    construction: ClassVar[type[Construction[Any, Any]]]
    clustering: ClassVar[type[Clustering[Any, Any, Any]]]
    filtering: ClassVar[type[Filtering[Any, Any, Any, Any]]]
    elimination: ClassVar[type[Elimination[Any, Any]]]

    @classmethod
    def parts(cls) -> dict[str, type[Stage]]:
        """The parts by name, in the order of a round."""
        return {name: getattr(cls, name) for name in PARTS}

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """All settings of the profile with their defaults."""
        return {item.name: item.default for part in cls.parts().values() for item in dataclasses.fields(part.Settings)}


DEFAULT = "default"
"""The name of the default profile."""
PARTS = ("observer", "construction", "clustering", "filtering", "elimination")

_registry = Registry(
    "profile",
    "g2uardfl.defense.profiles:Profile",
    {DEFAULT: "g2uardfl.defense.agreement:Default", "paper": "g2uardfl.defense.paper:Paper"},
)


def names() -> list[str]:
    """The built-in profiles."""
    return _registry.names()


def find(name: str) -> type[Profile]:
    """The profile behind a built-in name or `package.module:ClassName`."""
    return cast("type[Profile]", _registry.find(name))


def build_parts(profile: str, seed: int, values: Mapping[str, Any]) -> dict[str, Stage]:
    """The parts of a guard with their settings; raises ConfigError for a setting that the profile does not have."""
    found = find(profile)
    known = found.defaults()
    for name in values:
        if name not in known:
            raise _misplaced(name, profile, known)
    parts = {}
    for part, kind in found.parts().items():
        own = {item.name for item in dataclasses.fields(kind.Settings)}
        settings: Any = build(kind.Settings, {name: value for name, value in values.items() if name in own})
        parts[part] = kind(settings, seed)
    return parts


def _misplaced(name: str, profile: str, known: Mapping[str, Any]) -> ConfigError:
    """The error for a setting that `profile` does not have."""
    for other in names():
        if other != profile and name in find(other).defaults():
            return ConfigError(
                f"{name} is a setting of profile={other!r}, not of profile={profile!r}: "
                f"leave it out, or choose profile={other!r}"
            )
    return unknown_setting(name, ["profile", "seed", *known])
