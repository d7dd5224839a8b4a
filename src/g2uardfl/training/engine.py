"""Engines that train the clients of a round: one by one, in parallel processes, or as one batched model.

All engines give the same weights for the same jobs, up to the order of floating-point additions.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from ..core.errors import ConfigError
from ..tasks.base import Task
from .dropout import with_keyed_dropout
from .local import Job, train_locally

TrainedWeights = list[dict[str, Tensor]]
"""Weights by name, one mapping for each job."""

WORTH_PROCESSES = 5e10
"""Worker processes are started when parameters x samples of the whole run exceed this (measured in
`benchmarks/simulation.py`): below it, starting them takes longer than they save."""


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


def make_engine(name: str, task: Task, model: nn.Module, *, samples: float, workers: int = 0) -> Engine:
    """The engine called `name`; "auto" picks one by the device and the amount of work.

    "auto" is the batched engine on a GPU. On a CPU it is worker processes where there is enough work to pay for
    starting them, and the loop otherwise. A model that cannot be batched is trained in the loop.

    Parameters
    ----------
    samples
        How many training samples all clients of the run process together.
    workers
        The number of worker processes; 0 means one for each core (default: 0).
    """
    on_cpu = next(model.parameters()).device.type == "cpu"
    asked = name
    if name == "auto":
        work = samples * sum(parameter.numel() for parameter in model.parameters())
        name = ("workers" if work > WORTH_PROCESSES else "loop") if on_cpu else "batched"
    if name == "workers":
        from .workers import WorkerEngine

        if not on_cpu:
            raise ConfigError("engine='workers' trains on the CPU: use --device cpu, or engine='batched' on a GPU")
        return WorkerEngine(task, model, workers or os.cpu_count() or 1)
    if name == "batched":
        from .batched import BatchedEngine

        if BatchedEngine.supports(model) or asked == "batched":
            return BatchedEngine(task, model)
    return LoopEngine(task, model)
