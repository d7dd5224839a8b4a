"""`g2uardfl run`, `resume`, `compare`, `report` and `pretrain`: experiments and what becomes of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..simulation.directory import RunDirectory
    from ..simulation.run import Simulation

_WHAT, _FEDERATION, _TRAINING, _FILES = "What", "Federation", "Local training", "Files and machine"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("run")(run)
    app.command("resume")(resume)
    app.command("compare")(compare)
    app.command("report")(report)
    app.command("pretrain")(pretrain)


def _option(help_text: str, panel: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, metavar=metavar, show_default=False)


def run(
    task: Annotated[
        str | None, _option("Learning problem (see: g2uardfl list tasks). (default: digits)", _WHAT)
    ] = None,
    attack: Annotated[str | None, _option("What malicious clients do (list attacks). (default: none)", _WHAT)] = None,
    defense: Annotated[
        str | None, _option("How the server aggregates (list defenses). (default: fedavg)", _WHAT)
    ] = None,
    model: Annotated[str | None, _option("One of the task's models. (default: its first)", _WHAT)] = None,
    rounds: Annotated[int | None, _option("Communication rounds. (default: 100)", _FEDERATION)] = None,
    clients: Annotated[int | None, _option("Number of clients. (default: task's)", _FEDERATION)] = None,
    per_round: Annotated[int | None, _option("Clients selected each round. (default: task's)", _FEDERATION)] = None,
    pmr: Annotated[float | None, _option("Share of clients that are malicious. (default: 0.25)", _FEDERATION)] = None,
    pdr: Annotated[float | None, _option("Share of their data that is backdoored. (default: 0.5)", _FEDERATION)] = None,
    alpha: Annotated[
        float | None, _option("Dirichlet's alpha; inf is a uniform split. (default: inf)", _FEDERATION)
    ] = None,
    partition: Annotated[str | None, _option("dirichlet or natural. (default: dirichlet)", _FEDERATION)] = None,
    churn: Annotated[float | None, _option("Share of clients that come or go. (default: 0)", _FEDERATION)] = None,
    attack_from: Annotated[int | None, _option("First attacked round. (default: 1)", _FEDERATION)] = None,
    attack_until: Annotated[int | None, _option("Last attacked round. (default: the last)", _FEDERATION)] = None,
    defend_from: Annotated[
        int | None, _option("First defended round; FedAvg before it. (default: 1)", _FEDERATION)
    ] = None,
    start: Annotated[
        str | None,
        _option(
            "converged, scratch or a model.safetensors. (default: converged)", _FEDERATION, "--start-from", "--start"
        ),
    ] = None,
    local_epochs: Annotated[int | None, _option("Passes over a client's data. (default: task's)", _TRAINING)] = None,
    local_steps: Annotated[int | None, _option("Steps of training instead of passes.", _TRAINING)] = None,
    lr: Annotated[float | None, _option("Learning rate. (default: task's)", _TRAINING)] = None,
    batch_size: Annotated[int | None, _option("Samples a step. (default: task's)", _TRAINING)] = None,
    seed: Annotated[int | None, _option("Decides everything random. (default: 0)", _FILES)] = None,
    device: Annotated[str | None, _option("cpu, cuda, ... (default: cpu)", _FILES)] = None,
    engine: Annotated[str | None, _option("auto, loop, workers or batched. (default: auto)", _FILES)] = None,
    data_dir: Annotated[Path | None, _option("Where the data sets are. (default: G2UARDFL_DATA)", _FILES)] = None,
    out: Annotated[Path | None, _option("Run directory. (default: runs/TASK-ATTACK-DEFENSE-SEED)", _FILES)] = None,
    config: Annotated[Path | None, _option("Start from this TOML file; options win.", _FILES, metavar="FILE")] = None,
    assignments: Annotated[
        list[str] | None,
        _option(
            "Any other setting: a run's own, defense.KEY, attack.KEY, task.KEY.", _FILES, "--set", metavar="KEY=VALUE"
        ),
    ] = None,
    evaluate_every: Annotated[int | None, _option("Rounds between evaluations. (default: 1)", _FILES)] = None,
    checkpoint_every: Annotated[int | None, _option("Rounds between checkpoints. (default: 10)", _FILES)] = None,
    tensorboard: Annotated[
        bool, _option("Write TensorBoard events into the run directory.", _FILES, "--tensorboard")
    ] = False,
    record: Annotated[
        bool, _option("Note what the defence saw in record.npz, for g2uardfl replay.", _FILES, "--record")
    ] = False,
    resume_run: Annotated[bool, _option("Go on with the unfinished run in --out.", _FILES, "--resume")] = False,
    overwrite: Annotated[bool, _option("Replace a run that is already in --out.", _FILES, "--overwrite")] = False,
) -> None:
    """Run one experiment and write its run directory.

    Example: g2uardfl run --task digits --attack black_box --defense g2uardfl --rounds 40
    """
    from ..core.settings import build
    from ..simulation.checkpoint import require_same_config
    from ..simulation.config import RunConfig, read_values, with_assignments
    from ..simulation.directory import RunDirectory
    from ..simulation.run import Simulation

    options = {
        "task": task, "attack": attack, "defense": defense, "model": model, "rounds": rounds, "clients": clients,
        "per_round": per_round, "pmr": pmr, "pdr": pdr, "alpha": alpha, "partition": partition, "churn": churn,
        "attack_from": attack_from, "attack_until": attack_until, "defend_from": defend_from, "start": start,
        "local_epochs": local_epochs, "local_steps": local_steps, "lr": lr, "batch_size": batch_size, "seed": seed,
        "device": device, "engine": engine, "data_dir": None if data_dir is None else str(data_dir),
        "evaluate_every": evaluate_every, "checkpoint_every": checkpoint_every,
    }  # fmt: skip
    values = read_values(config) if config else {}
    values |= {name: value for name, value in options.items() if value is not None}
    simulation = Simulation(build(RunConfig, with_assignments(values, assignments or [])))
    settings = simulation.config
    place = out or Path("runs") / _slug(f"{settings.task}-{settings.attack}-{settings.defense}-{settings.seed}")
    if resume_run and (place / "config.toml").exists():
        require_same_config(place, settings)
        go_on(place, tensorboard=tensorboard)
        return
    directory = RunDirectory(place, overwrite=overwrite)
    _carry_out(simulation, directory, tensorboard=tensorboard, record=record)


def resume(
    run_directory: Annotated[Path, typer.Argument(help="The directory of an unfinished run.", metavar="RUN")],
) -> None:
    """Go on with a run that was stopped or killed; it ends with exactly what it would have had."""
    go_on(run_directory)


def go_on(place: Path, *, tensorboard: bool = False) -> None:
    """Carry an unfinished run to its end."""
    from ..simulation.directory import RunDirectory, resumed

    _carry_out(resumed(place), RunDirectory(place, resume=True), tensorboard=tensorboard)


def _carry_out(
    simulation: Simulation, directory: RunDirectory, *, tensorboard: bool = False, record: bool = False
) -> None:
    """Run what is left of a simulation with a progress bar; then its report and a table."""
    from rich.console import Console

    from ..report.page import write_report
    from ..simulation.directory import FinishedRun
    from ..simulation.run import Callback
    from .progress import ProgressBar, bar, stopping_after_the_round
    from .tables import results_table

    settings, place, console = simulation.config, directory.path, Console()
    done = len(simulation.records)
    console.print(
        f"{settings.task}: {settings.attack} against {settings.defense}, rounds {done + 1} to {settings.rounds} of "
        f"{settings.per_round} of {settings.clients} clients, seed {settings.seed}, on {settings.device}"
    )
    with bar(console) as progress, stopping_after_the_round(simulation, place):
        callbacks: list[Callback] = [directory, ProgressBar(progress, "rounds")]
        if tensorboard:
            from ..simulation.tensorboard import TensorBoard

            callbacks.append(TensorBoard(place))
        if record:
            from ..simulation.recorder import Recorder

            callbacks.append(Recorder(place))
        if not simulation.weights:
            simulation.prepare(on_epoch=pretraining_bar(progress))
        simulation.run(callbacks)
    finished = FinishedRun(place)
    page = write_report([finished], place / "report.html", f"{settings.defense} against {settings.attack}")
    console.print(results_table([finished], f"{settings.task}, after {settings.rounds} rounds"))
    console.print(f"Run directory: {place}   Report: {page}")


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.", metavar="RUN...")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("compare.html"),
) -> None:
    """Compare finished runs: a table here and a page with their curves."""
    from rich.console import Console

    from ..report.page import write_report
    from ..simulation.directory import FinishedRun
    from .tables import results_table

    finished = [FinishedRun(path) for path in runs]
    console = Console()
    console.print(results_table(finished, "compared runs", names=[str(path) for path in runs]))
    console.print(f"Wrote {write_report(finished, out, 'Compared runs')}")


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run directories, or audit files of Flower federations.", metavar="RUN...")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page to write.", show_default="RUN/report.html or AUDIT.html")
    ] = None,
) -> None:
    """Make an HTML page of one or more finished runs, or of what a Flower federation wrote into its audit file."""
    from ..federation.audit import Audit
    from ..report.page import write_report
    from ..simulation.directory import FinishedRun

    finished = [Audit(path) if path.is_file() else FinishedRun(path) for path in runs]
    beside = runs[0].with_suffix(".html") if runs[0].is_file() else runs[0] / "report.html"
    page = write_report(finished, out or beside)
    typer.echo(f"Wrote {page}")


def pretrain(
    task: Annotated[str, typer.Option(help="Learning problem (see: g2uardfl list tasks).")],
    model: Annotated[str | None, typer.Option(help="One of the task's models.", show_default="its first")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    data_dir: Annotated[
        Path | None, typer.Option(help="Where the data sets are.", show_default="G2UARDFL_DATA")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Train even if a converged start is kept.")] = False,
) -> None:
    """Bring a task to its converged start once and keep it for later runs.

    A run does this by itself where it is needed; this command does it ahead of time, on a GPU for instance.
    """
    from rich.console import Console

    from .. import tasks
    from ..simulation.start import converged_start
    from .progress import bar

    console = Console()
    with bar(console) as progress:
        start = converged_start(
            tasks.create(task, data_dir=data_dir, model=model),
            device=device,
            progress=pretraining_bar(progress),
            again=again,
        )
    how = "found" if start.was_cached else "trained"
    where = start.path or "nowhere: the cache folder cannot be written"
    console.print(f"{task} {how}: ACC {100 * start.acc:.2f} %, ASR {100 * start.asr:.2f} % before any attack")
    console.print(f"Kept at {where}")


def pretraining_bar(progress: Any) -> Any:
    """A callback that shows central training on `progress` once it begins."""
    bars: list[Any] = []

    def on_epoch(done: int, total: int) -> None:
        if not bars:
            bars.append(progress.add_task("training to convergence", total=total, note=""))
        progress.update(bars[0], completed=done)

    return on_epoch


def _slug(text: str) -> str:
    return "".join(character if character.isalnum() or character in "-_." else "_" for character in text)
