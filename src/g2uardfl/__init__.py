"""g2uardfl: backdoor defences for federated learning.

>>> import g2uardfl
>>> guard = g2uardfl.G2uardFL()
>>> result = guard.aggregate(global_weights, client_weights)  # doctest: +SKIP
>>> result.verdicts["client-7"].reason  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from . import aggregators, attacks, tasks
    from .aggregators.base import AggregationResult, Aggregator, Verdict
    from .api import Run, simulate
    from .core.errors import ConfigError, DataError, G2uardFLError, StateError
    from .defense.g2uardfl import G2uardFL
    from .experiments.tables import RunTables, load_runs
    from .simulation.run import Callback

__all__ = [
    "AggregationResult",
    "Aggregator",
    "Callback",
    "ConfigError",
    "DataError",
    "G2uardFL",
    "G2uardFLError",
    "Run",
    "RunTables",
    "StateError",
    "Verdict",
    "__version__",
    "aggregators",
    "attacks",
    "load_runs",
    "simulate",
    "tasks",
]

_MODULES = {
    "AggregationResult": ".aggregators.base",
    "Aggregator": ".aggregators.base",
    "Callback": ".simulation.run",
    "ConfigError": ".core.errors",
    "DataError": ".core.errors",
    "G2uardFL": ".defense.g2uardfl",
    "G2uardFLError": ".core.errors",
    "Run": ".api",
    "RunTables": ".experiments.tables",
    "StateError": ".core.errors",
    "Verdict": ".aggregators.base",
    "load_runs": ".experiments.tables",
    "simulate": ".api",
}
"""Public name -> the module that defines it."""


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that the command line starts without importing torch."""
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name], __name__), name)
    if name in ("aggregators", "attacks", "tasks"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
