"""Runs on the machines of a Ray cluster; needs Ray.

Each run is a Ray task with one CPU, or a share of a GPU. Its run directory is in a folder that all machines share, from
which the progress of the runs is read.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

from ..core.cache import cache_dir
from ..core.errors import ConfigError
from .job import Job
from .pool import FAILED, FINISHED, STOPPED, THREADS, Observer, Outcome, brief, execute

_CONNECT_SECONDS = 10.0
_POLL_SECONDS = 1.0
"""How often the progress of the runs is read."""


class RayPool:
    """Executes jobs on a Ray cluster.

    Parameters
    ----------
    jobs
        What to execute.
    address
        "host:port" of the cluster, "auto" for that of this machine, or "local" for a new one on this machine.
    per_gpu
        The number of runs that share a GPU.
    observer
        Receives the progress of the runs.
    """

    def __init__(self, jobs: Sequence[Job], address: str, per_gpu: int, observer: Observer) -> None:
        self._jobs = jobs
        self._address = address
        self._per_gpu = per_gpu
        self._observer = observer
        self._running: dict[Any, Job] = {}
        self._rounds: dict[Any, int] = {}
        self._stopping = False

    def run(self) -> None:
        """Execute all jobs; returns when all have ended or stopped."""
        ray = _ray()
        try:
            _require_reachable(self._address)
            ray.init(address=self._address, runtime_env={"env_vars": _environment()}, log_to_driver=False)
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"--ray {self._address}: cannot connect ({error}); start a cluster with: ray start --head"
            ) from error
        try:
            for job in self._jobs:
                gpus = 0 if job.config.device == "cpu" else 1 / self._per_gpu
                task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_execute)
                self._running[task.remote(job, os.getcwd())] = job
            while self._running:
                ended, _ = ray.wait(list(self._running), timeout=_POLL_SECONDS)
                for reference in list(self._running):
                    self._report_round(reference)
                for reference in ended:
                    self._end(self._running.pop(reference), self._outcome(reference))
        finally:
            ray.shutdown()

    def stop(self) -> None:
        """Start no more jobs, and stop each run after its current round; safe to call in a signal handler."""
        self._stopping = True
        for reference in list(self._running):
            _ray().cancel(reference)

    def _outcome(self, reference: Any) -> Outcome:
        ray = _ray()
        try:
            found: Outcome = ray.get(reference)
        except ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines()
            return (STOPPED, "") if self._stopping else (FAILED, f"{type(error).__name__}: {lines[0] if lines else ''}")
        return found

    def _end(self, job: Job, outcome: Outcome) -> None:
        kind, content = outcome
        if kind == FINISHED:
            self._observer.on_finished(job, content)
        elif kind == FAILED:
            self._observer.on_failed(job, content)

    def _report_round(self, reference: Any) -> None:
        """Report the last round of a run, if it has not been reported."""
        job = self._running[reference]
        try:
            lines = (job.path / "rounds.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
        except OSError:
            return
        if len(lines) > self._rounds.get(reference, 0):
            self._rounds[reference] = len(lines)
            self._observer.on_round(job, brief(json.loads(lines[-1])))


def _execute(job: Job, folder: str) -> Outcome:
    """Execute a job in a Ray worker; cancelling the task stops the run after its current round."""
    import torch

    torch.set_num_threads(1)
    if os.path.isdir(folder):  # paths of data and of custom classes are relative to it
        os.chdir(folder)
        sys.path.append(folder)
    stop: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: stop.append(number))
    return execute(job, lambda record: bool(stop))


def _require_reachable(address: str) -> None:
    """Raise `OSError` if nothing listens at host:port; Ray itself would wait for minutes."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if separator and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()


def _environment() -> dict[str, str]:
    """The environment of the workers: one thread each; folders of code, data and converged models as here."""
    found = {name: os.environ[name] for name in ("G2UARDFL_DATA", "G2UARDFL_DEBUG") if name in os.environ}
    paths = os.pathsep.join(path for path in sys.path if path)
    return {**found, **dict.fromkeys(THREADS, "1"), "PYTHONPATH": paths, "G2UARDFL_CACHE": str(cache_dir().absolute())}


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError("--ray needs Ray: pip install 'g2uardfl[ray]'") from error
    return ray
