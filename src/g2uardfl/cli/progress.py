"""Progress on a terminal: a bar with the latest ACC and ASR; no bar if the output is not a terminal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..aggregators.base import WARNED_EVENTS
from ..simulation.run import Callback

if TYPE_CHECKING:
    from ..simulation.run import Simulation


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


class ProgressBar(Callback):
    """Shows rounds, ACC, ASR and the number of clients refused in the last round; prints rollbacks and kept models.

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
        self._progress.update(self._bar, advance=1, note=f"{self._scores}  refused {refused} of {len(decisions)}")
        for event in record["events"]:
            if event["kind"] in WARNED_EVENTS:
                self._progress.console.print(f"round {record['round']}: {event['message']}", highlight=False)

    def _show(self, acc: float, asr: float) -> None:
        self._scores = f"ACC {100 * acc:5.1f} %  ASR {100 * asr:5.1f} %"
