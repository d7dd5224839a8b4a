"""Turns of an attack, a slow computation of its training, and short simulations under it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from g2uardfl import aggregators, attacks
from g2uardfl.aggregators import Round
from g2uardfl.attacks.base import Attack, Member, Model, Turn
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.run import Callback, Simulation
from g2uardfl.tasks.base import Samples, Task
from g2uardfl.training.engine import Engine, LoopEngine
from g2uardfl.training.local import Job, Recipe, batches

RECIPE = Recipe(lr=0.05, batch_size=16, epochs=1, steps=0, momentum=0.9, weight_decay=1e-4)
TEAM = (1, 4, 6)
SHORT = RunConfig(task="digits", rounds=3, clients=40, per_round=6, pmr=0.5, start="scratch", seed=3, engine="loop")
"""A run of about a second in which half of the clients are malicious."""


def make_turn(
    weights: Model, clients: Iterable[int] = TEAM, number: int = 1, seed: int = 0, examples: int = 100
) -> Turn:
    """A round of clients with ten empty pictures each."""
    samples = Samples(torch.zeros(10, 1, 6, 6, dtype=torch.uint8), torch.zeros(10, dtype=torch.int64))
    members = tuple(Member(client, samples, samples, RECIPE, seed=client) for client in clients)
    return Turn(number, weights, members, examples, torch.Generator().manual_seed(seed))


def moved_by(weights: Model, seed: int) -> dict[str, Tensor]:
    """The weights plus normally distributed noise."""
    generator = torch.Generator().manual_seed(seed)
    return {name: value + torch.randn(value.shape, generator=generator) for name, value in weights.items()}


def enlisted(name: str, task: Task, team: Iterable[int] = range(4), **settings: Any) -> Any:
    """An attack that is ready for its first round."""
    attack = attacks.create(name, **settings)
    attack.enlist(task, list(team))
    return attack


def own_samples(task: Task, counts: Mapping[int, int], client: int) -> Samples:
    """The next `counts[client]` training samples after those of the clients with lower ids."""
    return task.train.take(
        torch.arange(counts[client]) + sum(count for other, count in counts.items() if other < client)
    )


def training_turn(
    attack: Attack,
    weights: Model,
    counts: Mapping[int, int],
    recipe: Recipe = RECIPE,
    number: int = 1,
    selected: Sequence[int] | None = None,
) -> Turn:
    """A round that selects clients (default: all of `counts`) with that many samples each; half are poisoned."""
    chosen = list(counts) if selected is None else list(selected)
    members = []
    for client in chosen:
        if client in attack.team:
            clean = own_samples(attack.task, counts, client)
            poisoned = attack.training_data(client, clean, 0.5, torch.Generator().manual_seed(client))
            members.append(Member(client, clean, poisoned, recipe, seed=1000 * number + client))
    total = sum(counts[client] for client in chosen)
    return Turn(number, weights, tuple(members), total, torch.Generator().manual_seed(number))


def act(attack: Attack, turn: Turn, engine: type[Engine] = LoopEngine) -> tuple[dict[Any, Model], dict[int, Model]]:
    """The trained model of every job, and what the attackers send."""
    jobs = attack.jobs(turn)
    models = engine(attack.task, attack.task.build_model()).train(turn.global_weights, list(jobs.values()))
    trained = dict(zip(jobs, models, strict=True))
    return trained, dict(attack.submissions(turn, trained))


def average(start: Model, sent: Mapping[int, Model], counts: Mapping[int, int]) -> dict[str, Tensor]:
    """FedAvg over what the attackers sent; all other clients send the global model."""
    everything = {client: sent.get(client, start) for client in counts}
    return aggregators.create("fedavg").aggregate(start, everything, counts).weights


def parameter_keys(task: Task) -> list[str]:
    """The names of the trainable parameters, in the order of the model."""
    return [name for name, _ in task.build_model().named_parameters()]


def distance(task: Task, weights: Model, start: Model) -> float:
    """‖w - G‖ over all parameters, in float64."""
    squares = [(weights[name].double() - start[name].double()).square().sum() for name in parameter_keys(task)]
    return float(sum(squares)) ** 0.5


def train_by_hand(task: Task, start: Model, job: Job) -> dict[str, Tensor]:
    """Literal float64 SGD on `loss_weight` L + `distance_weight` ‖w - G‖, projected after every step."""
    recipe = job.recipe
    model = task.build_model().double()
    model.load_state_dict(start)
    model.train()
    weights = list(model.parameters())
    centre = [value.detach().clone() for value in weights]
    velocity = [torch.zeros_like(value) for value in weights]
    generator = torch.Generator().manual_seed(job.seed)
    for batch in batches(len(job.samples), recipe.batch_size, recipe.epochs, recipe.steps, generator):
        outputs = model(task.prepare(job.samples.x[batch]).double())
        loss = recipe.loss_weight * nn.functional.cross_entropy(outputs, job.samples.y[batch])
        squared = sum((value - middle).square().sum() for value, middle in zip(weights, centre, strict=True))
        if squared > 0:
            loss = loss + recipe.distance_weight * squared.sqrt()
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for value, gradient, speed in zip(weights, gradients, velocity, strict=True):
                speed.mul_(recipe.momentum).add_(gradient + recipe.weight_decay * value)
                value -= recipe.lr * speed
            norm = sum((value - middle).square().sum() for value, middle in zip(weights, centre, strict=True)).sqrt()
            if norm > recipe.radius:
                for value, middle in zip(weights, centre, strict=True):
                    value.copy_(middle + (value - middle) * recipe.radius / norm)
    return {name: value.detach() for name, value in model.state_dict().items()}


def assert_close(found: Model, expected: Model, atol: float = 2e-5) -> None:
    """Two models have the same names and nearly the same values."""
    assert list(found) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value.double(), rtol=0, atol=atol, msg=lambda m, n=name: n + m)


def simulate(attack: str, rounds: int, **settings: Any) -> Simulation:
    """A finished run of twenty clients, of whom eight are malicious."""
    config = RunConfig(
        task="digits", attack=attack, rounds=rounds, clients=20, per_round=8, pmr=0.4, engine="loop", **settings
    )
    simulation = Simulation(config)
    simulation.run()
    return simulation


def short_run(**changes: Any) -> Simulation:
    """A finished run of SHORT with some changes."""
    simulation = Simulation(dataclasses.replace(SHORT, **changes))
    simulation.run()
    return simulation


def observed_rounds(simulation: Simulation) -> list[Round]:
    """Run a simulation; what the server received in each round."""
    rounds: list[Round] = []
    simulation.observers.append(lambda round_, outcome: rounds.append(round_))
    simulation.run()
    return rounds


class StopAfter(Callback):
    """A callback that stops a run after a round."""

    def __init__(self, number: int) -> None:
        self.number = number

    def on_round(self, simulation: Simulation, record: Mapping[str, Any]) -> None:
        """Stop after the given round."""
        simulation.stop_asked = record["round"] == self.number
