"""Registry of classes that users select by name: aggregators, attacks and tasks.

A name is either built-in (`"fedavg"`) or the import path of any class (`"package.module:ClassName"`), so that third
parties add their own without changing this package. A class is imported on first use.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from .errors import ConfigError


class Registry:
    """Maps names to the import paths of classes and imports them on demand.

    Parameters
    ----------
    kind
        What the classes are, for error messages.
    base
        The import path of the class that every registered class subclasses.
    paths
        Built-in name -> import path, as `"package.module:ClassName"`.

    >>> Registry("number", "numbers:Number", {"fraction": "fractions:Fraction"}).find("decimal:Decimal").__name__
    'Decimal'
    """

    def __init__(self, kind: str, base: str, paths: Mapping[str, str]) -> None:
        self.kind = kind
        self._base = base
        self._paths = dict(paths)

    def names(self) -> list[str]:
        """The built-in names, in their documented order."""
        return list(self._paths)

    def find(self, name: str) -> type[Any]:
        """The class called `name`, a built-in name or `package.module:ClassName`."""
        path = self._paths.get(name, name)
        module_name, separator, class_name = path.partition(":")
        if not separator:
            known = ", ".join(self._paths)
            raise ConfigError(
                f"unknown {self.kind} {name!r}: choose one of {known}, or pass your own as package.module:ClassName"
            )
        try:
            found = getattr(importlib.import_module(module_name), class_name)
        except ImportError as error:
            raise ConfigError(f"{self.kind} {name!r}: cannot import {module_name} ({error})") from error
        except AttributeError as error:
            raise ConfigError(f"{self.kind} {name!r}: module {module_name} has no {class_name}") from error
        if not isinstance(found, type):
            raise ConfigError(f"{self.kind} {name!r}: {class_name} is not a class")
        if name not in self._paths:
            base_module, _, base = self._base.partition(":")
            if not issubclass(found, getattr(importlib.import_module(base_module), base)):
                raise ConfigError(f"{self.kind} {name!r}: {class_name} must subclass {base_module}.{base}")
        return found
