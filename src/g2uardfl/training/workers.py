"""Clients trained side by side in worker processes, each with one thread: the fastest way on a CPU.

Weights and samples travel through shared memory: the global model and the samples of all jobs are written once a round,
and each job's weights come back in a row of their own, where they stay. What goes through a pipe is a few hundred bytes
per job. A worker runs the same `train_locally` as the plain loop does with one thread, so that the
results are the same bit for bit, whatever the number of workers and whoever trained which client.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import os
import pickle
import shutil
import signal
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing import connection, parent_process, resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.multiprocessing
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.errors import ConfigError, G2uardFLError
from ..tasks.base import Samples, Task
from .dropout import with_keyed_dropout
from .engine import Engine, TrainedWeights
from .local import Job, Recipe, train_locally

if TYPE_CHECKING:
    Pipe = connection.Connection[Any, Any]

_ALIGNMENT = 64
_ROWS, _SAMPLES = "rows", "samples"
"""What shared memory holds: the global model with the weights of all jobs, and the samples they are trained on."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_NOTHING = Samples(torch.empty(0), torch.empty(0))


class WorkerEngine(Engine):
    """Trains the clients of a round in `workers` processes with one thread each.

    The processes start at once and end with `close()`, with the engine itself, or with this process, however it ends.
    After an error or an interruption the engine is closed.

    Parameters
    ----------
    task
        Reaches the workers without the data it has loaded; its class has to be importable there.
    model
        The task's model on the CPU; its dropout layers become keyed ones in place.
    workers
        How many processes; about as many as there are cores.
    """

    def __init__(self, task: Task, model: nn.Module, workers: int) -> None:
        if workers < 1:
            raise ConfigError(f"workers={workers} is not allowed: use at least 1")
        self.workers = workers
        self._layout = _Layout.of(with_keyed_dropout(model).state_dict())
        try:
            # Plain pickle copies tensors; the pickler of multiprocessing would make all processes share one model.
            content = pickle.dumps((_without_data(task), model, self._layout))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(f"task {task.name} cannot be sent to worker processes: {error}") from error
        self._crew: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _end, self._crew)
        self._memory = _SharedMemory(self._crew)
        for _ in range(workers):
            self._crew.append(_Worker.start())
        for worker in self._crew:
            worker.send(content)

    def train(self, global_weights: Mapping[str, Tensor], jobs: Sequence[Job]) -> TrainedWeights:
        """Train all clients, those with most to do first.

        The weights lie in shared memory, which is not used again for as long as somebody holds one of them.
        """
        if not self._finalizer.alive:
            raise G2uardFLError("the worker processes are closed: make a new engine")
        try:
            self._layout.write(global_weights, self._memory.reserve(_ROWS, (len(jobs) + 1) * self._layout.row_bytes), 0)
            orders = [
                _Order(replace(job, samples=_NOTHING), place, row)
                for row, (job, place) in enumerate(zip(jobs, self._write_samples(jobs), strict=True), start=1)
            ]
            orders.sort(key=lambda order: _work(order.job.recipe, order.place.count))
            self._carry_out(orders)
            rows = self._memory.lend(_ROWS)
            return [self._layout.views(rows, row) for row in range(1, len(jobs) + 1)]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all worker processes; more than once does no harm."""
        self._finalizer()
        self._memory.blocks.clear()

    def _write_samples(self, jobs: Sequence[Job]) -> list[_Place]:
        """Put the samples of all jobs into shared memory and say where they are."""
        places: list[_Place] = []
        stop = 0
        for job in jobs:
            places.append(_Place.of(job.samples, stop))
            stop = places[-1].stop
        block = self._memory.reserve(_SAMPLES, stop)
        for job, place in zip(jobs, places, strict=True):
            there = place.samples(block)
            there.x.copy_(job.samples.x)
            there.y.copy_(job.samples.y)
        return places

    def _carry_out(self, orders: list[_Order]) -> None:
        """Hand out `orders` from the end of the list, the next one to whoever is free."""
        busy: dict[_Worker, _Order] = {}
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
                    problem = worker.receive()
                    order = busy.pop(worker)
                    if problem:
                        raise G2uardFLError(f"client {order.job.client} could not be trained: {problem}")
                    idle.append(worker)


class _SharedMemory:
    """Blocks of shared memory that all workers see under the same names; a name means one block at a time."""

    def __init__(self, crew: list[_Worker]) -> None:
        self.blocks: dict[str, Tensor] = {}
        self._crew = crew
        self._lent: dict[str, weakref.ref[NDArray[Any]]] = {}

    def reserve(self, name: str, size: int) -> Tensor:
        """The block `name` with room for `size` bytes; a new one if the last is too small or partly held by others."""
        block = self.blocks.get(name)
        if block is not None and len(block) >= size and not self._is_held(name):
            return block
        size = max(size, _ALIGNMENT)
        _check_shared_memory(size)
        new: Tensor = torch.empty(size, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        self.blocks[name] = new
        for worker in self._crew:
            worker.send(_Attach(name, new))
        return new

    def lend(self, name: str) -> Tensor:
        """The block `name`; it is held by others as long as this tensor or a view of it exists anywhere."""
        # A tensor's views share its memory and not its Python object; that memory keeps this array alive.
        array = self.blocks[name].numpy()
        self._lent[name] = weakref.ref(array)
        return torch.from_numpy(array)

    def _is_held(self, name: str) -> bool:
        return name in self._lent and self._lent[name]() is not None


@dataclass(frozen=True)
class _Layout:
    """Where each weight of a model lies in a row of bytes; buffers and integer counters are weights too."""

    entries: tuple[tuple[str, torch.dtype, tuple[int, ...], int, int], ...]
    """Name, type, shape, first byte and number of bytes."""
    row_bytes: int

    @staticmethod
    def of(weights: Mapping[str, Tensor]) -> _Layout:
        entries = []
        offset = 0
        for name, value in weights.items():
            if value.device.type != "cpu":
                raise ConfigError(f"worker processes train on the CPU, but {name} is on {value.device}")
            entries.append((name, value.dtype, tuple(value.shape), offset, value.numel() * value.element_size()))
            offset = _aligned(offset + entries[-1][-1])
        return _Layout(tuple(entries), max(offset, _ALIGNMENT))

    def views(self, block: Tensor, row: int) -> dict[str, Tensor]:
        """The weights in a row, without copying them."""
        start = row * self.row_bytes
        return {
            name: block[start + offset : start + offset + size].view(dtype).view(shape)
            for name, dtype, shape, offset, size in self.entries
        }

    def write(self, weights: Mapping[str, Tensor], block: Tensor, row: int) -> None:
        """Fill a row."""
        for name, place in self.views(block, row).items():
            value = weights.get(name)
            if value is None or value.shape != place.shape:
                raise G2uardFLError(f"the global model does not fit the task's: {name} is missing or of another shape")
            place.copy_(value)


@dataclass(frozen=True)
class _Place:
    """Where a job's samples lie: the first byte, and type and shape of inputs and labels."""

    start: int
    dtypes: tuple[torch.dtype, torch.dtype]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]

    @staticmethod
    def of(samples: Samples, start: int) -> _Place:
        x, y = samples.x, samples.y
        return _Place(start, (x.dtype, y.dtype), (tuple(x.shape), tuple(y.shape)))

    @property
    def count(self) -> int:
        return self.shapes[1][0]

    @property
    def sizes(self) -> list[int]:
        return [
            torch.Size(shape).numel() * dtype.itemsize for dtype, shape in zip(self.dtypes, self.shapes, strict=True)
        ]

    @property
    def stop(self) -> int:
        return self.start + sum(_aligned(size) for size in self.sizes)

    def samples(self, block: Tensor) -> Samples:
        """The samples at this place, without copying them."""
        parts = []
        offset = self.start
        for dtype, shape, size in zip(self.dtypes, self.shapes, self.sizes, strict=True):
            parts.append(block[offset : offset + size].view(dtype).view(shape))
            offset += _aligned(size)
        return Samples(*parts)


