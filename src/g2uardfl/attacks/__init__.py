"""The attacks, each in one file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ..registry import Registry

if TYPE_CHECKING:
    from .base import Attack

_registry = Registry(
    "attack",
    {
        "none": "g2uardfl.attacks.none:NoAttack",
        "black_box": "g2uardfl.attacks.black_box:BlackBox",
    },
)


def names() -> list[str]:
    """The built-in attacks."""
    return _registry.names()


def find(name: str) -> type[Attack]:
    """The attack class behind a built-in name or `package.module:ClassName`."""
    return cast("type[Attack]", _registry.find(name))


def create(name: str, **settings: Any) -> Attack:
    """Make an attack ready for its first round."""
    return find(name)(**settings)
