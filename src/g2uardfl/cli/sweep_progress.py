"""Progress of a sweep: bars on a terminal, and a line for each finished run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.progress import TaskID

from .progress import PretrainingProgress, bar, duration

if TYPE_CHECKING:
    from rich.console import Console

    from ..experiments.job import Job

_QUIET_SECONDS = 60.0
"""Without a terminal, a line is printed at least this often while rounds are finished."""


class SweepProgress:
    """Shows the progress of the runs of a sweep.

    Parameters
    ----------
    console
        Where to print.
    jobs
        The runs that will be executed.

    Attributes
    ----------
    failures
        The failed runs, each with its error.
    """

    def __init__(self, console: Console, jobs: Sequence[Job]) -> None:
        self.failures: list[tuple[Job, str]] = []
        self._console = console
        self._bars = bar(console)
        self.pretraining = PretrainingProgress(self._bars)
        self._running: dict[Path, TaskID] = {}
        self._left = {job.path: job.config.rounds for job in jobs}
        self._rounds = sum(self._left.values())
        self._count = len(jobs)
        self._ended = 0
        self._done: int | None = None  # the number of rounds since the first one of all runs
        self._began = self._printed = time.monotonic()

    def __enter__(self) -> SweepProgress:
        self._bars.start()
        self._all = self._bars.add_task("all rounds", total=self._rounds, note="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def on_round(self, job: Job, record: dict[str, Any]) -> None:
        """Advance the bar of the run."""
        if self._done is None:
            self._began = time.monotonic()
            self._done = -1
        left = job.config.rounds - record["round"]
        # The first rounds of a continued run were finished before.
        self._done += self._left[job.path] - left if job.path in self._running else 1
        self._left[job.path] = left
        if job.path not in self._running:
            self._running[job.path] = self._bars.add_task(job.path.name, total=job.config.rounds, note="")
        self._bars.update(self._running[job.path], completed=record["round"])
        if record["acc"] is not None:
            self._bars.update(self._running[job.path], note=_scores(record))
        self._show_all()
        if not self._console.is_terminal and time.monotonic() - self._printed > _QUIET_SECONDS:
            self._print(f"{self._rounds - self._total_left()} of {self._rounds} rounds")

    def on_finished(self, job: Job, summary: dict[str, Any]) -> None:
        """Print the results of the run."""
        early = (
            f" after round {summary['rounds']}, because {summary['ended_early']}" if "ended_early" in summary else ""
        )
        self._end(job, f"{_scores(summary)}{early}")

    def on_failed(self, job: Job, error: str) -> None:
        """Print the error."""
        self.failures.append((job, error))
        self._end(job, f"failed: {error}")

    def _end(self, job: Job, result: str) -> None:
        self._ended += 1
        self._left[job.path] = 0
        if job.path in self._running:
            self._bars.remove_task(self._running.pop(job.path))
        self._show_all()
        self._print(f"[{self._ended}/{self._count}] {job.path.name}: {result}")

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        left = self._total_left()
        estimate = ""
        if left and self._done:
            estimate = f" (about {duration((self._printed - self._began) / self._done * left)} left)"
        self._bars.console.print(text + estimate, highlight=False, markup=False, soft_wrap=True)

    def _show_all(self) -> None:
        self._bars.update(self._all, completed=self._rounds - self._total_left())

    def _total_left(self) -> int:
        return sum(self._left.values())


def _scores(values: dict[str, Any]) -> str:
    return f"ACC {100 * values['acc']:.2f} %  ASR {100 * values['asr']:.2f} %"
