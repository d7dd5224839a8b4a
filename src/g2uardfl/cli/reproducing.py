"""`g2uardfl reproduce`: the tables of the paper."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .lists import ListCommand

if TYPE_CHECKING:
    from rich.console import Console

    from ..experiments.paper.results import Results
    from ..experiments.paper.table import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("reproduce", cls=ListCommand)(reproduce)


def reproduce(
    table: Annotated[
        str,
        typer.Argument(
            help="effectiveness, robustness, detection, heterogeneity, pmr, churn, kappa, ablation, convergence, "
            "elimination, readings, all, or a TOML file with a table of your own.",
            metavar="TABLE",
        ),
    ],
    scale: Annotated[str, typer.Option(help="paper, or smoke: every cell in miniature, to check that it runs.")] = (
        "smoke"
    ),
    local: Annotated[str, typer.Option(help="steps or epochs: how the paper's 2 local steps are read.")] = "steps",
    only: Annotated[
        list[str] | None, typer.Option(help="Labels of the table; others on the same axis are left out.", metavar="LABEL...")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds.", show_default="the table's, 3 or 1", min=1)] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.", show_default="600, or 2", min=1)] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", help="Runs at the same time.", show_default="cores, or 1 on a GPU", min=1)
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the data sets.", show_default="G2UARDFL_DATA")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run directories.", show_default="runs/SCALE")] = None,
    pages: Annotated[
        Path | None, typer.Option(help="Folder of the pages.", show_default="OUT/pages, or OUT/pages-epochs")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Make the pages of TABLE again from its CSV file, without runs.")
    ] = None,
) -> None:
    """Run a table of the paper and show the printed numbers beside the measured ones.

    Finished runs are kept, unfinished ones are continued: after an interruption give the same command again. Writes a
    table each as Markdown, CSV, LaTeX, SVG and HTML. The exit code is 1 if a cell is missing.

    Example: g2uardfl reproduce robustness --scale paper --only mnist --device cuda --jobs 12
    """
    from rich.console import Console

    from ..core.errors import ConfigError
    from ..experiments.paper.results import Results
    from ..experiments.paper.table import TABLES, load

    if rounds is not None and scale == "smoke":
        raise ConfigError("--rounds belongs to --scale paper: a smoke run has 2 rounds")
    names = list(TABLES) if table == "all" else [table]
    tables, console = [load(name) for name in names], Console()
    if results is not None:
        _show(console, Results.from_csv(tables[0], results), pages or results.parent, _command())
        return
    place = out or Path("runs") / scale
    suffix = "" if local == "steps" else f"-{local}"
    missing: list[str] = []
    for one in tables:
        settings = {"device": device, "data_dir": "" if data_dir is None else str(data_dir)}
        own = [label for label in only or [] if len(tables) == 1 or any(label in axis for axis in one.axes.values())]
        measured = _run(
            console, one, place, scale=scale, local=local, only=own, seeds=seeds,
            changes={**settings, **({} if rounds is None else {"rounds": rounds})},
            jobs=jobs or (os.cpu_count() or 1 if device == "cpu" else 1),
        )  # fmt: skip
        _show(console, measured, pages or place / f"pages{suffix}", _command(), scale)
        missing += [f"{one.name}: {cell}" for cell in measured.missing]
    for cell in missing:
        typer.echo(f"missing: {cell}", err=True)
    if missing:
        typer.echo(f"{len(missing)} cells are missing: repeat the command to run them", err=True)
        raise typer.Exit(1)


def _run(console: Console, table: Table, place: Path, **options: Any) -> Results:
    """Execute the runs of a table that are not finished."""
    from ..experiments.paper.reproduction import Reproduction
    from .sweep import run_sweep

    reproduction = Reproduction(table, place, **options)
    console.print(f"[bold]{table.name}[/bold] ({options['scale']}, 2 local {options['local']})")
    run_sweep(console, reproduction.sweep, place)
    return reproduction.results()


def _show(console: Console, results: Results, folder: Path, command: str, scale: str = "") -> None:
    """Print a table and write its pages."""
    from rich.table import Table as RichTable

    from ..experiments.paper.rendering import SMOKE, blocks, conclusion
    from ..experiments.paper.reproduction import theorem_checks, write_pages
    from ..report.reproduction import write_table_page

    checks = theorem_checks(folder, scale) if results.table.has_theorem and scale else []
    for block in blocks(results):
        shown = RichTable(title=f"{results.table.title}  {block.task}".rstrip(), title_justify="left", box=None)
        for index, heading in enumerate(block.headings):
            shown.add_column(heading, justify="left" if index < block.labels else "right", vertical="bottom")
        for row in block.rows:
            shown.add_row(*row)
        console.print(shown)
    if any(run.scale == "smoke" for run in results.runs):
        console.print(f"[bold red]{SMOKE}[/bold red]")
    console.print(conclusion(results))
    written = write_pages(results, folder, command, checks)
    written.append(write_table_page(results, folder / f"{results.table.name}.html", command, checks))
    console.print(f"Wrote {', '.join(str(path) for path in written)}", highlight=False)


def _command() -> str:
    return shlex.join(["g2uardfl", *sys.argv[1:]])
