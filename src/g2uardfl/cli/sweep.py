"""`g2uardfl sweep`: the runs of a grid, in parallel."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .lists import LOG_HELP, ListCommand

if TYPE_CHECKING:
    from rich.console import Console

    from ..experiments.sweep import Sweep
    from ..simulation.directory import FinishedRun

_GRID, _EXECUTION = "Axes of the grid: one value or several", "Execution"
"""The groups of options in the help."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sweep", cls=ListCommand)(sweep)


def _axis(help_text: str, metavar: str, *names: str) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=_GRID, metavar=f"{metavar}...", show_default=False)


def _option(help_text: str, *names: str, **rules: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=_EXECUTION, show_default=False, **rules)


def sweep(
    grid: Annotated[
        Path | None, typer.Argument(help="TOML file with the grid; options replace its axes.", metavar="[GRID.toml]")
    ] = None,
    task: Annotated[list[str] | None, _axis("Learning problems.", "NAME")] = None,
    attack: Annotated[
        list[str] | None, _axis("Attacks; settings of one attack are appended: pgd,radius=1.5,rounds=140", "NAME")
    ] = None,
    defense: Annotated[
        list[str] | None, _axis("Aggregation rules, with settings of their own: g2uardfl,profile=paper", "NAME")
    ] = None,
    model: Annotated[list[str] | None, _axis("Models of the task.", "NAME")] = None,
    seed: Annotated[list[int] | None, _axis("Random seeds; results are means over them.", "SEED")] = None,
    rounds: Annotated[list[int] | None, _axis("Numbers of rounds.", "N")] = None,
    clients: Annotated[list[int] | None, _axis("Numbers of clients.", "N")] = None,
    per_round: Annotated[list[int] | None, _axis("Clients selected per round.", "N")] = None,
    pmr: Annotated[list[float] | None, _axis("Fractions of malicious clients.", "SHARE")] = None,
    pdr: Annotated[list[float] | None, _axis("Fractions of their data with backdoor.", "SHARE")] = None,
    alpha: Annotated[list[float] | None, _axis("Dirichlet concentrations; inf is IID.", "ALPHA")] = None,
    local_epochs: Annotated[list[int] | None, _axis("Passes over a client's data.", "N")] = None,
    local_steps: Annotated[list[int] | None, _axis("SGD steps, instead of passes.", "N")] = None,
    assignments: Annotated[
        list[str] | None,
        _axis("Any other setting: a field of config.toml, defense.KEY, ...", "KEY=VALUE,VALUE,", "--set"),
    ] = None,
    evaluate_every: Annotated[int | None, _option("Rounds between evaluations. (default: 1)")] = None,
    device: Annotated[str | None, _option("cpu, cuda, ... (default: cpu)")] = None,
    data_dir: Annotated[Path | None, _option("Folder of the data sets. (default: G2UARDFL_DATA)")] = None,
    jobs: Annotated[
        int | None, _option("Runs at the same time. (default: the number of cores, or 1 on a GPU)", "--jobs", "-j")
    ] = None,
    ray: Annotated[
        str | None,
        _option(
            "Submit the runs to a Ray cluster: host:port, auto or local. All machines must share the folder --out; "
            "--jobs is the number of runs that share a GPU.",
            metavar="ADDRESS",
        ),
    ] = None,
    out: Annotated[Path | None, _option("Folder of the run directories. (default: runs/NAME-OF-GRID)")] = None,
    time_limit: Annotated[
        float, _option("End each run after this time. (default: none)", metavar="SECONDS")
    ] = math.inf,
    log: Annotated[list[str] | None, _option(LOG_HELP, metavar="NAME...")] = None,
    record: Annotated[bool, _option("Record the input of the defence, for g2uardfl replay.", "--record")] = False,
    dry_run: Annotated[bool, _option("List the runs and their state, and do nothing.", "--dry-run")] = False,
) -> None:
    """Execute all combinations of tasks, attacks, defenses, seeds and other settings, and compare the results.

    Finished runs are kept, unfinished ones are continued: after an interruption give the same command again.

    Example: g2uardfl sweep --attack black_box pgd --defense fedavg flame g2uardfl --seed 0 1 2 --rounds 20
    """
    from ..core.threads import usable_cores
    from ..experiments.grid import Grid, axes_of
    from ..experiments.sweep import Sweep

    options: dict[str, Any] = {
        "task": task, "attack": attack, "defense": defense, "model": model, "seed": seed, "rounds": rounds,
        "clients": clients, "per_round": per_round, "pmr": pmr, "pdr": pdr, "alpha": alpha,
        "local_epochs": local_epochs, "local_steps": local_steps,
        "evaluate_every": None if evaluate_every is None else [evaluate_every],
        "device": None if device is None else [device],
        "data_dir": None if data_dir is None else [str(data_dir)],
    }  # fmt: skip
    axes = axes_of({name: values for name, values in options.items() if values is not None}, assignments or [])
    configs = (Grid.from_file(grid) if grid else Grid({})).with_axes(axes).configs()
    place = out or Path("runs") / (grid.stem if grid else "sweep")
    on_gpu = any(config.device != "cpu" for config in configs)
    jobs = jobs if jobs is not None else 1 if on_gpu else usable_cores()
    planned = Sweep(configs, place, jobs=jobs, record=record, time_limit=time_limit, logs=log or [], ray=ray)
    if dry_run:
        _list(planned)
    else:
        _execute(planned, place)


