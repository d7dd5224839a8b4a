"""Progress on a terminal: a bar with the latest ACC and ASR, and nothing where nobody watches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..simulation.run import Callback

if TYPE_CHECKING:
    from ..simulation.run import Simulation


def bar(console: Console) -> Progress:
    """A progress display in the house style."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=not console.is_terminal,
    )


class ProgressBar(Callback):
    """Shows a run as it goes: rounds, ACC, ASR and how many clients were refused in the last round."""

    def __init__(self, progress: Progress, description: str) -> None:
        self._progress = progress
        self._description = description
        self._scores = ""

    def on_start(self, simulation: Simulation) -> None:
        """Start a bar with the scores of the start model."""
        self._show(simulation.start_scores["acc"], simulation.start_scores["asr"])
        self._bar = self._progress.add_task(self._description, total=simulation.config.rounds, note=self._scores)

    def on_round(self, record: dict[str, Any]) -> None:
        """Advance by one round."""
        if record["acc"] is not None:
            self._show(record["acc"], record["asr"])
        decisions = [verdict["decision"] for verdict in record["verdicts"].values()]
        refused = sum(decision in ("malicious", "held_out", "invalid") for decision in decisions)
        self._progress.update(self._bar, advance=1, note=f"{self._scores}  refused {refused} of {len(decisions)}")

    def _show(self, acc: float, asr: float) -> None:
        self._scores = f"ACC {100 * acc:5.1f} %  ASR {100 * asr:5.1f} %"