@dataclass(frozen=True)
class _Attach:
    """Gives a worker a new block in place of the last one of this name."""

    name: str
    block: Tensor


@dataclass(frozen=True)
class _Order:
    """One job, its samples by their place, and the row for the result."""

    job: Job
    place: _Place
    row: int


class _Worker:
    """A worker process and the pipe to it, as seen from the main process."""

    def __init__(self, process: SpawnProcess, pipe: Pipe) -> None:
        self.process = process
        self.pipe = pipe

    @staticmethod
    def start() -> _Worker:
        context = torch.multiprocessing.get_context("spawn")
        pipe, far_end = context.Pipe()
        process = context.Process(target=_work_until_closed, args=(far_end,), daemon=True)
        with _interrupts_blocked():
            process.start()
        far_end.close()
        return _Worker(process, pipe)

    def send(self, message: bytes | _Attach | _Order) -> None:
        try:
            self.pipe.send(message)
        except OSError as error:
            raise self._death() from error

    def receive(self) -> str:
        """What went wrong with the worker's job; empty if nothing did."""
        try:
            return str(self.pipe.recv())
        except (OSError, EOFError) as error:
            raise self._death() from error

    def _death(self) -> G2uardFLError:
        self.process.join(1)
        code = self.process.exitcode
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}: if memory ran out, use fewer workers"
        else:
            how = (
                f"ended by itself with status {code}: its own message is above; a script that makes an engine does so "
                "under `if __name__ == '__main__':`"
            )
        return G2uardFLError(f"worker process {self.process.pid} {how}")


