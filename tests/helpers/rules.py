"""Every rule by a label, ready for its first round."""

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


def make(rule: str, model: dict[str, Any] | None = None, **changes: Any) -> Aggregator:
    """The rule with this label, with a server for models like `model` where it needs one."""
    made = aggregators.create(rule.replace(",", "").split()[0], **RULES[rule], **changes)
    if isinstance(made, NeedsServer):
        made.attach(StandInServer(model or odd_mlp()))
    return made
