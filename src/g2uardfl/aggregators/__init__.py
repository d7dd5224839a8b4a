"""Every way to combine client models, ours and the baselines, behind one interface."""

from __future__ import annotations

from typing import Any, cast

from ..aggregation import Aggregator
from ..registry import Registry

_registry = Registry(
    "defense",
    {
        "fedavg": "g2uardfl.aggregators.fedavg:FedAvg",
        "g2uardfl": "g2uardfl.defense.guard:G2uardFL",
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
