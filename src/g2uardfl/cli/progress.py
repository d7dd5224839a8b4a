"""Progress on a terminal: a bar with the latest ACC and ASR; no bar if the output is not a terminal."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..aggregators.base import WARNED_EVENTS
from ..simulation.run import Callback

if TYPE_CHECKING:
    from ..simulation.run import Simulation

_PRETRAINING = "training to convergence"
_LINE_SECONDS = 10.0
"""Without a terminal, a line is printed after this time."""


def bar(console: Console) -> Progress:
    """A progress display."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=not console.is_terminal,
    )


@contextmanager
def stopping_after_the_round(simulation: Simulation, place: Path) -> Iterator[None]:
    """Stop after the current round on the first Ctrl-C, so that no round is lost; stop at once on the second."""

    def request_stop(_number: int, _frame: object) -> None:
        simulation.stop_asked = True
        signal.signal(signal.SIGINT, before)
        typer.echo(f"\nStopping after this round; continue later with: g2uardfl resume {place}", err=True)

    before = signal.signal(signal.SIGINT, request_stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class PretrainingProgress:
    """Shows the progress of training a converged model: a bar on a terminal, and lines elsewhere.

    Parameters
    ----------
    progress
        The display that gets the bar.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bar: TaskID | None = None

    def __call__(self, done: int, total: int) -> None:
        """Show the numbers of steps done and of all steps."""
        if self._bar is None:
            self._bar = self._progress.add_task(_PRETRAINING, total=total, note="")
            self._began, self._first, self._printed = time.monotonic(), done, -math.inf
        self._progress.update(self._bar, completed=done)
        now = time.monotonic()
        if not self._progress.console.is_terminal and (now - self._printed > _LINE_SECONDS or done == total):
            self._printed = now
            seconds = (now - self._began) / max(1, done - self._first) * (total - done)
            left = f" (about {duration(seconds)} left)" if self._first < done < total else ""
            self._progress.console.print(f"{_PRETRAINING}: {100 * done // total} %{left}", highlight=False)
        if done == total:
            self._bar = None


def duration(seconds: float) -> str:
    """A duration in words.

    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class ProgressBar(Callback):
    """Shows rounds, ACC, ASR and the number of clients rejected in the last round; prints rollbacks and kept models.

    All other events are in `rounds.jsonl` and on the report page.
    """

    def __init__(self, progress: Progress, description: str) -> None:
        self._progress = progress
        self._description = description
        self._scores = ""

    def on_start(self, simulation: Simulation) -> None:
        """Start a bar with the scores of the initial model."""
        self._show(simulation.start_scores["acc"], simulation.start_scores["asr"])
        self._bar = self._progress.add_task(
            self._description, total=simulation.config.rounds, completed=len(simulation.records), note=self._scores
        )

    def on_round(self, simulation: Simulation, record: dict[str, Any]) -> None:
        """Advance by one round."""
        if record["acc"] is not None:
            self._show(record["acc"], record["asr"])
        decisions = [verdict["decision"] for verdict in record["verdicts"].values()]
        refused = sum(decision != "accepted" for decision in decisions)
        self._progress.update(self._bar, advance=1, note=f"{self._scores}  rejected {refused} of {len(decisions)}")
        for event in record["events"]:
            if event["kind"] in WARNED_EVENTS:
                self._progress.console.print(f"round {record['round']}: {event['message']}", highlight=False)

    def _show(self, acc: float, asr: float) -> None:
        self._scores = f"ACC {100 * acc:5.1f} %  ASR {100 * asr:5.1f} %"
