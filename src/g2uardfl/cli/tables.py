"""Tables in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from ..simulation.directory import FinishedRun


def results_table(runs: Sequence[FinishedRun], title: str) -> Table:
    """ACC, ASR, DS and detection of each run, in percent."""
    table = Table(title=title, title_justify="left")
    table.add_column("defense", style="bold")
    for heading in ("ACC %", "ASR %", "DS %", "precision %", "recall %", "F1 %"):
        table.add_column(heading, justify="right")
    for run in runs:
        summary, detection = run.summary, run.summary["detection"]
        shares = [summary["acc"], summary["asr"], summary["ds"]]
        cells = [f"{100 * share:.2f}" for share in shares]
        flagged = any(
            verdict["decision"] != "accepted" for record in run.rounds for verdict in record["verdicts"].values()
        )
        cells += [f"{100 * detection[name]:.2f}" if flagged else "-" for name in ("precision", "recall", "f1")]
        table.add_row(run.config.defense, *cells)
    return table
