"""One experiment: rounds of local training, attack, defence and evaluation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .. import aggregators, attacks, tasks
from ..aggregators.base import Aggregator, ClientId, RoundObserver, Verdict
from ..aggregators.context import NeedsServer
from ..attacks.base import Member, Turn
from ..core.errors import ConfigError, G2uardFLError
from ..tasks.base import DividedSamples, Samples
from ..training.engine import Engine, make_engine
from ..training.local import Job, Recipe, share_predicted
from .checkpoint import Checkpoint
from .config import RunConfig
from .environment import environment, peak_memory
from .metrics import defense_score, detection_of
from .partition import partition
from .schedule import Schedule, partition_seed, start_seed, torch_generator
from .server import SimulatedServer, for_as_many_steps, split_root
from .start import Progress, converged_start, fresh_weights, read_model

Record = dict[str, Any]
"""What `rounds.jsonl` holds of a round."""


class Callback:
    """Told about a run as it goes; each method may be overridden."""

    def on_start(self, simulation: Simulation) -> None:
        """Before the first round, or the first after a resume."""

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """After each round."""

    def on_end(self, simulation: Simulation, summary: dict[str, Any]) -> None:
        """After the last round."""


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop and did so after a whole round."""


class Simulation:
    """A federation on one machine, from a `RunConfig` to a summary.

    Parameters
    ----------
    config
        Everything that determines the result.
    defense
        A rule to use in place of the one that `config` names (default: None).
    """

    def __init__(self, config: RunConfig, defense: Aggregator | None = None) -> None:
        self.task = tasks.create(
            config.task, data_dir=config.data_dir or None, model=config.model or None, **config.task_settings
        )
        self.config = config = config.resolved(self.task.defaults)
        self.attack = attacks.create(config.attack, **config.attack_settings)
        self.defense = defense or aggregators.create(config.defense, **_defense_settings(config))
        self.average = aggregators.create("fedavg")
        try:
            self.device = torch.device(config.device)
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"device={config.device!r} cannot be used here: try cpu") from error
        self.schedule = Schedule.draw(
            config.seed, config.rounds, config.clients, config.per_round, config.pmr, config.churn
        )
        self.attack.enlist(self.task, sorted(self.schedule.malicious))
        self.model = self.task.build_model().to(self.device)
        self.weights: dict[str, Tensor] = {}
        self.start_scores: dict[str, float] = {}
        self.records: list[Record] = []
        self.observers: list[RoundObserver] = []
        """Called with every round that the defence decides, and its outcome."""
        self.attacking: list[int] = []
        """The clients that attack in the round under way."""
        self.stop_asked = False
        """Set from outside, it ends the run after the round under way."""

    def run(self, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
        """Run all rounds that are left and return the summary."""
        if not self.weights:
            self.prepare()
        for callback in callbacks:
            callback.on_start(self)
        try:
            for round_number in range(len(self.records) + 1, self.config.rounds + 1):
                self.records.append(self._round(round_number))
                for callback in callbacks:
                    callback.on_round(self, self.records[-1])
                if self.stop_asked and round_number < self.config.rounds:
                    raise Interrupted(f"stopped after round {round_number} of {self.config.rounds}")
        finally:
            self.engine.close()
        summary = self.summary()
        for callback in callbacks:
            callback.on_end(self, summary)
        return summary

    @cached_property
    def engine(self) -> Engine:
        """What trains the clients; made when it is first needed."""
        config = self.config
        per_client = len(self.task.train) / config.clients * config.local_epochs
        if config.local_steps:
            per_client = config.local_steps * config.batch_size
        samples = config.rounds * config.per_round * per_client
        return make_engine(config.engine, self.task, self.model, samples=samples, workers=config.workers)

    def prepare(self, on_epoch: Progress | None = None) -> None:
        """Divide the data and load the start model, training it first where that was never done (`on_epoch` tells)."""
        self._divide_data()
        self.weights = {name: value.to(self.device) for name, value in self._first_weights(on_epoch).items()}
        acc, asr = self._evaluate()
        self.start_scores = {"acc": acc, "asr": asr}

    def resume(self, checkpoint: Checkpoint, records: list[Record]) -> None:
        """Go on after the checkpoint's last round; `records` are those of the rounds before."""
        self._divide_data()
        self.weights = {name: checkpoint.weights[name].to(self.device) for name in self.model.state_dict()}
        self.start_scores = checkpoint.start_scores
        self.defense.restore(checkpoint.defense)
        self.attack.restore(checkpoint.attack)
        self.records = records

    def checkpoint(self) -> Checkpoint:
        """All that is needed to go on from here."""
        return Checkpoint(len(self.records), self.weights, self.defense.state(), self.attack.state(), self.start_scores)

    def malicious(self, round_number: int) -> frozenset[int]:
        """The clients in the attacker's hand in a round; outside the attack's rounds everybody is honest."""
        config = self.config
        under_way = config.attack_from <= round_number <= (config.attack_until or config.rounds)
        return self.schedule.malicious if self.attack.attacks and under_way else frozenset()

    def _divide_data(self) -> None:
        config, task = self.config, self.task
        shares = partition(
            task.train.y.numpy(),
            config.clients,
            config.alpha,
            partition_seed(config.seed),
            task.natural_groups() if config.partition == "natural" else None,
            config.partition,
        )
        own = [torch.from_numpy(indices).to(self.device) for indices in shares]
        self._data = DividedSamples(task.train.to(self.device), own)
        self._poisoned: dict[int, Samples] = {}
        self._test, self._backdoor = task.test, self.attack.backdoor_test().to(self.device)
        if isinstance(self.defense, NeedsServer):
            self._attach_server(self.defense)
        self._test = self._test.to(self.device)

    def _attach_server(self, defense: NeedsServer) -> None:
        """Give the defence a server with the model and, if it asks for it, a part of the test data as its own."""
        config, root = self.config, Samples(self.task.test.x[:0], self.task.test.y[:0])
        if defense.takes_root_data:
            root, self._test = split_root(self.task.test, config.seed)
        usual = round(statistics.fmean(self._data.count(client) for client in range(config.clients)))

        def recipe(number: int) -> Recipe:
            return for_as_many_steps(self._recipe(number + config.defend_from - 1), usual)

        model = self.task.build_model().to(self.device)
        defense.attach(SimulatedServer(self.task, model, root, recipe, seed=config.seed))

    def _first_weights(self, on_epoch: Progress | None) -> dict[str, Tensor]:
        if self.config.start == "scratch":
            return fresh_weights(self.task, start_seed(self.config.seed))
        if self.config.start == "converged":
            return converged_start(self.task, device=self.config.device, progress=on_epoch).weights
        weights, _ = read_model(self.config.start)
        expected = {name: value.shape for name, value in self.model.state_dict().items()}
        if {name: value.shape for name, value in weights.items()} != expected:
            raise ConfigError(f"{self.config.start} holds another model than {self.task.name}'s {self.task.model}")
        return weights

    def _round(self, round_number: int) -> Record:
        seconds: dict[str, float] = {}
        selected = [int(client) for client in self.schedule.selected[round_number - 1]]
        malicious = [client for client in selected if client in self.malicious(round_number)]
        turn = self._turn(round_number, selected, malicious)
        self.attacking = attacking = [member.client for member in turn.members]
        with self._timed("train", seconds):
            sent = self._train(turn, selected)
        with self._timed("defend", seconds):
            defended = round_number >= self.config.defend_from
            result = (self.defense if defended else self.average).aggregate(
                self.weights,
                sent,
                {client: self._data.count(client) for client in selected},
                observers=self.observers if defended else (),
                round_number=round_number,
            )
            self.weights = result.weights
        with self._timed("evaluate", seconds):
            acc, asr = self._evaluate() if self._evaluated(round_number) else (None, None)
        return {
            "round": round_number,
            "acc": acc,
            "asr": asr,
            "selected": selected,
            "malicious": malicious,
            "attacking": attacking,
            "verdicts": {str(client): _as_json(verdict) for client, verdict in result.verdicts.items()},
            "seconds": seconds,
            **result.report.as_dict(),
        }

    @contextmanager
    def _timed(self, stage: str, seconds: dict[str, float]) -> Iterator[None]:
        """Note how long a stage takes."""
        began = time.perf_counter()
        yield
        if self.device.type == "cuda":
            # A GPU works on after the call returns: without waiting, its time would be counted to the next stage.
            torch.cuda.synchronize(self.device)
        seconds[stage] = time.perf_counter() - began

    def _evaluated(self, round_number: int) -> bool:
        return round_number % self.config.evaluate_every == 0 or round_number == self.config.rounds

    def _turn(self, round_number: int, selected: Sequence[int], malicious: Sequence[int]) -> Turn:
        """The round as the attacker sees it, with the members that attack this time."""
        members = tuple(
            Member(
                client,
                self._data[client],
                self._poisoned_samples(client),
                self._recipe(round_number),
                self.schedule.training_seed(round_number, client),
            )
            for client in malicious
        )
        generator = torch_generator(self.schedule.attack_seed(round_number))
        examples = sum(self._data.count(client) for client in selected)
        turn = Turn(round_number, self.weights, members, examples, generator)
        if not members:
            return turn
        self.attack.observe(turn)
        return replace(turn, members=self.attack.attackers(turn))

    def _train(self, turn: Turn, selected: Sequence[int]) -> dict[ClientId, Mapping[str, Tensor]]:
        """What every selected client sends: honest ones what they trained, attackers what they make of their jobs."""
        attacking = {member.client for member in turn.members}
        honest = [client for client in selected if client not in attacking]
        wanted: Mapping[Hashable, Job] = self.attack.jobs(turn) if attacking else {}
        jobs = [self.honest_job(turn.number, client) for client in honest]
        trained = self.engine.train(self.weights, [*jobs, *wanted.values()])
        sent: dict[int, Mapping[str, Tensor]] = dict(zip(honest, trained, strict=False))
        if attacking:
            submitted = self.attack.submissions(turn, dict(zip(wanted, trained[len(honest) :], strict=True)))
            if forgotten := attacking - submitted.keys():
                raise G2uardFLError(
                    f"attack {self.config.attack} sends nothing for client {min(forgotten)}, which attacks in round "
                    f"{turn.number}: its submissions() has to return a model for every member"
                )
            if foreign := submitted.keys() - attacking:
                raise G2uardFLError(
                    f"attack {self.config.attack} sends something for client {min(foreign)}, which is none of its "
                    f"members in round {turn.number}: its submissions() may speak for members only"
                )
            sent |= submitted
        return {client: sent[client] for client in selected}

    def honest_job(self, round_number: int, client: int) -> Job:
        """What an honest client trains in a round."""
        seed = self.schedule.training_seed(round_number, client)
        return Job(client, self._data[client], self._recipe(round_number), seed)

    def _recipe(self, round_number: int) -> Recipe:
        config = self.config
        return Recipe(
            lr=config.lr * config.lr_decay ** (round_number - 1),
            batch_size=config.batch_size,
            epochs=config.local_epochs,
            steps=config.local_steps,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )

    def _poisoned_samples(self, client: int) -> Samples:
        if client not in self._poisoned:
            generator = torch_generator(self.schedule.poisoning_seed(client))
            clean = self._data[client].to("cpu")
            poisoned = self.attack.training_data(client, clean, self.config.pdr, generator)
            self._poisoned[client] = poisoned.to(self.device)
        return self._poisoned[client]

    def _evaluate(self) -> tuple[float, float]:
        self.model.load_state_dict(self.weights)
        return (
            share_predicted(self.task, self.model, self._test),
            share_predicted(self.task, self.model, self._backdoor),
        )

    def summary(self) -> dict[str, Any]:
        """What `summary.json` holds, from the records of all rounds."""
        records = self.records
        tail = [record for record in records[-max(1, len(records) // 10) :] if record["acc"] is not None]
        last = records[-1]
        seconds = sum(sum(record["seconds"].values()) for record in records)
        return {
            "acc": last["acc"],
            "asr": last["asr"],
            "ds": defense_score(last["acc"], last["asr"]),
            "acc_tail_mean": statistics.fmean(record["acc"] for record in tail),
            "asr_tail_mean": statistics.fmean(record["asr"] for record in tail),
            "asr_max": max(record["asr"] for record in records if record["asr"] is not None),
            "detection": detection_of(records[self.config.defend_from - 1 :]),
            "start": self.start_scores,
            "rounds": len(records),
            "rounds_per_second": len(records) / seconds,
            "defend_seconds_median": statistics.median(record["seconds"]["defend"] for record in records),
            "peak_memory_mb": peak_memory(),
            "seed": self.config.seed,
            "environment": environment(),
        }


def _defense_settings(config: RunConfig) -> dict[str, Any]:
    """The defence's settings; a defence that takes a seed gets the run's unless it was given its own."""
    settings = dict(config.defense_settings)
    if aggregators.find(config.defense).takes_seed:
        settings.setdefault("seed", config.seed)
    return settings


def _as_json(verdict: Verdict) -> dict[str, Any]:
    return {name: value for name, value in asdict(verdict).items() if value is not None}
