"""`g2uardfl replay`: decide recorded rounds again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

_HEADINGS = [
    "rounds", "Rand index", "precision %", "recall %", "F1 %", "false positive rate %", "rejected %",
    "rounds with an attacker accepted %", "seconds",
]  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay")(replay)


def replay(
    runs: Annotated[
        list[Path], typer.Argument(help="Runs with --record: their directories or record.npz files.", metavar="RUN...")
    ],
    defense: Annotated[
        str | None,
        typer.Option(help="A defence that can decide recorded rounds.", show_default="the run's, or g2uardfl"),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the defence, e.g. profile=paper.", metavar="KEY=VALUE"),
    ] = None,
) -> None:
    """Decide recorded rounds again, without training.

    The defence of the run is replayed with its settings, which gives the same decisions.

    With --set one setting is changed; --set profile=NAME chooses another profile, with its default settings.

    Example: g2uardfl replay runs/* --set profile=paper
    """
    from rich.console import Console

    from ..defense.recording import Record
    from ..simulation.config import with_assignments
    from ..simulation.metrics import shown
    from ..simulation.replay import create_for
    from ..simulation.replay import replay as decide
    from .progress import bar

    assigned = with_assignments({}, [f"defense.{one.removeprefix('defense.')}" for one in assignments or []])
    settings = assigned.get("defense_settings", {})
    records = [_record_in(path) for path in runs]
    loaded = [Record.load(path) for path in records]
    rules = [create_for(record, defense, settings) for record in loaded]
    rows: dict[str, list[str]] = {}
    console = Console()
    with bar(console) as progress:
        task = progress.add_task("rounds", total=sum(len(record.rounds) for record in loaded), note="")
        for path, record, rule in zip(records, loaded, rules, strict=True):
            result = decide(record, rule, lambda: progress.advance(task))
            found = result.detection
            detected = [found.precision, found.recall, found.f1, found.benign_refused] if found else [None] * 4
            rates = [*detected, result.refused, result.attacker_accepted]
            rows[str(path)] = [
                str(result.rounds),
                shown(result.rand_index),
                *(shown(None if rate is None else 100 * rate) for rate in rates),
                f"{result.seconds:.2f}",
            ]
    _print(console, f"{', '.join(sorted({rule.name for rule in rules}))} on recorded rounds", rows)


def _record_in(path: Path) -> Path:
    """The record of a run directory; a file is a record itself."""
    from ..core.errors import StateError
    from ..simulation.recorder import RECORD_FILE

    record = path / RECORD_FILE if path.is_dir() else path
    if not record.is_file():
        raise StateError(f"there is no {record}: run the experiment again with --record")
    return record


def _print(console: Console, title: str, rows: dict[str, list[str]]) -> None:
    """One row for each record, or one small table for each where rows are too wide."""
    from rich.table import Table

    from ..simulation.recorder import RECORD_FILE

    names = {
        path: Path(path).resolve().parent.name if Path(path).name == RECORD_FILE else Path(path).stem for path in rows
    }
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
