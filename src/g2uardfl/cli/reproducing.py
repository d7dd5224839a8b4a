"""`g2uardfl reproduce`: the tables of the paper."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .lists import ListCommand

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..experiments.paper.rendering import Block
    from ..experiments.paper.results import Results
    from ..experiments.paper.theorem import Check


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("reproduce", cls=ListCommand)(reproduce)


def reproduce(
    tables: Annotated[
        list[str],
        typer.Argument(
            help="effectiveness, robustness, detection, heterogeneity, pmr, churn, kappa, ablation, convergence, "
            "elimination, readings, all, or a TOML file with a table of your own.",
            metavar="TABLE...",
        ),
    ],
    scale: Annotated[str, typer.Option(help="paper, or smoke: every cell in miniature, to check that it runs.")] = (
        "smoke"
    ),
    local: Annotated[str, typer.Option(help="steps or epochs: how the paper's 2 local steps are read.")] = "steps",
    only: Annotated[
        list[str] | None,
        typer.Option(help="Labels of the table; others on the same axis are left out.", metavar="LABEL..."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds.", show_default="the table's, 3 or 1", min=1)
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.", show_default="600, or 2", min=1)] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", help="Runs at the same time.", show_default="cores, or 1 on a GPU", min=1),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the data sets.", show_default="G2UARDFL_DATA")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run directories.", show_default="runs/SCALE")] = None,
    pages: Annotated[
        Path | None, typer.Option(help="Folder of the pages.", show_default="OUT/pages, or OUT/pages-epochs")
    ] = None,
    finished: Annotated[
        bool, typer.Option("--finished", help="Show the runs that are finished, and run nothing.")
    ] = False,
    results: Annotated[
        Path | None, typer.Option(help="Make the pages of TABLE again from its CSV file, without runs.")
    ] = None,
) -> None:
    """Run tables of the paper and show its numbers beside the measured ones.

    Finished runs are kept, unfinished ones are continued: after an interruption give the same command again. Writes
    each table as Markdown, CSV, LaTeX, SVG and HTML, with the text of notes/TABLE.md in the folder of the pages below
    the table. The exit code is 1 if a cell is missing.

    Example: g2uardfl reproduce robustness --scale paper --only mnist --device cuda --jobs 12
    """
    from rich.console import Console

    from ..core.errors import ConfigError
    from ..experiments.paper.reproduction import Reproduction, sweep_of, theorem_checks
    from ..experiments.paper.results import Results
    from ..experiments.paper.table import TABLES, load
    from .sweep import run_sweep

    if rounds is not None and scale == "smoke":
        raise ConfigError("--rounds belongs to --scale paper: a smoke run has 2 rounds")
    names = list(TABLES) if tables == ["all"] else tables
    loaded, console = [load(name) for name in names], Console()
    if results is not None:
        if len(loaded) > 1:
            raise ConfigError("--results is the CSV file of one table: name that table alone")
        read = Results.from_csv(loaded[0], results)
        _show(console, read, pages or results.parent, theorem_checks(results.parent, read.stated("scale"), make=False))
        return
    for label in only or []:
        if not any(table.has_label(label) for table in loaded):
            known = dict.fromkeys(label for table in loaded for labels in table.axes.values() for label in labels)
            raise ConfigError(f"--only {label}: there is no such label; choose from {', '.join(known)}")
    changes: dict[str, Any] = {"device": device, "data_dir": "" if data_dir is None else str(data_dir)}
    if rounds is not None:
        changes["rounds"] = rounds
    parts = [
        Reproduction(
            table, scale=scale, local=local, seeds=seeds, changes=changes,
            only=[label for label in only or [] if table.has_label(label)],
        )
        for table in loaded
    ]  # fmt: skip
    place = out or Path("runs") / scale
    planned, paths = sweep_of(parts, place, jobs or (os.cpu_count() or 1 if device == "cpu" else 1))
    if not finished:
        run_sweep(console, planned, place)
    folder = pages or place / ("pages" if local == "steps" else f"pages-{local}")
    missing = []
    for part, own in zip(parts, paths, strict=True):
        measured = part.results(own)
        checks = theorem_checks(folder, scale, make=not finished) if part.table.has_theorem else []
        _show(console, measured, folder, checks)
        missing += [f"{part.table.name}: {cell}" for cell in measured.missing]
    for cell in missing:
        typer.echo(f"missing: {cell}", err=True)
    if missing:
        typer.echo(f"{len(missing)} cells are missing: repeat the command to run them", err=True)
        raise typer.Exit(1)


def _show(console: Console, results: Results, folder: Path, checks: Sequence[Check]) -> None:
    """Print a table and write its pages."""
    from ..experiments.paper.conclusions import conclusion
    from ..experiments.paper.rendering import SMOKE, blocks, missing
    from ..report.reproduction import write_pages

    shown = [_table(results, block) for block in blocks(results)]
    wide = console.options.update(max_width=10_000)
    if any(console.measure(table, options=wide).minimum > console.width for table in shown):
        shown = [_table(results, block) for figure in results.table.figures for block in blocks(results, [figure])]
    for table in shown:
        console.print(table)
    if results.is_smoke:
        console.print(f"[bold red]{SMOKE}[/bold red]")
    console.print(" ".join(filter(None, [conclusion(results), missing(results)])))
    written = write_pages(results, folder, checks)
    console.print(f"Wrote {', '.join(str(path) for path in written)}", highlight=False)


def _table(results: Results, block: Block) -> Table:
    """The rows of one task on the terminal."""
    from rich.table import Table

    table = Table(title=f"{results.table.title}  {block.task}".rstrip(), title_justify="left", box=None)
    for index, heading in enumerate(block.headings):
        is_label = index < block.labels
        table.add_column(
            heading.replace(", ", "\n").replace(" profile", "\nprofile"),
            justify="left" if is_label else "right",
            vertical="bottom",
            no_wrap=not is_label,
            min_width=min(16, max(len(row[index]) for row in block.rows)) if is_label else None,
        )
    for row in block.rows:
        table.add_row(*row)
    return table
