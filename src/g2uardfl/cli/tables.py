"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from ..simulation.directory import FinishedRun


def results_table(runs: Sequence[FinishedRun], title: str, names: Sequence[str] | None = None) -> Table:
    """ACC, ASR, DS and detection rates of each run in percent; without `names`, rows are named by the defence."""
    table = Table(title=title, title_justify="left")
    table.add_column("run" if names else "defense", style="bold")
    for heading in ("ACC %", "ASR %", "DS %", "precision %", "recall %", "F1 %"):
        table.add_column(heading, justify="right")
    for run, name in zip(runs, names or [run.config.defense for run in runs], strict=True):
        table.add_row(name, *run.figures)
    return table
