"""The contract of rules, attacks and tasks as checks, for `g2uardfl check` and for the tests of the built-in ones."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core.constructors import construct
from ..core.errors import ConfigError

Make = Callable[[], Any]
"""Makes a fresh rule, attack or task."""


class BrokenError(Exception):
    """A guarantee does not hold; the message says what happened instead."""


@dataclass(frozen=True)
class Check:
    """One guarantee; `run` raises an exception where it does not hold."""

    title: str
    run: Callable[[Make], None]

    def problem(self, make: Make) -> str:
        """What is wrong with the objects that `make` makes; "" if the guarantee holds."""
        try:
            self.run(make)
        except BrokenError as error:
            return str(error)
        except Exception as error:  # a plug-in may raise anything
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{place.filename.rpartition('/')[2]}, line {place.lineno}"
            return f"{type(error).__name__}: {' '.join(str(error).split())} ({where})"
        return ""


def require(holds: object, problem: str) -> None:
    """Raise `BrokenError` unless `holds`."""
    if not holds:
        raise BrokenError(problem)


def checks_for(kind: type[Any]) -> list[Check]:
    """The checks for a class: a rule, an attack or a task."""
    from ..aggregators.base import Aggregator
    from ..attacks.base import Attack

    module = "rules" if issubclass(kind, Aggregator) else "attacks" if issubclass(kind, Attack) else "tasks"
    checks: list[Check] = importlib.import_module(f".{module}", __name__).CHECKS
    return checks


def check_settings(make: Make) -> None:
    """An unknown setting is rejected, and the representation shows the others."""
    made = make()
    settings = vars(made.settings) if hasattr(made, "settings") else made.configuration()
    for name, value in settings.items():
        require(f"{name}={value!r}" in repr(made), f"the representation {made!r} does not show {name}={value!r}")
    try:
        construct(type(made), {"no_such_setting": 1})
    except ConfigError:
        return
    require(False, "the constructor takes no_such_setting=1 without an error")