def _list(planned: Sweep) -> None:
    for run in planned.runs:
        state = "finished" if run.is_finished else "unfinished" if (run.path / "config.toml").exists() else "new"
        typer.echo(f"{state:<12}{run.path}")


def _execute(planned: Sweep, place: Path) -> None:
    from rich.console import Console

    from ..experiments.comparison import chosen_figures
    from ..experiments.results import grouped
    from .comparing import print_groups

    console = Console()
    run_sweep(console, planned, place, lambda finished: print_groups(console, grouped(finished), chosen_figures([])))


def run_sweep(
    console: Console, planned: Sweep, place: Path, show: Callable[[list[FinishedRun]], None] | None = None
) -> None:
    """Execute the runs of a sweep that are not finished, with progress; exits where it is stopped or a run fails.

    Parameters
    ----------
    console, planned, place
        Where to print, the sweep, and its folder.
    show
        Called with the finished runs before failures are reported; without it, failures do not end the command
        (default: None).
    """
    from ..simulation.directory import FinishedRun
    from .sweep_progress import SweepProgress

    begun = sum((run.path / "config.toml").exists() for run in planned.unfinished)
    kept = len(planned.runs) - len(planned.unfinished)
    console.print(f"{len(planned.runs)} runs in {place}: {kept} finished, {begun} to continue", highlight=False)
    with SweepProgress(console, planned.unfinished) as progress:
        planned.prepare(progress.pretraining)
        with _stopping(planned) as stopped:
            planned.execute(progress)
    finished = [FinishedRun(run.path) for run in planned.runs if run.is_finished]
    if finished and show:
        show(finished)
    for job, error in progress.failures:
        typer.echo(f"failed: {job.path}: {error}", err=True)
    if stopped:
        typer.echo(f"stopped; {len(finished)} of {len(planned.runs)} runs are finished: repeat the command", err=True)
        raise typer.Exit(130)
    if progress.failures and show:
        typer.echo(f"{len(progress.failures)} of {len(planned.runs)} runs failed", err=True)
        raise typer.Exit(1)


@contextmanager
def _stopping(planned: Sweep) -> Iterator[list[float]]:
    """Stop after the current rounds on the first Ctrl-C, at once on the second; yields the time of the first."""
    stopped: list[float] = []

    def request_stop(_number: int, _frame: object) -> None:
        stopped.append(time.monotonic())
        signal.signal(signal.SIGINT, before)
        typer.echo("\nStopping each run after its current round; press Ctrl-C again to stop at once", err=True)
        planned.stop()

    before = signal.signal(signal.SIGINT, request_stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
