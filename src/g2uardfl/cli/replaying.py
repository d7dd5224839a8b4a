"""`g2uardfl replay`: recorded rounds, decided again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer


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
    """Decide recorded rounds again, with other settings, without training anything.

    Example: g2uardfl replay runs/*/record.npz --set least_evidence=15
    """
    from rich.console import Console
    from rich.table import Table

    from .. import aggregators
    from ..defense.recording import Record
    from ..simulation.config import with_assignments
    from ..simulation.replay import replay as decide
    from .progress import bar

    settings = with_assignments({}, [f"defense.{one.removeprefix('defense.')}" for one in assignments or []])
    table = Table(title=f"{defense} on recorded rounds", title_justify="left")
    table.add_column("record", style="bold")
    for heading in (
        "rounds", "Rand index", "precision %", "recall %", "F1 %", "benign refused %", "refused %",
        "rounds with an attacker accepted %", "seconds",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    loaded = [Record.load(path) for path in records]
    console = Console()
    with bar(console) as progress:
        task = progress.add_task("rounds", total=sum(len(record.rounds) for record in loaded), note="")
        for path, record in zip(records, loaded, strict=True):
            rule = aggregators.create(defense, **settings.get("defense_settings", {}))
            result = decide(record, rule, lambda: progress.advance(task))
            found = result.detection
            detected = [found.precision, found.recall, found.f1, found.benign_flagged] if found else [math.nan] * 4
            table.add_row(
                path.parent.name if path.name == "record.npz" else path.stem,
                str(result.rounds),
                _shown(result.rand_index, 1),
                *(_shown(value, 100) for value in (*detected, result.refused, result.attacker_accepted)),
                f"{result.seconds:.2f}",
            )
    console.print(table)


def _shown(value: float, scale: float) -> str:
    return "-" if math.isnan(value) else f"{scale * value:.2f}"
