"""All attacks by name. The adaptive ones wrap any other: `randomized(black_box)`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from ..core.constructors import construct
from ..core.errors import ConfigError
from ..core.registry import Registry

if TYPE_CHECKING:
    from .base import Attack

_registry = Registry(
    "attack",
    "g2uardfl.attacks.base:Attack",
    {
        "none": "g2uardfl.attacks.none:NoAttack",
        "black_box": "g2uardfl.attacks.black_box:BlackBox",
        "pgd": "g2uardfl.attacks.pgd:PGD",
        "pgd_replacement": "g2uardfl.attacks.pgd:PGDReplacement",
        "constrain_and_scale": "g2uardfl.attacks.constrain_and_scale:ConstrainAndScale",
        "dba": "g2uardfl.attacks.dba:DBA",
        "three_d_fed": "g2uardfl.attacks.three_d_fed:ThreeDFed",
        "dynamic_pdr": "g2uardfl.attacks.adaptive:DynamicPDR",
        "model_obfuscation": "g2uardfl.attacks.adaptive:ModelObfuscation",
        "randomized": "g2uardfl.attacks.adaptive:Randomized",
    },
)


def names() -> list[str]:
    """The built-in attacks."""
    return _registry.names()


def find(name: str) -> type[Attack]:
    """The attack class behind a built-in name, `package.module:ClassName` or `FILE.py:ClassName`."""
    return cast("type[Attack]", _registry.find(name))


def create(name: str, /, **settings: Any) -> Attack:
    """Make an attack that is ready for its first round; `wrapper(name)` wraps one attack in another.

    >>> create("randomized(black_box)", probability=0.1).inner.name
    'black_box'
    """
    wrapped = re.fullmatch(r"\s*([^()]+?)\s*\((.*)\)\s*", name)
    if wrapped is None:
        return construct(find(name.strip()), settings)
    from .adaptive import Wrapper

    outer, inner = find(wrapped[1]), wrapped[2]
    if not issubclass(outer, Wrapper):
        raise ConfigError(f"attack {wrapped[1]} cannot wrap {inner}: only wrappers such as randomized can")
    if "attack" in settings:
        raise ConfigError(f"{name} names the inner attack: leave out the setting attack={settings['attack']!r}")
    return construct(outer, {"attack": inner, **settings})
