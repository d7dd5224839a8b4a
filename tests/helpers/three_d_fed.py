"""Rounds of FedAvg on digits under 3DFed, in which the server leaves out or clips updates or adds noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from g2uardfl import aggregators
from g2uardfl.attacks.base import Model, Turn
from g2uardfl.attacks.three_d_fed import ThreeDFed
from g2uardfl.tasks.base import Task
from g2uardfl.training.engine import LoopEngine
from g2uardfl.training.local import Job
from helpers import attacking
from helpers.attacking import enlisted, own_samples, training_turn
from helpers.models import Patches

RECIPE = dataclasses.replace(attacking.RECIPE, epochs=2)
COUNTS = dict(enumerate([31, 28, 33, 30, 25, 30, 36, 27, 38, 24]))
"""The number of samples of each client."""
TEAM = (0, 1, 2, 3)
TARGET = 8
CONVOLUTION, OUTPUT = "conv2.weight", "fc2.weight"


class SmoothPatches(Patches):
    """A task with second derivatives and a convolution of 18 weights."""

    channels = 2
    activation = nn.Tanh


@dataclass
class PlayedRound:
    """What happened in a round."""

    turn: Turn
    before: Model
    trained: dict[Any, Model]
    sent: dict[int, Model]
    after: dict[str, Tensor]

    def update(self, client: int, name: str) -> Tensor:
        """The update that a client sent of one array, in float64."""
        return self.sent[client][name].double() - self.before[name].double()


def three_d_fed(task: Task, team: Collection[int] = TEAM, **settings: Any) -> ThreeDFed:
    """The attack, ready for its first round."""
    return enlisted("three_d_fed", task, team, **settings)


def turn_of(attack: ThreeDFed, weights: Model, number: int = 1, selected: Collection[int] = tuple(COUNTS)) -> Turn:
    """A round that selects some of the clients of COUNTS."""
    return training_turn(attack, weights, COUNTS, RECIPE, number, list(selected))


def play(
    attack: ThreeDFed,
    weights: Model,
    number: int = 1,
    *,
    selected: Collection[int] = tuple(COUNTS),
    rejected: Collection[int] = (),
    clipped: Mapping[int, float] | None = None,
    noise: float = 0.0,
) -> PlayedRound:
    """One round in which the server rejects some clients, scales the updates of others, and adds noise."""
    task = attack.task
    turn = turn_of(attack, weights, number, selected)
    attack.observe(turn)
    jobs = attack.jobs(turn)
    honest = {
        client: Job(client, own_samples(task, COUNTS, client), RECIPE, 1000 * number + client)
        for client in selected
        if client not in attack.team
    }
    models = LoopEngine(task, task.build_model()).train(weights, [*jobs.values(), *honest.values()])
    trained = dict(zip(jobs, models, strict=False))
    sent = dict(attack.submissions(turn, trained))
    received = sent | dict(zip(honest, models[len(jobs) :], strict=True))
    for client, factor in (clipped or {}).items():
        received[client] = {
            name: value + (factor - 1) * (value - weights[name]) for name, value in received[client].items()
        }
    received = {client: model for client, model in received.items() if client not in rejected}
    after = aggregators.create("fedavg").aggregate(weights, received, COUNTS).weights
    generator = torch.Generator().manual_seed(99)
    if noise:
        after = {name: value + noise * torch.randn(value.shape, generator=generator) for name, value in after.items()}
    return PlayedRound(turn, weights, trained, sent, after)


def memory(attack: ThreeDFed) -> dict[str, Any]:
    """The values that the attack remembers."""
    return dict(attack.state().values)


def observe(attack: ThreeDFed, weights: Model, number: int) -> None:
    """Let the attack observe the global model of a round."""
    attack.observe(turn_of(attack, weights, number))


def norm(update: Model) -> float:
    """The norm over all arrays, in float64."""
    return sum(float(value.double().square().sum()) for value in update.values()) ** 0.5


def invented(
    task: Task, start: Model, backdoor_norm: float, reference_norm: float, seed: int = 0
) -> dict[str, dict[str, Tensor]]:
    """Random results of training whose updates have the given norms."""
    generator = torch.Generator().manual_seed(seed)
    trained = {}
    for key, size in (("backdoor", backdoor_norm), ("reference", reference_norm)):
        update = {
            name: torch.randn(value.shape, generator=generator) for name, value in task.build_model().named_parameters()
        }
        factor = size / norm(update)
        trained[key] = {
            name: value + factor * update[name] if name in update else value for name, value in start.items()
        }
    return trained


def unmasked(round_: PlayedRound) -> dict[str, Tensor]:
    """The backdoor's update without mask and indicator, in float64."""
    updates = {
        key: {name: model[name].double() - round_.before[name].double() for name in model}
        for key, model in round_.trained.items()
    }
    factor = min(max(norm(updates["reference"]) / norm(updates["backdoor"]), 1), 5)
    return {name: factor * value for name, value in updates["backdoor"].items()}
