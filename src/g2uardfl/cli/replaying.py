"""`g2uardfl replay`: decide recorded rounds again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

_HEADINGS = [
    "rounds", "Rand index", "precision %", "recall %", "F1 %", "benign refused %", "refused %",
    "rounds with an attacker accepted %", "seconds",
]  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay")(replay)


def replay(
    records: Annotated[list[Path], typer.Argument(help="Files that `run --record` wrote.", metavar="RECORD...")],
    defense: Annotated[str, typer.Option(help="A defence that can decide recorded rounds.")] = "g2uardfl",
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the defence, e.g. profile=paper.", metavar="KEY=VALUE"),
    ] = None,
) -> None:
    """Decide recorded rounds again, without training anything.

    A guard takes the settings of the recorded run where it had the same profile, and --set on top of them.

    Example: g2uardfl replay runs/*/record.npz --set min_evidence=20
    """
    from rich.console import Console

    from .. import aggregators
    from ..defense.recording import Record
    from ..simulation.config import with_assignments
    from ..simulation.replay import replay as decide
    from ..simulation.replay import with_recorded_settings
    from .progress import bar

    assigned = with_assignments({}, [f"defense.{one.removeprefix('defense.')}" for one in assignments or []])
    settings = assigned.get("defense_settings", {})
    rows: dict[str, list[str]] = {}
    loaded = [Record.load(path) for path in records]
    console = Console()
    with bar(console) as progress:
        task = progress.add_task("rounds", total=sum(len(record.rounds) for record in loaded), note="")
        for path, record in zip(records, loaded, strict=True):
            rule = aggregators.create(defense, **with_recorded_settings(record, settings))
            result = decide(record, rule, lambda: progress.advance(task))
            found = result.detection
            detected = [found.precision, found.recall, found.f1, found.benign_flagged] if found else [math.nan] * 4
            rows[str(path)] = [
                str(result.rounds),
                _shown(result.rand_index, 1),
                *(_shown(value, 100) for value in (*detected, result.refused, result.attacker_accepted)),
                f"{result.seconds:.2f}",
            ]
    _print(console, f"{defense} on recorded rounds", rows)


def _print(console: Console, title: str, rows: dict[str, list[str]]) -> None:
    """A row for each record, or where that is too wide a small table for each."""
    from rich.table import Table

    names = {path: Path(path).parent.name if Path(path).name == "record.npz" else Path(path).stem for path in rows}
    table = Table(title=title, title_justify="left")
    table.add_column("record", style="bold", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right")
    for path, cells in rows.items():
        table.add_row(names[path], *cells)
    if console.measure(table, options=console.options.update(max_width=10_000)).minimum <= console.width:
        console.print(table)
        return
    console.print(title)
    for path, cells in rows.items():
        small = Table(names[path], "", min_width=len(names[path]) + 8)
        for heading, cell in zip(_HEADINGS, cells, strict=True):
            small.add_row(heading, cell)
        console.print(small)


def _shown(value: float, scale: float) -> str:
    return "-" if math.isnan(value) else f"{scale * value:.2f}"
