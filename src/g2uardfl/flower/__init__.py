"""g2uardfl in a Flower federation: strategies for the server, an audit of every verdict, and red-team mods for clients.

>>> from g2uardfl.flower import G2uardFLStrategy  # doctest: +SKIP
>>> strategy = G2uardFLStrategy(state_path="guard.state", audit_path="audit.jsonl")  # doctest: +SKIP

It needs Flower: `pip install "g2uardfl[flower]"`. Reading an audit file does not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..federation.audit import Audit
    from .arrays import array_record, state_dict
    from .guard_strategy import G2uardFLStrategy
    from .strategy import AggregatorStrategy

__all__ = ["AggregatorStrategy", "Audit", "G2uardFLStrategy", "array_record", "mods", "state_dict"]

_HOMES = {
    "AggregatorStrategy": ".strategy",
    "Audit": "..federation.audit",
    "G2uardFLStrategy": ".guard_strategy",
    "array_record": ".arrays",
    "state_dict": ".arrays",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: neither Flower nor torch is loaded before."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(_HOMES.get(name, f".{name}"), __name__)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        raise ModuleNotFoundError(
            f"g2uardfl.flower.{name} needs Flower: pip install 'g2uardfl[flower]'", name=error.name
        ) from error
    return getattr(module, name) if name in _HOMES else module


def __dir__() -> list[str]:
    return sorted(__all__)
