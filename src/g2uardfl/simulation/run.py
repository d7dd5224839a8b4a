"""One run: rounds of local training, attack, aggregation and evaluation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import aggregators, attacks, tasks
from ..aggregators.base import Aggregator, ClientId, RoundObserver, Verdict
from ..aggregators.context import NeedsServer
from ..attacks.base import Attack, Member, Turn
from ..core.constructors import resolved_settings
from ..core.errors import ConfigError, G2uardFLError
from ..core.registry import absolute
from ..core.threads import one_thread
from ..training.engine import Engine, make_engine
from ..training.local import Job, Recipe, share_predicted
from .central import Progress
from .checkpoint import Checkpoint
from .config import RunConfig
from .environment import environment, peak_memory, usable_device
from .metrics import summarise
from .samples import FederatedSamples, limit_samples
from .schedule import Schedule, torch_generator
from .server import SimulatedServer, for_as_many_steps
from .start import start_weights

Record = dict[str, Any]
"""The JSON object of one round in `rounds.jsonl`."""


class Callback:
    """Hooks into a run; every method does nothing unless a subclass overrides it."""

    def on_start(self, simulation: Simulation) -> None:
        """Called before the first round, or before the first round after a resume."""

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """Called after each round."""

    def on_stop(self, simulation: Simulation) -> None:
        """Called when the run stops before its last round, on request; it can be resumed."""

    def on_end(self, simulation: Simulation, summary: dict[str, Any]) -> None:
        """Called after the last round."""


class Interrupted(KeyboardInterrupt):
    """The run stopped on request, after a whole round."""


class Simulation:
    """A federation on one machine, from a `RunConfig` to a summary.

    Parameters
    ----------
    config
        All settings of the run.
    defense, attack
        Objects, instead of the rule and the attack that `config` names (default: None).

    Attributes
    ----------
    samples
        The samples of the clients and the server; set by `prepare` and `resume`.
    weights
        The global model; empty before `prepare` or `resume`.
    records
        The records of the finished rounds.
    observers
        Called with each round that the defence decides, and its outcome.
    attacking
        The clients that attack in the current round.
    stop_asked
        Set this to True to stop the run after the current round; it is not finished, and can be resumed.
    ended_early
        Why the run ends before its last round; empty if it does not.
    path
        The run directory, if there is one.
    """

    samples: FederatedSamples

    def __init__(self, config: RunConfig, defense: Aggregator | None = None, *, attack: Attack | None = None) -> None:
        self.task = tasks.create(
            config.task, data_dir=config.data_dir or None, model=config.model or None, **config.task_settings
        )
        config = config.resolved(self.task.defaults)
        self.attack = attack or attacks.create(config.attack, **config.attack_settings)
        self.defense = defense or aggregators.create(config.defense, **_defense_settings(config))
        self.average = aggregators.create("fedavg")
        self.device = usable_device(config.device)
        self.schedule = Schedule.draw(
            config.seed, config.rounds, config.clients, config.per_round, config.pmr, config.churn
        )
        if self.attack.attacks and config.pmr and not self.schedule.malicious:
            raise ConfigError(
                f"pmr={config.pmr} of {config.clients} clients gives no malicious client: raise pmr, or set it to 0"
            )
        self.attack.enlist(self.task, sorted(self.schedule.malicious))
        self.config = config = self._with_all_settings(config, defense is not None, attack is not None)
        self.model = self.task.build_model().to(self.device)
        self.weights: dict[str, Tensor] = {}
        self.start_scores: dict[str, float] = {}
        self.records: list[Record] = []
        self.observers: list[RoundObserver] = []
        self.attacking: list[int] = []
        self.stop_asked = False
        self.ended_early = ""
        self.path: Path | None = None

    def run(self, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
        """Run all remaining rounds and return the summary."""
        if not self.weights:
            self.prepare()
        for callback in callbacks:
            callback.on_start(self)
        try:
            for round_number in range(len(self.records) + 1, self.config.rounds + 1):
                self.records.append(self._round(round_number))
                for callback in callbacks:
                    callback.on_round(self, self.records[-1])
                if self.ended_early and self.records[-1]["acc"] is not None:
                    break
                if self.stop_asked and round_number < self.config.rounds:
                    for callback in callbacks:
                        callback.on_stop(self)
                    raise Interrupted(f"stopped after round {round_number} of {self.config.rounds}")
        finally:
            self.engine.close()
        summary = self.summary()
        for callback in callbacks:
            callback.on_end(self, summary)
        return summary

    @cached_property
    def engine(self) -> Engine:
        """The engine that trains the clients."""
        config = self.config
        per_client = len(self.task.train) / config.clients * (config.local_epochs or 0)
        if config.local_steps is not None:
            per_client = config.local_steps * config.batch_size
        samples = config.rounds * config.per_round * per_client
        return make_engine(config.engine, self.task, self.model, samples=samples, workers=config.workers)

    def finish_early(self, reason: str) -> None:
        """Make the next evaluated round the last one, this round included; the summary states the reason."""
        self.ended_early = reason

    def prepare(self, progress: Progress | None = None) -> None:
        """Divide the data and load the initial model; a converged one that is not cached is trained first.

        Parameters
        ----------
        progress
            Called after each step of that training (default: None).
        """
        self._divide_data()
        weights = start_weights(self.task, self.config, progress)
        self.weights = {name: value.to(self.device) for name, value in weights.items()}
        acc, asr = self._evaluate()
        self.start_scores = {"acc": acc, "asr": asr}

    def resume(self, checkpoint: Checkpoint, records: list[Record]) -> None:
        """Restore a checkpoint; `records` are those of its finished rounds."""
        self._divide_data()
        self.weights = {name: checkpoint.weights[name].to(self.device) for name in self.model.state_dict()}
        self.start_scores = checkpoint.start_scores
        self.defense.restore(checkpoint.defense)
        self.attack.restore(checkpoint.attack)
        self.records = records

    def checkpoint(self) -> Checkpoint:
        """The current state of the run."""
        return Checkpoint(len(self.records), self.weights, self.defense.state(), self.attack.state(), self.start_scores)

    def malicious(self, round_number: int) -> frozenset[int]:
        """The clients that the attacker controls in a round; none outside the rounds of the attack."""
        config = self.config
        last = config.rounds if config.attack_until is None else config.attack_until
        is_attacked = config.attack_from <= round_number <= last
        return self.schedule.malicious if self.attack.attacks and is_attacked else frozenset()

    def honest_job(self, round_number: int, client: int) -> Job:
        """The training of an honest client in a round."""
        seed = self.schedule.training_seed(round_number, client)
        return Job(client, self.samples.clients[client], self.config.recipe(round_number), seed)

    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`."""
        return {
            **summarise(self.records, self.config.defend_from),
            **({"ended_early": self.ended_early} if self.ended_early else {}),
            "start": self.start_scores,
            "peak_memory_mb": peak_memory(),
            "seed": self.config.seed,
            "environment": environment(),
        }

    def _with_all_settings(self, config: RunConfig, own_defense: bool, own_attack: bool) -> RunConfig:
        """The config with all settings of task, attack and defence as resolved, unless they were passed as objects.

        The defence's seed is left out where it is that of the run, so that it follows when the run's seed is changed.
        """
        config = replace(
            config,
            task=absolute(config.task),
            model=self.task.model,
            task_settings=resolved_settings(self.task, config.task_settings, ["data_dir", "model"]),
        )
        if not own_attack:
            settings = resolved_settings(self.attack, config.attack_settings, ["attack"])
            config = replace(config, attack=self.attack.spelled(config.attack), attack_settings=settings)
        if not own_defense:
            found = resolved_settings(self.defense, config.defense_settings)
            settings = {
                name: absolute(value) if isinstance(value, str) else value
                for name, value in found.items()
                if (name, value) != ("seed", config.seed)
            }
            config = replace(config, defense=absolute(config.defense), defense_settings=settings)
        return config

    def _divide_data(self) -> None:
        if self.config.sample_limit is not None:
            limit_samples(self.task, self.config.sample_limit)
        needs_server = self.defense if isinstance(self.defense, NeedsServer) else None
        with_root = needs_server is not None and needs_server.takes_root_data
        self.samples = FederatedSamples(
            self.task, self.attack, self.config, self.schedule, self.device, with_root=with_root
        )
        if needs_server:
            needs_server.attach(self._server())

    def _server(self) -> SimulatedServer:
        """A server that trains for as many steps as the average client."""
        config, clients = self.config, self.samples.clients
        mean_count = round(statistics.fmean(clients.count(client) for client in range(config.clients)))

        def recipe(number: int) -> Recipe:
            return for_as_many_steps(config.recipe(number + config.defend_from - 1), mean_count)

        model = self.task.build_model().to(self.device)
        return SimulatedServer(self.task, model, self.samples.root, recipe, seed=config.seed)

    @one_thread()
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
                {client: self.samples.clients.count(client) for client in selected},
                observers=self.observers if defended else (),
                round_number=round_number,
            )
            self.weights = result.weights
        with self._timed("evaluate", seconds):
            acc, asr = self._evaluate() if self._is_evaluated(round_number) else (None, None)
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
        """Add the duration of the block to `seconds`."""
        began = time.perf_counter()
        yield
        if self.device.type == "cuda":
            # GPU work is asynchronous: without waiting, its time would count towards the next stage.
            torch.cuda.synchronize(self.device)
        seconds[stage] = time.perf_counter() - began

    def _is_evaluated(self, round_number: int) -> bool:
        return round_number % self.config.evaluate_every == 0 or round_number == self.config.rounds

    def _evaluate(self) -> tuple[float, float]:
        """ACC and ASR of the global model."""
        self.model.load_state_dict(self.weights)
        return (
            share_predicted(self.task, self.model, self.samples.test),
            share_predicted(self.task, self.model, self.samples.backdoor_test),
        )

    def _turn(self, round_number: int, selected: Sequence[int], malicious: Sequence[int]) -> Turn:
        """The round from the attacker's side, with the members that attack in it."""
        members = tuple(
            Member(
                client,
                self.samples.clients[client],
                self.samples.poisoned(client),
                self.config.recipe(round_number),
                self.schedule.training_seed(round_number, client),
            )
            for client in malicious
        )
        generator = torch_generator(self.schedule.attack_seed(round_number))
        examples = sum(self.samples.clients.count(client) for client in selected)
        turn = Turn(round_number, self.weights, members, examples, generator)
        if not members:
            return turn
        self.attack.observe(turn)
        return replace(turn, members=self.attack.attackers(turn))

    def _train(self, turn: Turn, selected: Sequence[int]) -> dict[ClientId, Mapping[str, Tensor]]:
        """The models that the selected clients send, from honest training or from the attack."""
        attacking = {member.client for member in turn.members}
        honest = [client for client in selected if client not in attacking]
        attack_jobs: Mapping[Hashable, Job] = self.attack.jobs(turn) if attacking else {}
        jobs = [*(self.honest_job(turn.number, client) for client in honest), *attack_jobs.values()]
        trained = self.engine.train(self.weights, jobs)
        sent: dict[int, Mapping[str, Tensor]] = dict(zip(honest, trained, strict=False))
        if attacking:
            of_attack = dict(zip(attack_jobs, trained[len(honest) :], strict=True))
            submissions = self.attack.submissions(turn, of_attack)
            _check_submissions(submissions.keys(), attacking, self.config.attack, turn.number)
            sent |= submissions
        return {client: sent[client] for client in selected}


def _check_submissions(submitted: Collection[int], attacking: Collection[int], attack: str, round_number: int) -> None:
    """Raise an error unless the attack sends one model for each attacking client and none for others."""
    if missing := set(attacking) - set(submitted):
        raise G2uardFLError(
            f"attack {attack} sends nothing for client {min(missing)}, which attacks in round {round_number}: "
            "its submissions() must return a model for every member"
        )
    if foreign := set(submitted) - set(attacking):
        raise G2uardFLError(
            f"attack {attack} sends a model for client {min(foreign)}, which is not a member in round {round_number}: "
            "its submissions() must return models for members only"
        )


def _defense_settings(config: RunConfig) -> dict[str, Any]:
    """The defence's settings, with the run's seed as the default of its seed."""
    settings = dict(config.defense_settings)
    if aggregators.find(config.defense).takes_seed:
        settings.setdefault("seed", config.seed)
    return settings


def _as_json(verdict: Verdict) -> dict[str, Any]:
    return {name: value for name, value in asdict(verdict).items() if value is not None}
