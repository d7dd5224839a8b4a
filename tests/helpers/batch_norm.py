"""A federation that trains a small model with BatchNorm on the digits, and clients that send false statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from g2uardfl.aggregators import AggregationResult, Aggregator
from g2uardfl.simulation.partition import partition
from g2uardfl.tasks.digits import Digits
from g2uardfl.training.local import Job, Recipe, share_predicted, train_locally
from helpers.models import seeded

Model = dict[str, Any]
Lie = Callable[[Model], Model]
"""What a client sends instead of the model that it trained."""

CLIENTS = 10


class BatchNormDigits(Digits):
    """The digits, and a small CNN with BatchNorm."""

    def build_model(self) -> nn.Module:
        first = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        second = nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()
        return nn.Sequential(*first, *second, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10))


task = cache(BatchNormDigits)


@dataclass
class DigitsFederation:
    """Ten clients that train from the first round on, with data divided by a Dirichlet distribution."""

    rule: Aggregator
    alpha: float
    seed: int

    def __post_init__(self) -> None:
        with seeded(self.seed):
            self.module = task().build_model()
        self.weights: Model = {name: value.clone() for name, value in self.module.state_dict().items()}
        shares = partition(task().train.y.numpy(), CLIENTS, self.alpha, self.seed)
        self.samples = [task().train.take(torch.from_numpy(share)) for share in shares]
        self.round = 0

    def run(self, rounds: int, attackers: dict[int, Lie] | None = None) -> list[AggregationResult]:
        """Further rounds, in which some clients attack."""
        return [self.finish_round(self.train(), attackers or {}) for _ in range(rounds)]

    def train(self) -> dict[int, Model]:
        """The models that all clients train in the next round."""
        recipe = Recipe(lr=0.05, batch_size=32, epochs=1, steps=0, momentum=0.9, weight_decay=1e-4)
        first_seed = 10_000 * self.seed + 100 * (self.round + 1)
        jobs = [Job(client, self.samples[client], recipe, first_seed + client) for client in range(CLIENTS)]
        return {job.client: train_locally(task(), self.module, self.weights, job) for job in jobs}

    def finish_round(self, trained: dict[int, Model], attackers: dict[int, Lie]) -> AggregationResult:
        """Aggregate what the clients trained, and what attackers send instead."""
        self.round += 1
        sent = trained | {client: lie(trained[client]) for client, lie in attackers.items()}
        counts = {client: len(samples) for client, samples in enumerate(self.samples)}
        result = self.rule.aggregate(self.weights, sent, counts)
        self.weights = result.weights
        return result

    def accuracy(self) -> float:
        """The accuracy of the global model, in percent."""
        self.module.load_state_dict(self.weights)
        return 100 * share_predicted(task(), self.module, task().test)


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Lie:
    """A false value for all arrays whose names end with `name`."""
    return lambda sent: {key: change(value) if key.endswith(name) else value for key, value in sent.items()}


def flagged(result: AggregationResult) -> list[Any]:
    """The clients that are malicious because of their statistics or counters."""
    return [client for client, verdict in result.verdicts.items() if "is far outside what" in verdict.reason]