def _end(crew: list[_Worker]) -> None:
    """End the processes: ask by closing the pipe, and do not wait for a job that is still being done."""
    for worker in crew:
        worker.pipe.close()
        worker.process.terminate()
    for worker in crew:
        worker.process.join(2)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes started here never see Ctrl-C, which is the main process's to handle."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # if the first process started it, that would end the blocking
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work_until_closed(pipe: Pipe) -> None:
    """What a worker process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _keep_freed_memory()
    messages = _messages(pipe)
    content = next(messages, b"")
    if not content:
        return
    task, model, layout = pickle.loads(content)  # noqa: S301 - written by the parent process
    del content  # as large as the model
    blocks: dict[str, Tensor] = {}
    for message in messages:
        if isinstance(message, _Attach):
            blocks[message.name] = message.block
            continue
        try:
            pipe.send(_problem_with(message, task, model, layout, blocks))
        except OSError:
            return


def _problem_with(order: _Order, task: Task, model: nn.Module, layout: _Layout, blocks: Mapping[str, Tensor]) -> str:
    """Carry out an order and say what went wrong; empty if nothing did."""
    try:
        rows = blocks[_ROWS]
        job = replace(order.job, samples=order.place.samples(blocks[_SAMPLES]))
        layout.write(train_locally(task, model, layout.views(rows, 0), job), rows, order.row)
    except G2uardFLError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _messages(pipe: Pipe) -> Iterator[Any]:
    """What the main process sends, until it closes the pipe."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            yield pipe.recv()


def _end_with_parent() -> None:
    """End this process at once when its parent is gone, even in the middle of a job."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _keep_freed_memory() -> None:
    """Let the allocator keep what is freed.

    glibc gives large buffers back to the system and asks for them anew in every step, and the new pages have to be
    cleared each time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    mallopt(_M_TRIM_THRESHOLD, 1 << 30)


def _without_data(task: Task) -> Task:
    """A copy of `task` that has loaded nothing yet."""
    bare = copy.copy(task)
    for name in list(vars(bare)):
        if isinstance(getattr(type(bare), name, None), cached_property):
            del vars(bare)[name]
    return bare


def _check_shared_memory(size: int) -> None:
    """Say so where shared memory is short: Linux lets it be allocated and kills whoever writes to it."""
    if Path("/dev/shm").is_dir():  # noqa: S108
        free = shutil.disk_usage("/dev/shm").free  # noqa: S108
        if free < size:
            raise G2uardFLError(
                f"/dev/shm has {free >> 20} MiB free, but {size >> 20} MiB are needed for worker processes: enlarge it "  # noqa: S108
                "(docker run --shm-size=2g) or train without workers"
            )


def _work(recipe: Recipe, count: int) -> int:
    """How many samples a job goes through."""
    return recipe.steps * min(recipe.batch_size, count) or recipe.epochs * count


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
