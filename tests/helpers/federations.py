"""Synthetic federations: honest clients send independent noise, attackers beside it one direction that all share."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from g2uardfl.aggregators.base import AggregationResult, Aggregator

SHAPES = {"a.weight": (24, 16), "b.weight": (16, 24), "c.weight": (8, 16)}
CLIENTS, PER_ROUND = 40, 10
ATTACKERS = frozenset(range(8))
STEP = 0.01
"""The standard deviation of an update's entries."""

Model = dict[str, Any]


def drawn(*seed: int) -> dict[str, np.ndarray]:
    """Normally distributed values in the shapes of the model."""
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape) for name, shape in SHAPES.items()}


def first_model() -> Model:
    """The global model before the first round."""
    return {name: value.astype(np.float32) for name, value in drawn(99).items()}


def selected(seed: int, number: int) -> list[int]:
    """The clients of round `number`."""
    return np.random.default_rng([seed, number]).choice(CLIENTS, PER_ROUND, replace=False).tolist()


def message(model: Model, seed: int, number: int, client: int, attacks: bool = False, scale: float = 1.0) -> Model:
    """What a client sends; its update is `scale` times as large as usual."""
    update = drawn(seed, number, client + 1)
    if attacks:
        backdoor = drawn(seed, 0, 0)
        update = {name: 0.8 * update[name] + 0.6 * backdoor[name] for name in update}
    return {name: (model[name] + scale * STEP * update[name]).astype(np.float32) for name in model}


def messages(
    model: Model, seed: int, number: int, clients: Iterable[int], attackers: Collection[int] = ATTACKERS
) -> dict[int, Model]:
    """What the clients of a round send."""
    return {client: message(model, seed, number, client, client in attackers) for client in clients}


def with_one(model: Model, number: int, scale: float, client: int = 4) -> dict[int, Model]:
    """What ten honest clients send, of whom one sends an update `scale` times as large as usual."""
    return messages(model, 3, number, range(10), ()) | {client: message(model, 3, number, client, scale=scale)}


@dataclass(frozen=True)
class Federation:
    """Rounds of ten of forty clients, of whom eight attack."""

    seed: int = 0
    attackers: Collection[int] = ATTACKERS

    def messages(self, model: Model, number: int) -> dict[int, Model]:
        """What the clients of round `number` send."""
        return messages(model, self.seed, number, selected(self.seed, number), self.attackers)

    def run(
        self, rule: Aggregator, rounds: int, model: Model | None = None, first: int = 1, **options: Any
    ) -> list[AggregationResult]:
        """The results of `rounds` rounds from round `first` on."""
        model, results = first_model() if model is None else model, []
        for number in range(first, first + rounds):
            results.append(rule.aggregate(model, self.messages(model, number), round_number=number, **options))
            model = results[-1].weights
        return results
