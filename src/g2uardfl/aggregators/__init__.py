"""All aggregation rules (defences and baselines) by name, and the base class of custom rules.

>>> from g2uardfl.aggregators import Aggregator, create
>>> isinstance(create("krum", malicious_clients=1), Aggregator)
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, cast

from ..core.constructors import construct
from ..core.registry import Registry

if TYPE_CHECKING:
    from .base import AggregationResult, Aggregator, Event, Outcome, Round, RoundReport, Verdict

__all__ = [
    "AggregationResult",
    "Aggregator",
    "Event",
    "Outcome",
    "Round",
    "RoundReport",
    "Verdict",
    "create",
    "find",
    "names",
]

_registry = Registry(
    "defense",
    "g2uardfl.aggregators.base:Aggregator",
    {
        "fedavg": "g2uardfl.aggregators.fedavg:FedAvg",
        "g2uardfl": "g2uardfl.defense.g2uardfl:G2uardFL",
        "krum": "g2uardfl.aggregators.krum:Krum",
        "multi_krum": "g2uardfl.aggregators.multi_krum:MultiKrum",
        "rfa": "g2uardfl.aggregators.rfa:RFA",
        "ndc": "g2uardfl.aggregators.ndc:NDC",
        "weak_dp": "g2uardfl.aggregators.weak_dp:WeakDP",
        "foolsgold": "g2uardfl.aggregators.foolsgold:FoolsGold",
        "rlr": "g2uardfl.aggregators.rlr:RLR",
        "fltrust": "g2uardfl.aggregators.fltrust:FLTrust",
        "flame": "g2uardfl.aggregators.flame:FLAME",
        "deepsight": "g2uardfl.aggregators.deepsight:DeepSight",
        "median": "g2uardfl.aggregators.median:Median",
        "trimmed_mean": "g2uardfl.aggregators.trimmed_mean:TrimmedMean",
        "bulyan": "g2uardfl.aggregators.bulyan:Bulyan",
    },
)


def names() -> list[str]:
    """The built-in defences and baselines."""
    return _registry.names()


def find(name: str) -> type[Aggregator]:
    """The class behind a built-in name, `package.module:ClassName` or `FILE.py:ClassName`."""
    return cast("type[Aggregator]", _registry.find(name))


def create(name: str, /, **params: Any) -> Aggregator:
    """Make an aggregator that is ready for its first round.

    >>> create("krum", malicious_clients=1)
    Krum(malicious_clients=1)
    """
    return construct(find(name), params)


def __getattr__(name: str) -> Any:
    """Import the interface of rules when it is first used, so that `names` does not import torch."""
    if name in __all__:
        return getattr(importlib.import_module(".base", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
