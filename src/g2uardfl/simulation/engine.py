"""How the clients of a round are trained: one after the other, side by side in processes, or as one batched model.

Every engine gives the same weights for the same jobs, up to the order in which floating-point numbers are added.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from ..errors import ConfigError
from ..tasks.base import Task
from .config import RunConfig
from .dropout import with_keyed_dropout
from .training import Job, train_locally

TrainedWeights = list[dict[str, Tensor]]
"""Weights by name, one mapping for each job."""

WORTH_PROCESSES = 5e10
"""Parameters times samples over a whole run from which on starting worker processes pays."""


class Engine(ABC):
    """Trains the clients of a round."""

    @abstractmethod
    def train(self, global_weights: Mapping[str, Tensor], jobs: Sequence[Job]) -> TrainedWeights:
        """The weights after each job, in the order of `jobs`; a client may have several."""

    def close(self) -> None:  # noqa: B027 - only some engines hold anything
        """Let go of processes and memory."""


class LoopEngine(Engine):
    """One client after the other in this process: the plain way, and the reference for the others."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        self.task = task
        self.model = with_keyed_dropout(model)

    def train(self, global_weights: Mapping[str, Tensor], jobs: Sequence[Job]) -> TrainedWeights:
        """Train one job after the other."""
        return [train_locally(self.task, self.model, global_weights, job) for job in jobs]


def make_engine(config: RunConfig, task: Task, model: nn.Module) -> Engine:
    """The engine a run asks for; `auto` is the batched model on a GPU and, for enough work, processes on a CPU.

    A model that cannot be batched is trained one client after the other.
    """
    on_cpu = next(model.parameters()).device.type == "cpu"
    name = config.engine
    if name == "auto":
        name = ("workers" if _work(config, task, model) > WORTH_PROCESSES else "loop") if on_cpu else "batched"
    if name == "workers":
        from .workers import WorkerEngine

        if not on_cpu:
            raise ConfigError("engine='workers' trains on the CPU: use --device cpu, or engine='batched' on a GPU")
        return WorkerEngine(task, model, config.workers or os.cpu_count() or 1)
    if name == "batched":
        from .batched import BatchedEngine

        if BatchedEngine.supports(model) or config.engine == "batched":
            return BatchedEngine(task, model)
    return LoopEngine(task, model)


def _work(config: RunConfig, task: Task, model: nn.Module) -> float:
    """How much a run computes, in parameters times samples."""
    per_client = len(task.train) / config.clients * config.local_epochs
    if config.local_steps:
        per_client = config.local_steps * config.batch_size
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return config.rounds * config.per_round * per_client * parameters
