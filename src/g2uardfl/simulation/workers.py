"""Clients trained side by side in worker processes, each with one thread: the fastest way on a CPU.

Weights and samples travel through shared memory: the global model is written once a round, each client's weights come
back in a row of their own, and a client's samples are written when it is first selected. What goes through a pipe is a
few hundred bytes per job. A worker runs the same `train_locally` as the plain loop does with one thread, so that the
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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing import connection, parent_process
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.multiprocessing
from torch import Tensor, nn

from ..errors import ConfigError, G2uardFLError
from ..tasks.base import Samples, Task
from .dropout import with_keyed_dropout
from .engine import Engine, TrainedWeights
from .training import Job, Recipe, train_locally

if TYPE_CHECKING:
    Pipe = connection.Connection[Any, Any]

_ALIGNMENT = 64
_CHUNK_BYTES = 32 << 20
"""Samples of several clients share one block of this size: every block costs an open file."""
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
        self._rows: tuple[int, int] | None = None
        self._crew: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _end, self._crew)
        self._memory = _SharedMemory(self._crew)
        self._shelf = _Shelf(self._memory)
        for _ in range(workers):
            self._crew.append(_Worker.start(content))

    def train(self, global_weights: Mapping[str, Tensor], jobs: Sequence[Job]) -> TrainedWeights:
        """Train all clients, those with most to do first."""
        if not self._finalizer.alive:
            raise G2uardFLError("the worker processes are closed: make a new engine")
        try:
            block = self._rows_for(len(jobs))
            self._layout.write(global_weights, self._memory.blocks[block], 0)
            orders = [
                _Order(replace(job, samples=_NOTHING), place, block, row)
                for row, (job, place) in enumerate(zip(jobs, self._places_of(jobs), strict=True), start=1)
            ]
            orders.sort(key=lambda order: _work(order.job.recipe, order.place.count))
            self._carry_out(orders)
            rows = self._memory.blocks[block]
            return [self._layout.read(rows, row) for row in range(1, len(jobs) + 1)]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all worker processes; more than once does no harm."""
        self._finalizer()
        self._memory.blocks.clear()
        self._shelf = _Shelf(self._memory)

    def _places_of(self, jobs: Sequence[Job]) -> list[_Place]:
        """Where each job's samples lie; a client's second job in a round has a place of its own."""
        seen: Counter[int] = Counter()
        places = []
        for job in jobs:
            places.append(self._shelf.put((job.client, seen[job.client]), job.samples))
            seen[job.client] += 1
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

    def _rows_for(self, count: int) -> int:
        """The number of a block with one row for the global model and one per job."""
        if self._rows is None or self._rows[1] < count:
            if self._rows is not None:
                del self._memory.blocks[self._rows[0]]
            self._rows = self._memory.add((count + 1) * self._layout.row_bytes), count
        return self._rows[0]


class _SharedMemory:
    """Blocks of shared memory that all workers see under the same numbers."""

    def __init__(self, crew: list[_Worker]) -> None:
        self.blocks: dict[int, Tensor] = {}
        self._crew = crew
        self._next = 0

    def add(self, size: int) -> int:
        """The number of a new block of `size` bytes."""
        _check_shared_memory(size)
        block: Tensor = torch.empty(size, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        number, self._next = self._next, self._next + 1
        self.blocks[number] = block
        for worker in self._crew:
            worker.send(_Attach(number, block, frozenset(self.blocks)))
        return number


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

    def read(self, block: Tensor, row: int) -> dict[str, Tensor]:
        """A copy of the weights in a row."""
        return {name: value.clone() for name, value in self.views(block, row).items()}

    def write(self, weights: Mapping[str, Tensor], block: Tensor, row: int) -> None:
        """Fill a row."""
        for name, place in self.views(block, row).items():
            value = weights.get(name)
            if value is None or value.shape != place.shape:
                raise G2uardFLError(f"the global model does not fit the task's: {name} is missing or of another shape")
            place.copy_(value)


@dataclass(frozen=True)
class _Place:
    """Where a client's samples lie: a block, the bytes in it, and type and shape of inputs and labels."""

    block: int
    start: int
    stop: int
    dtypes: tuple[torch.dtype, torch.dtype]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]

    @property
    def count(self) -> int:
        return self.shapes[1][0]

    def samples(self, block: Tensor) -> Samples:
        """The samples at this place, without copying them."""
        parts = []
        offset = self.start
        for dtype, shape in zip(self.dtypes, self.shapes, strict=True):
            size = torch.Size(shape).numel() * dtype.itemsize
            parts.append(block[offset : offset + size].view(dtype).view(shape))
            offset += _aligned(size)
        return Samples(*parts)


