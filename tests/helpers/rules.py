"""Every aggregation rule, with settings that make it fast."""

from __future__ import annotations

from typing import Any

from g2uardfl import aggregators
from g2uardfl.aggregators import Aggregator
from g2uardfl.aggregators.context import NeedsServer
from helpers.models import StandInServer, odd_mlp

RULES: dict[str, dict[str, Any]] = {name: {} for name in aggregators.names()} | {
    "deepsight": {"random_inputs": 64},
    "foolsgold with history": {"history": True},
    "g2uardfl, paper": {"profile": "paper", "pretrain_epochs": 5, "cluster_epochs": 5},
}
"""The settings of every rule by a label that begins with its name."""

WITH_MEMORY = ("foolsgold with history", "g2uardfl", "g2uardfl, paper")
"""The rules that remember earlier rounds."""


def make(rule: str, model: dict | None = None, **changes: Any) -> Aggregator:
    """A rule by its label, with seed 0 where it takes one; a stand-in server for those that need one."""
    name = rule.replace(",", "").split()[0]
    seed = {"seed": 0} if aggregators.find(name).takes_seed else {}
    made = aggregators.create(name, **{**RULES[rule], **seed, **changes})
    if isinstance(made, NeedsServer):
        made.attach(StandInServer(model or odd_mlp()))
    return made
