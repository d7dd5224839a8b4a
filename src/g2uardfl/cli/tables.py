"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from ..simulation.directory import FinishedRun


def results_table(runs: Sequence[FinishedRun], title: str, names: Sequence[str] | None = None) -> Table:
    """The figures of each run, one column per run; without `names`, columns are named by the defence."""
    from ..simulation.metrics import FIGURES, shown
    from ..simulation.naming import defense_name

    table = Table("", title=title, title_justify="left")
    for name in names or [defense_name(run.config) for run in runs]:
        table.add_column(name, justify="right", overflow="fold")
    for heading in FIGURES:
        table.add_row(heading, *(shown(run.figures[heading]) for run in runs))
    return table
