"""Trains clients in parallel in worker processes with one thread each: the fastest engine on a CPU.

Weights and samples travel through shared memory. Once a round the global model and the samples of all jobs are written
there, and each job's weights come back in a row of their own and stay there. A pipe carries a few hundred bytes per
job. A worker runs the same `train_locally` as the loop engine does with one thread, so the results are bit-for-bit the
same for any number of workers and any assignment of jobs to workers.
"""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from multiprocessing import connection

import torch
from torch import Tensor, nn

from ..core.errors import ConfigError, G2uardFLError
from ..core.processes import Worker, end
from ..tasks.base import Samples, Task
from .dropout import with_keyed_dropout
from .engine import Engine, TrainedWeights
from .local import Job
from .shared_memory import SampleLocation, SharedMemory, WeightLayout
from .worker_process import ROWS, SAMPLES, Attach, Order, run_jobs

_NO_SAMPLES = Samples(torch.empty(0), torch.empty(0))


class WorkerEngine(Engine):
    """Trains the clients of a round in `workers` processes with one thread each.

    The processes start at once. They end with `close()`, with the engine object, or with this process, however it ends.
    After an error or an interruption the engine is closed.

    Parameters
    ----------
    task
        Sent to the workers without the data it has loaded; its class must be importable there.
    model
        The task's model on the CPU; its dropout layers are replaced by keyed ones in place.
    workers
        Number of processes; best about the number of cores.
    """

    def __init__(self, task: Task, model: nn.Module, workers: int) -> None:
        if workers < 1:
            raise ConfigError(f"workers={workers} is not allowed: use at least 1")
        self.workers = workers
        self._layout = WeightLayout.of(with_keyed_dropout(model).state_dict())
        try:
            # Plain pickle copies tensors; the pickler of multiprocessing would make all processes share one model.
            content = pickle.dumps((_without_data(task), model, self._layout))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(f"task {task.name} cannot be sent to worker processes: {error}") from error
        crew: list[Worker] = []
        self._crew = crew
        self._finalizer = weakref.finalize(self, end, crew)

        def attach(name: str, block: Tensor) -> None:
            for worker in crew:
                worker.send(Attach(name, block))

        self._memory = SharedMemory(attach)
        crew.extend(Worker.start(run_jobs) for _ in range(workers))
        for worker in crew:
            worker.send(content)

    def train(self, global_weights: Mapping[str, Tensor], jobs: Sequence[Job]) -> TrainedWeights:
        """Train all jobs, the largest first.

        The weights are views of shared memory, which is not reused while any of them exists.
        """
        if not self._finalizer.alive:
            raise G2uardFLError("the worker processes are closed: create a new engine")
        try:
            self._layout.write(global_weights, self._memory.reserve(ROWS, (len(jobs) + 1) * self._layout.row_bytes), 0)
            orders = [
                Order(replace(job, samples=_NO_SAMPLES), location, row)
                for row, (job, location) in enumerate(zip(jobs, self._write_samples(jobs), strict=True), start=1)
            ]
            orders.sort(key=_work)
            self._execute(orders)
            rows = self._memory.export(ROWS)
            return [self._layout.views(rows, row) for row in range(1, len(jobs) + 1)]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all worker processes; may be called more than once."""
        self._finalizer()
        self._memory.blocks.clear()

    def _write_samples(self, jobs: Sequence[Job]) -> list[SampleLocation]:
        """Copy the samples of all jobs into shared memory and return their locations."""
        locations: list[SampleLocation] = []
        stop = 0
        for job in jobs:
            locations.append(SampleLocation.of(job.samples, stop))
            stop = locations[-1].stop
        block = self._memory.reserve(SAMPLES, stop)
        for job, location in zip(jobs, locations, strict=True):
            views = location.samples(block)
            views.x.copy_(job.samples.x)
            views.y.copy_(job.samples.y)
        return locations

    def _execute(self, orders: list[Order]) -> None:
        """Execute all `orders`, from the end of the list; each idle worker gets the next one."""
        busy: dict[Worker, Order] = {}
        idle = list(self._crew)
        while orders or busy:
            while orders and idle:
                worker = idle.pop()
                busy[worker] = orders.pop()
                worker.send(busy[worker])
            ready = set(
                connection.wait([source for worker in self._crew for source in (worker.pipe, worker.process.sentinel)])
            )
            for worker in self._crew:
                if worker.pipe in ready or worker.process.sentinel in ready:
                    error = worker.receive()
                    order = busy.pop(worker)
                    if error:
                        raise G2uardFLError(f"client {order.job.client} could not be trained: {error}")
                    idle.append(worker)


def _without_data(task: Task) -> Task:
    """A copy of `task` without the data it has loaded."""
    bare = copy.copy(task)
    for name in list(vars(bare)):
        if isinstance(getattr(type(bare), name, None), cached_property):
            del vars(bare)[name]
    return bare


def _work(order: Order) -> int:
    """The number of samples a job processes."""
    recipe, count = order.job.recipe, order.location.count
    return recipe.steps * min(recipe.batch_size, count) or recipe.epochs * count
