"""Every way to combine client models, ours and the baselines, behind one interface."""

from __future__ import annotations

from typing import Any, cast

from ..core.registry import Registry
from .base import Aggregator

_registry = Registry(
    "defense",
    "g2uardfl.aggregators.base:Aggregator",
    {
        "fedavg": "g2uardfl.aggregators.fedavg:FedAvg",
        "g2uardfl": "g2uardfl.defense.guard:G2uardFL",
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
    """The class behind a built-in name or `package.module:ClassName`."""
    return cast("type[Aggregator]", _registry.find(name))


def create(name: str, **params: Any) -> Aggregator:
    """Make an aggregator ready for its first round.

    >>> create("fedavg").name
    'fedavg'
    """
    return find(name)(**params)
