"""`g2uardfl report`: a page about runs and federations, and their figures for papers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..report.subjects import Run


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run directories, also of unfinished runs; folders and patterns such as 'runs/**' that hold some; "
            "audit files of Flower federations.",
            metavar="PATH...",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The page to write.", show_default="PATH/report.html, AUDIT.html or report.html"),
    ] = None,
    title: Annotated[str, typer.Option(help="The title of the page.")] = "g2uardfl report",
    figures: Annotated[
        Path | None, typer.Option(help="Folder for every figure as a file.", show_default="no files", metavar="DIR")
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="Format of these files: svg, or pdf (extra: pdf).")] = "svg",
) -> None:
    """Write one HTML page about runs or Flower federations; exit with 1 if an audit's hash chain is broken.

    Example: g2uardfl report runs/sweep --figures figures --format pdf
    """
    from ..federation.audit import Audit
    from ..report.figures import write_figures
    from ..report.page import figures_of, write_report

    found = [run for path in runs for run in _read(path)]
    if figures is not None:
        written = write_figures(figures_of(found), figures, format_)
        typer.echo(f"Wrote {len(written)} figures to {figures}")
    typer.echo(f"Wrote {write_report(found, out or _beside(runs), title)}")
    audits = [run for run in found if isinstance(run, Audit)]
    for audit in audits:
        typer.echo(f"{audit.path}: {audit.chain}", err=audit.broken_at is not None)
    if any(audit.broken_at is not None for audit in audits):
        raise typer.Exit(1)


def _read(path: Path) -> list[Run]:
    from ..experiments.results import find_runs
    from ..federation.audit import Audit
    from ..simulation.directory import FinishedRun

    if path.is_file():
        return [Audit(path)]
    return [FinishedRun(place, unfinished_too=True) for place in find_runs([path])]


def _beside(paths: list[Path]) -> Path:
    """The default path of the page."""
    if len(paths) == 1 and paths[0].is_file():
        return paths[0].with_suffix(".html")
    return paths[0] / "report.html" if len(paths) == 1 and paths[0].is_dir() else Path("report.html")
