"""`g2uardfl compare`: the figures of many runs, as means over seeds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .lists import ListCommand

if TYPE_CHECKING:
    from rich.console import Console

    from ..experiments.results import Group


_GAP = 2
"""Spaces between two columns of a table."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare", cls=ListCommand)(compare)


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Run directories, folders that hold some at any depth, or patterns such as 'runs/**'.",
            metavar="PATH...",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Page with the curves.", show_default="compare.html with --format table")
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="table, csv, json, md or latex.")] = "table",
    figures: Annotated[
        list[str] | None,
        typer.Option(help="Names in summary.json, e.g. acc asr_max recall.", show_default="all", metavar="NAME..."),
    ] = None,
    by_seed: Annotated[bool, typer.Option("--by-seed", help="One row per run, instead of means over seeds.")] = False,
) -> None:
    """Compare finished runs: mean and standard deviation over seeds, with a column for each setting that differs.

    Example: g2uardfl compare runs/sweep --format latex --figures acc asr recall benign_refused
    """
    from rich.console import Console

    from ..core.errors import ConfigError
    from ..experiments import comparison
    from ..experiments.results import grouped, read_runs
    from ..report.page import write_report

    if format_ not in ("table", *comparison.WRITERS):
        raise ConfigError(f"--format {format_}: choose one of table, {', '.join(comparison.WRITERS)}")
    chosen = comparison.chosen_figures(figures or [])
    finished, unfinished = read_runs(runs)
    groups = grouped(finished, by_seed=by_seed)
    if format_ == "table":
        print_groups(Console(), groups, chosen)
    else:
        typer.echo(comparison.WRITERS[format_](groups, chosen), nl=False)
    if any(group.repeats_seeds for group in groups):
        typer.echo(
            "some rows hold several runs with one seed (copies, or of different releases): deviations are too small",
            err=True,
        )
    if unfinished:
        typer.echo(f"left out {len(unfinished)} unfinished, the first is {unfinished[0]}", err=True)
    if out or format_ == "table":
        typer.echo(f"Wrote {write_report(finished, out or Path('compare.html'), 'Compared runs')}", err=bool(out))


def print_groups(console: Console, groups: Sequence[Group], figures: dict[str, str]) -> None:
    """Print the comparison as one table, or several below each other if the terminal is too narrow."""
    from rich.table import Table

    from ..experiments.comparison import text_table

    headings, rows = text_table(groups, figures)
    widths = [
        max(min(10, len(heading)), *map(len, heading.split()), *(len(row[column]) for row in rows)) + _GAP
        for column, heading in enumerate(headings)
    ]
    fixed = len(groups[0].settings) + 1
    waiting = list(range(fixed, len(headings)))
    while waiting:
        totals = itertools.accumulate((widths[column] for column in waiting), initial=sum(widths[:fixed]) - _GAP)
        count = max(1, sum(total <= console.width for total in totals) - 1)
        shown = [*range(fixed), *waiting[:count]]
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
        for column in shown:
            justify: Literal["left", "right"] = "left" if column < fixed - 1 else "right"
            table.add_column(headings[column], justify=justify, width=widths[column] - _GAP)
        for row in rows:
            table.add_row(*(row[column] for column in shown))
        console.print(table)
        console.print()
        waiting = waiting[count:]
