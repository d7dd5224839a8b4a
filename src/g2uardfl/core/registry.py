"""One registry for everything that is chosen by name: aggregators, attacks and tasks.

A name is either one of ours (`"fedavg"`) or the address of somebody else's class (`"package.module:ClassName"`), so
that a third party plugs in without touching this package. Classes are imported when they are asked for, not before.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from .errors import ConfigError


class Registry:
    """Maps names to the addresses of classes and imports them on demand.

    >>> Registry("number", "numbers:Number", {"fraction": "fractions:Fraction"}).find("decimal:Decimal").__name__
    'Decimal'
    """

    def __init__(self, kind: str, base: str, addresses: Mapping[str, str]) -> None:
        self.kind = kind
        self._base = base
        """The address of the class that every one of them subclasses."""
        self._addresses = dict(addresses)

    def names(self) -> list[str]:
        """The built-in names, in their documented order."""
        return list(self._addresses)

    def find(self, name: str) -> type[Any]:
        """The class behind `name`, which is a built-in name or `package.module:ClassName`."""
        address = self._addresses.get(name, name)
        module_name, separator, class_name = address.partition(":")
        if not separator:
            known = ", ".join(self._addresses)
            raise ConfigError(
                f"unknown {self.kind} {name!r}: choose one of {known}, or give your own as package.module:ClassName"
            )
        try:
            found = getattr(importlib.import_module(module_name), class_name)
        except ImportError as error:
            raise ConfigError(f"{self.kind} {name!r}: cannot import {module_name} ({error})") from error
        except AttributeError as error:
            raise ConfigError(f"{self.kind} {name!r}: module {module_name} has no {class_name}") from error
        if not isinstance(found, type):
            raise ConfigError(f"{self.kind} {name!r}: {class_name} is not a class")
        if name not in self._addresses:
            home, _, base = self._base.partition(":")
            if not issubclass(found, getattr(importlib.import_module(home), base)):
                raise ConfigError(f"{self.kind} {name!r}: {class_name} must subclass {home}.{base}")
        return found
