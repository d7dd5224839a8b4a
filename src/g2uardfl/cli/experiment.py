"""`g2uardfl run`, `resume` and `pretrain`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .lists import LOG_HELP, ListCommand

if TYPE_CHECKING:
    from ..simulation.directory import RunDirectory
    from ..simulation.run import Simulation

_EXPERIMENT, _FEDERATION, _TRAINING, _FILES = "Experiment", "Federation", "Local training", "Files and machine"
"""The groups of options in the help of `run`."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("run", cls=ListCommand)(run)
    app.command("resume", cls=ListCommand)(resume)
    app.command("pretrain")(pretrain)


def _option(help_text: str, panel: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, metavar=metavar, show_default=False)


def run(
    task: Annotated[
        str | None, _option("Learning problem (see: g2uardfl list tasks). (default: digits)", _EXPERIMENT)
    ] = None,
    attack: Annotated[
        str | None,
        _option("Attack (see: g2uardfl list attacks). (default: none)", _EXPERIMENT),
    ] = None,
    defense: Annotated[
        str | None, _option("Aggregation rule (see: g2uardfl list defenses). (default: fedavg)", _EXPERIMENT)
    ] = None,
    model: Annotated[str | None, _option("One of the task's models. (default: the first)", _EXPERIMENT)] = None,
    rounds: Annotated[int | None, _option("Number of rounds. (default: 100)", _FEDERATION)] = None,
    clients: Annotated[int | None, _option("Number of clients. (default: task's)", _FEDERATION)] = None,
    per_round: Annotated[int | None, _option("Clients selected per round. (default: task's)", _FEDERATION)] = None,
    pmr: Annotated[float | None, _option("Fraction of malicious clients. (default: 0.25)", _FEDERATION)] = None,
    pdr: Annotated[float | None, _option("Fraction of their data with backdoor. (default: 0.5)", _FEDERATION)] = None,
    alpha: Annotated[
        float | None, _option("Dirichlet concentration of the data; inf is IID. (default: inf)", _FEDERATION)
    ] = None,
    partition: Annotated[str | None, _option("dirichlet or natural. (default: dirichlet)", _FEDERATION)] = None,
    churn: Annotated[float | None, _option("Fraction of clients that join or leave. (default: 0)", _FEDERATION)] = None,
    attack_from: Annotated[int | None, _option("First round of the attack. (default: 1)", _FEDERATION)] = None,
    attack_until: Annotated[int | None, _option("Last round of the attack. (default: the last)", _FEDERATION)] = None,
    defend_from: Annotated[
        int | None, _option("First round of the defence; FedAvg before it. (default: 1)", _FEDERATION)
    ] = None,
    start: Annotated[
        str | None,
        _option(
            "Initial model: converged, scratch or a .safetensors file. (default: converged)",
            _FEDERATION,
            "--start-from",
            "--start",
        ),
    ] = None,
    local_epochs: Annotated[int | None, _option("Passes over a client's data. (default: task's)", _TRAINING)] = None,
    local_steps: Annotated[int | None, _option("SGD steps, instead of passes.", _TRAINING)] = None,
    lr: Annotated[float | None, _option("Learning rate. (default: task's)", _TRAINING)] = None,
    batch_size: Annotated[int | None, _option("Samples per step. (default: task's)", _TRAINING)] = None,
    seed: Annotated[int | None, _option("Random seed. (default: 0)", _FILES)] = None,
    device: Annotated[str | None, _option("cpu, cuda, ... (default: cpu)", _FILES)] = None,
    engine: Annotated[str | None, _option("auto, loop, workers or batched. (default: auto)", _FILES)] = None,
    data_dir: Annotated[Path | None, _option("Folder of the data sets. (default: G2UARDFL_DATA)", _FILES)] = None,
    out: Annotated[Path | None, _option("Run directory. (default: runs/TASK-ATTACK-DEFENSE-SEED)", _FILES)] = None,
    config: Annotated[
        Path | None, _option("TOML file with settings; options take precedence.", _FILES, metavar="FILE")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        _option(
            "Any other setting: a field of config.toml, defense.KEY, attack.KEY or task.KEY.",
            _FILES,
            "--set",
            metavar="KEY=VALUE",
        ),
    ] = None,
    evaluate_every: Annotated[int | None, _option("Rounds between evaluations. (default: 1)", _FILES)] = None,
    checkpoint_every: Annotated[int | None, _option("Rounds between checkpoints. (default: 10)", _FILES)] = None,
    log: Annotated[list[str] | None, _option(LOG_HELP, _FILES, metavar="NAME...")] = None,
    record: Annotated[
        bool, _option("Record the input of the defence in record.npz, for g2uardfl replay.", _FILES, "--record")
    ] = False,
    resume_run: Annotated[bool, _option("Continue the unfinished run in --out.", _FILES, "--resume")] = False,
    overwrite: Annotated[bool, _option("Replace the run in --out.", _FILES, "--overwrite")] = False,
) -> None:
    """Run one experiment and write its run directory.

    Example: g2uardfl run --task digits --attack black_box --defense g2uardfl --rounds 40
    """
    from ..core.settings import build
    from ..simulation.checkpoint import require_same_config
    from ..simulation.config import RunConfig, overridden, read_values, with_assignments
    from ..simulation.directory import RunDirectory
    from ..simulation.naming import attack_name, defense_name, task_name
    from ..simulation.run import Simulation

    options = {
        "task": task, "attack": attack, "defense": defense, "model": model, "rounds": rounds, "clients": clients,
        "per_round": per_round, "pmr": pmr, "pdr": pdr, "alpha": alpha, "partition": partition, "churn": churn,
        "attack_from": attack_from, "attack_until": attack_until, "defend_from": defend_from, "start": start,
        "local_epochs": local_epochs, "local_steps": local_steps, "lr": lr, "batch_size": batch_size, "seed": seed,
        "device": device, "engine": engine, "data_dir": None if data_dir is None else str(data_dir),
        "evaluate_every": evaluate_every, "checkpoint_every": checkpoint_every,
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    _require_once(given, assignments or [])
    values = overridden(read_values(config), given) if config else given
    simulation = Simulation(build(RunConfig, with_assignments(values, assignments or [])))
    settings = simulation.config
    names = task_name(settings), attack_name(settings), defense_name(settings)
    place = out or Path("runs") / "-".join([*map(_slug, names), str(settings.seed)])
    if resume_run:
        require_same_config(place, settings)
        _continue_run(place, log or [])
        return
    directory = RunDirectory(place, overwrite=overwrite)
    _finish(simulation, directory, log or [], record=record)


def resume(
    run_directory: Annotated[Path, typer.Argument(help="The directory of an unfinished run.", metavar="RUN")],
    log: Annotated[list[str] | None, typer.Option(help=LOG_HELP, metavar="NAME...", show_default=False)] = None,
) -> None:
    """Continue a run that was stopped or killed; the result is the same as without the interruption."""
    _continue_run(run_directory, log or [])


def _continue_run(place: Path, log: Sequence[str]) -> None:
    from ..simulation.directory import RunDirectory, resumed

    _finish(resumed(place), RunDirectory(place, resume=True), log)


def _finish(simulation: Simulation, directory: RunDirectory, log: Sequence[str], *, record: bool = False) -> None:
    """Run the remaining rounds with a progress bar; then write the report and print a table."""
    from rich.console import Console

    from ..experiments.trackers import create_all
    from ..report.page import write_report
    from ..simulation.directory import FinishedRun
    from ..simulation.naming import run_name
    from ..simulation.run import Callback
    from .progress import PretrainingProgress, ProgressBar, bar, stopping_after_the_round
    from .tables import results_table

    settings, place, console = simulation.config, directory.path, Console()
    done, trackers = len(simulation.records), create_all(log)
    console.print(
        f"{run_name(settings)}, rounds {done + 1} to {settings.rounds}, "
        f"{settings.per_round} of {settings.clients} clients per round, seed {settings.seed}, on {settings.device}"
    )
    with bar(console) as progress, stopping_after_the_round(simulation, place):
        callbacks: list[Callback] = [directory, ProgressBar(progress, "rounds"), *trackers]
        if record:
            from ..simulation.recorder import Recorder

            callbacks.append(Recorder(place))
        if not simulation.weights:
            simulation.prepare(PretrainingProgress(progress))
        simulation.run(callbacks)
    finished = FinishedRun(place)
    page = write_report([finished], place / "report.html", f"{settings.defense} against {settings.attack}")
    console.print(results_table([finished], f"{settings.task}, after {settings.rounds} rounds"))
    console.print(f"Run directory: {place}   Report: {page}")


def pretrain(
    task: Annotated[str, typer.Option(help="Learning problem (see: g2uardfl list tasks).")],
    model: Annotated[str | None, typer.Option(help="One of the task's models.", show_default="the first")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the data sets.", show_default="G2UARDFL_DATA")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Train again even if a converged model is cached.")] = False,
) -> None:
    """Train a task's converged model and cache it for later runs.

    A run does this itself if no model is cached; this command does it in advance, for example on a GPU.
    """
    from rich.console import Console

    from .. import tasks
    from ..simulation.start import converged_start, start_scores
    from .progress import PretrainingProgress, bar

    console = Console()
    problem = tasks.create(task, data_dir=data_dir, model=model)
    with bar(console) as progress:
        start = converged_start(problem, device=device, progress=PretrainingProgress(progress), again=again)
    acc, asr = start_scores(problem, start.weights, device)
    action = "loaded from the cache" if start.was_cached else "trained"
    console.print(f"{task}: {action}, ACC {100 * acc:.2f} %, ASR {100 * asr:.2f} % before any attack")
    console.print(f"Cached in {start.path}" if start.path else "Not cached: the cache folder cannot be written")


def _require_once(given: Mapping[str, Any], assignments: Sequence[str]) -> None:
    """Raise `ConfigError` for a setting that is both an option and assigned with --set."""
    from ..core.errors import ConfigError

    for assignment in assignments:
        key = assignment.partition("=")[0]
        if key in given:
            raise ConfigError(f"{key} is given twice, as an option and as --set {assignment}: leave one out")


def _slug(text: str) -> str:
    """A name that can be part of the name of a folder."""
    return re.sub(r"[^\w.-]+", "_", text).strip("_")
