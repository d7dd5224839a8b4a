"""One worker process: the messages it gets, what it does with them, and its handle in the main process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection, parent_process, resource_tracker
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, Any

import torch
import torch.multiprocessing
from torch import Tensor, nn

from ..core.errors import G2uardFLError
from ..tasks.base import Task
from .local import Job, train_locally
from .shared_memory import SampleLocation, WeightLayout

if TYPE_CHECKING:
    Pipe = connection.Connection[Any, Any]

ROWS, SAMPLES = "rows", "samples"
"""The two blocks of shared memory: the global model (row 0) with the weights of all jobs, and the jobs' samples."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""The numbers of two parameters of glibc's `mallopt`."""
_PARENT_CHECK_SECONDS = 1.0
"""A worker checks this often that its parent is alive, in case the closed pipe does not show that it has ended."""
_EXIT_SECONDS = 2.0
"""A worker that has not reacted to SIGTERM after this time is killed."""


@dataclass(frozen=True)
class Attach:
    """Message to a worker: use this block from now on in place of the previous one of the same name."""

    name: str
    block: Tensor


@dataclass(frozen=True)
class Order:
    """Message to a worker: do a job (sent without its samples) and write the weights into `row`."""

    job: Job
    location: SampleLocation
    row: int


class Worker:
    """A worker process and the pipe to it, seen from the main process."""

    def __init__(self, process: SpawnProcess, pipe: Pipe) -> None:
        self.process = process
        self.pipe = pipe

    @staticmethod
    def start() -> Worker:
        """Start a process; its first message is the pickled task, model and layout."""
        context = torch.multiprocessing.get_context("spawn")
        pipe, far_end = context.Pipe()
        process = context.Process(target=_run, args=(far_end,), daemon=True)
        with _sigint_blocked():
            process.start()
        far_end.close()
        return Worker(process, pipe)

    def send(self, message: bytes | Attach | Order) -> None:
        """Send a message; raise if the process has ended."""
        try:
            self.pipe.send(message)
        except OSError as error:
            raise self._exit_error() from error

    def receive(self) -> str:
        """Wait for the worker to finish its job; return the error message, empty if there was none."""
        try:
            return str(self.pipe.recv())
        except (OSError, EOFError) as error:
            raise self._exit_error() from error

    def _exit_error(self) -> G2uardFLError:
        self.process.join(1)
        code = self.process.exitcode
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}: if memory ran out, use fewer workers"
        else:
            how = (
                f"exited with status {code}: see its own message above; a script that creates an engine must do so "
                "under `if __name__ == '__main__':`"
            )
        return G2uardFLError(f"worker process {self.process.pid} {how}")


def end(workers: Sequence[Worker]) -> None:
    """End the processes without waiting for the jobs they are doing."""
    for worker in workers:
        worker.pipe.close()
        worker.process.terminate()
    for worker in workers:
        worker.process.join(_EXIT_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


@contextlib.contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT in processes started here, until they ignore it: the main process alone handles Ctrl-C."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it unblocks SIGINT when it is started, which must not happen below
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(pipe: Pipe) -> None:
    """Run in the worker process until the main process closes the pipe or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the main process may have been started with SIGTERM ignored
    threading.Thread(target=_exit_with_parent, daemon=True).start()
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
        if isinstance(message, Attach):
            blocks[message.name] = message.block
            continue
        try:
            pipe.send(_do(message, task, model, layout, blocks))
        except OSError:
            return


def _do(order: Order, task: Task, model: nn.Module, layout: WeightLayout, blocks: Mapping[str, Tensor]) -> str:
    """Do a job; return the error message, empty if there was none."""
    try:
        rows = blocks[ROWS]
        job = replace(order.job, samples=order.location.samples(blocks[SAMPLES]))
        layout.write(train_locally(task, model, layout.views(rows, 0), job), rows, order.row)
    except G2uardFLError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _messages(pipe: Pipe) -> Iterator[Any]:
    """The messages of the main process until it closes the pipe."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            yield pipe.recv()


def _exit_with_parent() -> None:
    """Exit at once when the parent has ended, even in the middle of a job."""
    parent = parent_process()
    if parent is None:
        return
    # Another child of the parent may hold a copy of the pipe that closes when the parent ends.
    while os.getppid() == parent.pid and not connection.wait([parent.sentinel], _PARENT_CHECK_SECONDS):
        pass
    os._exit(1)


def _keep_freed_memory() -> None:
    """Make the allocator keep freed memory.

    By default glibc returns large buffers to the system and requests them again in every step, and the system has to
    clear the new pages each time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    mallopt(_M_TRIM_THRESHOLD, 1 << 30)
