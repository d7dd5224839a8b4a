"""Runs in parallel processes of this machine, with one thread each."""

from __future__ import annotations

import os
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection
from typing import TYPE_CHECKING, Any, Protocol

from ..core.errors import G2uardFLError
from ..core.processes import Worker, end, follow_parent, messages
from ..simulation.run import Interrupted
from .job import EachRound, Job

if TYPE_CHECKING:
    from ..core.processes import Pipe

_STOP = "stop"
"""Message to a worker: stop the run after this round."""
ROUND, FINISHED, FAILED, STOPPED = "round", "finished", "failed", "stopped"
"""The first part of each message of a worker."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables with the number of threads of a process."""


Outcome = tuple[str, Any]
"""How a run has ended, and its summary or error."""


class Observer(Protocol):
    """Receives the progress of the runs of a sweep."""

    def on_round(self, job: Job, record: dict[str, Any]) -> None:
        """Called after each round with its number, ACC and ASR."""

    def on_finished(self, job: Job, summary: dict[str, Any]) -> None:
        """Called after a run."""

    def on_failed(self, job: Job, error: str) -> None:
        """Called after a run that has failed, with the reason in one line (and the traceback for `--debug`)."""


class Pool:
    """Executes jobs in `size` processes.

    A process takes one job after the other. On a GPU it takes a single one, because a process returns memory of the GPU
    reliably only when it ends.

    Parameters
    ----------
    jobs
        What to execute, in this order.
    size
        The number of processes.
    observer
        Receives the progress of the runs.
    """

    def __init__(self, jobs: Iterable[Job], size: int, observer: Observer) -> None:
        self._waiting = deque(jobs)
        self._size = size
        self._observer = observer
        self._idle: list[Worker] = []
        self._busy: dict[Worker, Job] = {}

    def run(self) -> None:
        """Execute all jobs; returns when all have ended or stopped."""
        try:
            while self._waiting or self._busy:
                while self._waiting and len(self._busy) < self._size:
                    self._start(self._waiting.popleft())
                ready = connection.wait([source for worker in self._busy for source in _sources(worker)])
                for worker in [one for one in self._busy if any(source in ready for source in _sources(one))]:
                    self._receive(worker)
        finally:
            end([*self._idle, *self._busy])

    def stop(self) -> None:
        """Start no more jobs, and stop each run after its current round; safe to call in a signal handler."""
        self._waiting.clear()
        for worker in list(self._busy):
            with suppress(G2uardFLError):  # the process has ended, which `run` will notice
                worker.send(_STOP)

    def _start(self, job: Job) -> None:
        if not self._idle:
            with _one_thread_each():
                self._idle.append(Worker.start(_work, daemon=False))
        worker = self._idle.pop()
        try:
            worker.send(job)
        except G2uardFLError as error:
            self._observer.on_failed(job, str(error))
        else:
            self._busy[worker] = job

    def _receive(self, worker: Worker) -> None:
        job = self._busy[worker]
        try:
            kind, content = worker.receive()
        except G2uardFLError as error:
            kind, content = FAILED, str(error)
        if kind == ROUND:
            self._observer.on_round(job, content)
            return
        del self._busy[worker]
        if worker.process.is_alive() and job.config.device == "cpu":
            self._idle.append(worker)
        else:
            end([worker])
        if kind == FINISHED:
            self._observer.on_finished(job, content)
        elif kind == FAILED:
            self._observer.on_failed(job, content)


def describe_error(error: BaseException) -> str:
    """An error in one line, with the traceback for `--debug`."""
    line = str(error) if isinstance(error, G2uardFLError) else f"{type(error).__name__}: {error}"
    shown = " ".join(line.split())
    if os.environ.get("G2UARDFL_DEBUG"):
        return "".join([*traceback.format_exception(error), shown])
    return shown


def brief(record: dict[str, Any]) -> dict[str, Any]:
    """The values of a round that an observer receives."""
    return {name: record[name] for name in ("round", "acc", "asr")}


def _sources(worker: Worker) -> tuple[Any, Any]:
    return worker.pipe, worker.process.sentinel


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Make processes that are started in the block use one thread."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _work(pipe: Pipe) -> None:
    """Run in a worker process: execute jobs until the main process closes the pipe or ends."""
    import torch

    follow_parent()
    torch.set_num_threads(1)
    for message in messages(pipe):
        if message == _STOP:
            continue  # it was sent just before the run ended
        try:
            pipe.send(_outcome(message, pipe))
        except OSError:
            return


def _outcome(job: Job, pipe: Pipe) -> Outcome:
    """Execute a job in a worker process."""

    def report(record: dict[str, Any]) -> bool:
        pipe.send((ROUND, brief(record)))
        return pipe.poll()

    return execute(job, report)


def execute(job: Job, after_round: Callable[[dict[str, Any]], bool]) -> Outcome:
    """Execute a job; the run stops once `after_round` returns True.

    Returns
    -------
    Outcome
        FINISHED with the summary, FAILED with the error, or STOPPED.
    """
    try:
        return FINISHED, job.execute([EachRound(after_round)])
    except Interrupted:
        return STOPPED, ""
    except Exception as error:
        return FAILED, describe_error(error)