class _Shelf:
    """The clients' samples in shared memory, each written when it is new or another object than last time."""

    def __init__(self, memory: _SharedMemory) -> None:
        self._memory = memory
        self._kept: dict[tuple[int, int], tuple[Samples, _Place]] = {}
        self._free: list[tuple[int, int, int]] = []
        """Block, first byte and byte after the last of each unused space."""

    def put(self, key: tuple[int, int], samples: Samples) -> _Place:
        """The place of the samples known as `key`, which are there when this returns."""
        if key in self._kept:
            kept, place = self._kept[key]
            if kept is samples:
                return place
            self._give_back((place.block, place.start, place.stop))
        place = _Place(
            *self._take(max(_aligned(samples.x.nbytes) + _aligned(samples.y.nbytes), _ALIGNMENT)),
            dtypes=(samples.x.dtype, samples.y.dtype),
            shapes=(tuple(samples.x.shape), tuple(samples.y.shape)),
        )
        there = place.samples(self._memory.blocks[place.block])
        there.x.copy_(samples.x)
        there.y.copy_(samples.y)
        self._kept[key] = samples, place
        return place

    def _take(self, size: int) -> tuple[int, int, int]:
        """The smallest space that holds `size` bytes, from a new block if need be."""
        fitting = [space for space in self._free if space[2] - space[1] >= size]
        if not fitting:
            length = max(size, _CHUNK_BYTES)
            fitting = [(self._memory.add(length), 0, length)]
            self._free += fitting
        space = min(fitting, key=lambda candidate: candidate[2] - candidate[1])
        self._free.remove(space)
        block, start, stop = space
        if stop - start > size:
            self._free.append((block, start + size, stop))
        return block, start, start + size

    def _give_back(self, space: tuple[int, int, int]) -> None:
        """Make a space free, as one with those beside it."""
        block, start, stop = space
        for neighbour in [other for other in self._free if other[0] == block]:
            if neighbour[2] == start or neighbour[1] == stop:
                self._free.remove(neighbour)
                start, stop = min(start, neighbour[1]), max(stop, neighbour[2])
        self._free.append((block, start, stop))


@dataclass(frozen=True)
class _Attach:
    """Tells a worker of a new block, and which ones are still in use."""

    number: int
    block: Tensor
    in_use: frozenset[int]


@dataclass(frozen=True)
class _Order:
    """One job, its samples by their place, and the row for the result."""

    job: Job
    place: _Place
    rows_block: int
    row: int


class _Worker:
    """A worker process and the pipe to it, as seen from the main process."""

    def __init__(self, process: SpawnProcess, pipe: Pipe) -> None:
        self.process = process
        self.pipe = pipe

    @staticmethod
    def start(content: bytes) -> _Worker:
        context = torch.multiprocessing.get_context("spawn")
        pipe, far_end = context.Pipe()
        process = context.Process(target=_work_until_closed, args=(far_end, content), daemon=True)
        with _interrupts_blocked():
            process.start()
        far_end.close()
        return _Worker(process, pipe)

    def send(self, message: _Attach | _Order) -> None:
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
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work_until_closed(pipe: Pipe, content: bytes) -> None:
    """What a worker process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _keep_freed_memory()
    task, model, layout = pickle.loads(content)  # noqa: S301 - written by the parent process
    blocks: dict[int, Tensor] = {}
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            return
        if isinstance(message, _Attach):
            blocks = {number: block for number, block in blocks.items() if number in message.in_use}
            blocks[message.number] = message.block
            continue
        problem = ""
        try:
            rows = blocks[message.rows_block]
            job = replace(message.job, samples=message.place.samples(blocks[message.place.block]))
            layout.write(train_locally(task, model, layout.views(rows, 0), job), rows, message.row)
        except G2uardFLError as error:
            problem = str(error)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        try:
            pipe.send(problem)
        except OSError:
            return


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
