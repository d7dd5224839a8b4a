"""Synthetic federations: honest clients send independent noise, attackers also send one common direction."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from g2uardfl.aggregators.base import AggregationResult, Aggregator
from helpers.models import batch_norm_model

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


# Federations of any model, also with running statistics and counters.

PRECISIONS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, "numpy")


def converted(model: Model, precision: torch.dtype | str) -> Model:
    """A state dict in a precision of torch, or as NumPy arrays."""
    if precision == "numpy":
        return {name: value.numpy().copy() for name, value in model.items()}
    return {name: value.to(precision) if value.is_floating_point() else value.clone() for name, value in model.items()}


def widened(model: Model) -> Model:
    """The same values in precisions that NumPy has: float64 holds every value of the smaller ones."""
    return {
        name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in model.items()
    }


def trained(model: Model, seed: int, attacks: bool = False) -> Model:
    """A client's model: independent noise, for an attacker plus a common direction; statistics also change."""
    own, backdoor = np.random.default_rng(seed), np.random.default_rng(99)
    result = {}
    for name, value in model.items():
        noise, common = own.normal(size=tuple(value.shape)), backdoor.normal(size=tuple(value.shape))
        if name.endswith("num_batches_tracked"):
            result[name] = value + 7
        elif name.endswith("running_var"):
            result[name] = value * 1.25
        else:
            wide = np.asarray(value) if isinstance(value, np.ndarray) else value.double().numpy()
            moved = wide + 0.05 * (0.3 * noise + common if attacks else noise) + name.endswith("running_mean")
            like_value = isinstance(value, np.ndarray)
            result[name] = moved.astype(value.dtype) if like_value else torch.from_numpy(moved).to(value.dtype)
    return result


ATTACKERS_OF_ROUND = ([], [0], [1], [2, 3, 4], [5, 6], [])
"""Attackers come one by one and are accepted, until three of one round form a group with them."""


def run_late_detection(
    rule: Aggregator, rounds: int = 4, model: Model | None = None, first: int = 1, **options: Any
) -> list[AggregationResult]:
    """The results of rounds of nine clients who never return, and of the attackers of each round."""
    model, results = batch_norm_model() if model is None else model, []
    for number in range(first, first + rounds):
        attackers = ATTACKERS_OF_ROUND[(number - 1) % len(ATTACKERS_OF_ROUND)]
        clients = [*attackers, *range(10 * number, 10 * number + 9)]
        sent = {client: trained(model, 1000 * number + client, client in attackers) for client in clients}
        results.append(rule.aggregate(model, sent, round_number=number, **options))
        model = results[-1].weights
    return results
