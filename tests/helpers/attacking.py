"""Turns of an attack, and short simulations under one."""

from __future__ import annotations

import torch
from torch import Tensor

from g2uardfl.attacks.base import Member, Turn
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.run import Simulation
from g2uardfl.tasks.base import Samples
from g2uardfl.training.local import Recipe

RECIPE = Recipe(lr=0.05, batch_size=16, epochs=1, steps=0, momentum=0.9, weight_decay=1e-4)
TEAM = (1, 4, 6)


def make_turn(weights, clients=TEAM, number=1) -> Turn:
    samples = Samples(torch.zeros(10, 1, 6, 6, dtype=torch.uint8), torch.zeros(10, dtype=torch.int64))
    members = tuple(Member(client, samples, samples, RECIPE, seed=client) for client in clients)
    return Turn(number, weights, members, 100, torch.Generator().manual_seed(0))


def moved_by(weights, seed) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: value + torch.randn(value.shape, generator=generator) for name, value in weights.items()}


def flat(model, names) -> Tensor:
    return torch.cat([model[name].double().flatten() for name in sorted(names)])


def simulate(attack, rounds, **settings) -> Simulation:
    config = RunConfig(
        task="digits", attack=attack, rounds=rounds, clients=20, per_round=8, pmr=0.4, engine="loop", **settings
    )
    simulation = Simulation(config)
    simulation.run()
    return simulation
