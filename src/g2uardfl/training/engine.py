"""Engines that train the clients of a round: one by one, in worker processes, or as one batched model.

All engines return the same weights for the same jobs, up to the order of floating-point additions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from ..core.errors import ConfigError
from ..core.threads import one_thread, usable_cores
from ..tasks.base import Task
from .dropout import with_keyed_dropout
from .local import Job, train_locally

TrainedWeights = list[dict[str, Tensor]]
"""Weights by name, one mapping for each job."""

MIN_WORK_FOR_PROCESSES = 5e10
"""Number of parameters x training samples of a whole run above which worker processes are used. Below it, starting them
takes longer than they save (measured with `benchmarks/simulation.py`)."""


class Engine(ABC):
    """Trains the clients of a round."""

    @abstractmethod
    def train(self, global_weights: Mapping[str, Tensor], jobs: Sequence[Job]) -> TrainedWeights:
        """Return the weights after each job, in the order of `jobs`; a client may have several jobs."""

    def close(self) -> None:  # noqa: B027 - only some engines hold any
        """Release processes and memory."""


class LoopEngine(Engine):
    """Trains one client after the other in this process with one thread; the reference for the other engines."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        self.task = task
        self.model = with_keyed_dropout(model)

    def train(self, global_weights: Mapping[str, Tensor], jobs: Sequence[Job]) -> TrainedWeights:
        """Train one job after the other."""
        with one_thread():
            return [train_locally(self.task, self.model, global_weights, job) for job in jobs]


def make_engine(name: str, task: Task, model: nn.Module, *, samples: float, workers: int = 0) -> Engine:
    """Create the engine called `name`.

    Parameters
    ----------
    name
        "loop", "workers", "batched" or "auto". "auto" is "batched" on a GPU if the model can be batched; on a CPU it is
        "workers" if the run is long enough to repay starting several processes; otherwise it is "loop".
    task, model
        What to train; `model` determines the device.
    samples
        The number of training samples that all clients process in the whole run.
    workers
        The number of worker processes; 0 means one for each core that this process may use (default: 0).
    """
    on_cpu = next(model.parameters()).device.type == "cpu"
    requested = name
    if name == "auto":
        work = samples * sum(parameter.numel() for parameter in model.parameters())
        pays = work > MIN_WORK_FOR_PROCESSES and workers != 1
        name = ("workers" if pays else "loop") if on_cpu else "batched"
    if name == "workers":
        from .workers import WorkerEngine

        if not on_cpu:
            raise ConfigError("engine='workers' trains on the CPU: use --device cpu, or engine='batched' on a GPU")
        return WorkerEngine(task, model, workers or usable_cores())
    if name == "batched":
        from .batched import BatchedEngine

        if BatchedEngine.supports(model) or requested == "batched":
            return BatchedEngine(task, model)
    return LoopEngine(task, model)
