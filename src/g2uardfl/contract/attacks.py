"""What every attack guarantees, on short runs of the digits."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..aggregators.base import AggregationResult, ClientId
from ..aggregators.fedavg import FedAvg
from ..core.layout import Weights
from ..simulation.checkpoint import read_checkpoint, write_checkpoint
from ..simulation.config import RunConfig
from ..simulation.run import Callback, Record, Simulation
from ..simulation.schedule import torch_generator
from ..tasks.base import Samples, Task
from . import Check, Make, check_settings, require

_CONFIG = RunConfig(
    "digits",
    rounds=3,
    clients=12,
    per_round=6,
    pmr=0.5,
    start="scratch",
    local_steps=2,
    batch_size=8,
    evaluate_every=3,
    engine="loop",
)


class _Listening(FedAvg):
    """FedAvg that keeps what the clients send."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[dict[ClientId, Weights]] = []

    def aggregate(
        self, global_weights: Weights, client_weights: Mapping[ClientId, Weights], *args: Any, **kw: Any
    ) -> AggregationResult:
        self.sent.append({client: dict(weights) for client, weights in client_weights.items()})
        return super().aggregate(global_weights, client_weights, *args, **kw)


def _run(make: Make | None, config: RunConfig = _CONFIG) -> tuple[Simulation, list[dict[ClientId, Weights]]]:
    """A finished run and what the clients sent in each round; without attack if `make` is None."""
    server = _Listening()
    simulation = Simulation(config, server, attack=make() if make else None)
    simulation.run()
    return simulation, server.sent


def _sent(make: Make) -> None:
    simulation, sent = _run(make)
    for record, models in zip(simulation.records, sent, strict=True):
        for client in record["attacking"]:
            weights, who = models[client], f"in round {record['round']} attacker {client} sends"
            require(weights.keys() == simulation.weights.keys(), f"{who} other names than the model's")
            for name, value in simulation.weights.items():
                require(weights[name].shape == value.shape, f"{who} {name!r} in another shape")
                require(torch.isfinite(weights[name]).all(), f"{who} values in {name!r} that are not finite")


def _any_number(make: Make) -> None:
    for pmr in (1 / 12, 1.0):
        _run(make, replace(_CONFIG, pmr=pmr, per_round=12, rounds=2, evaluate_every=2))


def _honest(make: Make) -> None:
    simulation, sent = _run(make)
    _, expected = _run(None)
    for client in set(simulation.records[0]["selected"]) - set(simulation.records[0]["attacking"]):
        same = all(torch.equal(sent[0][client][name], value) for name, value in expected[0][client].items())
        require(same, f"honest client {client} sends something else in the first round than without the attack")


def _repeatable(make: Make) -> None:
    (_, first), (_, second) = _run(make), _run(make)
    for number, (one, other) in enumerate(zip(first, second, strict=True), start=1):
        same = all(torch.equal(one[client][name], other[client][name]) for client in one for name in one[client])
        require(same, f"two runs with the same seed differ in round {number}")


def _resumed(make: Make) -> None:
    class Keep(Callback):
        """Writes a checkpoint after the first round."""

        def on_round(self, simulation: Simulation, record: Record) -> None:
            if record["round"] == 1:
                write_checkpoint(Path(folder), simulation.config, simulation.checkpoint())

    with tempfile.TemporaryDirectory() as folder:
        whole = Simulation(_CONFIG, _Listening(), attack=make())
        whole.run([Keep()])
        resumed = Simulation(_CONFIG, _Listening(), attack=make())
        checkpoint = read_checkpoint(Path(folder), resumed.config)
    require(checkpoint, "no checkpoint was written")
    if checkpoint is not None:
        resumed.resume(checkpoint, whole.records[:1])
        resumed.run()
    same = all(torch.equal(value, whole.weights[name]) for name, value in resumed.weights.items())
    require(same, "a run that is resumed after its first round ends with another model")


def _samples(make: Make) -> None:
    simulation = Simulation(_CONFIG, attack=make())
    task, attack = simulation.task, simulation.attack
    clean = task.train.take(torch.arange(20))
    for pdr in (0.0, 0.5, 1.0):
        poisoned = attack.training_data(attack.team[0], clean, pdr, torch_generator(1))
        _require_samples(poisoned, task, f"training_data with pdr={pdr}")
    _require_samples(attack.backdoor_test(), task, "backdoor_test")


def _require_samples(samples: Samples, task: Task, where: str) -> None:
    require(len(samples), f"{where} returns no samples")
    stored = task.train.x
    same = samples.x.dtype == stored.dtype and samples.x.shape[1:] == stored.shape[1:]
    require(same, f"{where} returns inputs of another dtype or shape than the task's")
    require(samples.y.min() >= 0 and samples.y.max() < task.num_classes, f"{where} returns labels that are not classes")


CHECKS = [
    Check("Its representation shows all settings, and unknown ones are rejected.", check_settings),
    Check("Its samples have the task's form, and labels that are classes.", _samples),
    Check("Every attacker sends a whole model of finite values.", _sent),
    Check("One attacker is enough, and all clients may be attackers.", _any_number),
    Check("Honest clients send what they send without the attack.", _honest),
    Check("The same seed gives the same run.", _repeatable),
    Check("A run that is resumed is the same run.", _resumed),
]
"""The checks of an attack."""
