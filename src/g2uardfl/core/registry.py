"""Registry of classes that users select by name: aggregators, attacks, tasks and profiles.

A name is built-in (`"fedavg"`), the import path of any class (`"package.module:ClassName"`) or a class in a file
(`"folder/mine.py:ClassName"`), so that third parties can add their own without changing this package. A class is
imported on first use.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import ConfigError
from .text import suggestion


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
        """The class called `name`: a built-in name, `package.module:ClassName` or `FILE.py:ClassName`."""
        if name in self._paths:
            module_name, _, class_name = self._paths[name].partition(":")
            found: type[Any] = getattr(importlib.import_module(module_name), class_name)
            return found
        place, separator, class_name = name.rpartition(":")
        if not separator and name.endswith(".py"):
            place, class_name = name, ""
        elif not separator:
            raise ConfigError(
                f"unknown {self.kind} {name!r}: {suggestion(name, self.names())} "
                "(or write package.module:ClassName or FILE.py:ClassName for your own)"
            )
        return self._own_class(name, self._import(name, place), class_name)

    def _import(self, name: str, place: str) -> ModuleType:
        """Import the module of a custom class."""
        try:
            return import_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        except ConfigError as error:
            raise ConfigError(f"{self.kind} {name!r}: {error}") from error
        except ImportError as error:
            raise ConfigError(f"{self.kind} {name!r}: cannot import {place} ({error})") from error
        except Exception as error:  # third-party code can raise anything
            raise ConfigError(f"{self.kind} {name!r}: {place} raises {type(error).__name__}: {error}") from error

    def _own_class(self, name: str, module: ModuleType, class_name: str) -> type[Any]:
        """A class of a module, if it can be used in place of the built-in ones."""
        base_module, _, base_name = self._base.partition(":")
        base = getattr(importlib.import_module(base_module), base_name)
        classes = {key: value for key, value in vars(module).items() if isinstance(value, type)}
        suitable = [key for key, one in classes.items() if issubclass(one, base) and one.__module__ == module.__name__]
        if not hasattr(module, class_name):
            hint = suggestion(class_name, suitable) if suitable else f"it has no subclass of {base_module}.{base_name}"
            what = f"has no {class_name}" if class_name else "is not a class"
            raise ConfigError(f"{self.kind} {name!r}: module {module.__name__} {what}: {hint}")
        found = getattr(module, class_name)
        if not isinstance(found, type):
            raise ConfigError(f"{self.kind} {name!r}: {class_name} is not a class")
        if not issubclass(found, base):
            raise ConfigError(f"{self.kind} {name!r}: {class_name} must subclass {base_module}.{base_name}")
        for attribute in ("name", "summary"):
            if attribute in getattr(base, "__annotations__", {}) and not hasattr(found, attribute):
                raise ConfigError(f"{self.kind} {name!r}: {class_name} needs a class attribute `{attribute}`, a string")
        return found


def import_file(path: Path) -> ModuleType:
    """The module in a file. Its folder joins the import path, so that worker processes find the module, too."""
    file = path.expanduser().resolve()
    if not file.is_file():
        raise ConfigError(f"there is no file {path}")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    importlib.invalidate_caches()
    module = importlib.import_module(file.stem)
    if getattr(module, "__file__", None) is None or Path(str(module.__file__)).resolve() != file:
        raise ConfigError(f"another module is called {file.stem}, too: rename {path}")
    return module


def absolute(name: str) -> str:
    """`name` with the absolute path of its file, if it is `FILE.py:ClassName`; for configs that are read elsewhere.

    >>> absolute("fedavg"), absolute("package.module:ClassName")
    ('fedavg', 'package.module:ClassName')
    """
    place, _, class_name = name.rpartition(":")
    return f"{Path(place).expanduser().resolve()}:{class_name}" if place.endswith(".py") else name
