"""`g2uardfl.simulate`: one run from Python, and its results as tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .core.settings import build
from .experiments import trackers
from .experiments.tables import RunTables
from .report.figures import Drawing, draw_rates
from .simulation.config import RunConfig
from .simulation.directory import FinishedRun, RunDirectory
from .simulation.naming import run_name
from .simulation.run import Callback, Record, Simulation

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor


class Run:
    """A finished run.

    Attributes
    ----------
    config
        All settings, as resolved.
    records
        The record of each round, as in `rounds.jsonl`.
    summary
        The figures of the run, as in `summary.json`.
    weights
        The final global model.
    path
        The run directory; None if there is none.
    """

    def __init__(self, finished: FinishedRun, weights: Mapping[str, Tensor], path: Path | None) -> None:
        self._finished = finished
        self.config = finished.config
        self.records = finished.rounds
        self.summary = finished.summary
        self.weights = dict(weights)
        self.path = path

    def __repr__(self) -> str:
        acc, asr = self.summary["acc"], self.summary["asr"]
        return f"<Run: {run_name(self.config)}, {len(self.records)} rounds, ACC {acc:.2%}, ASR {asr:.2%}>"

    @cached_property
    def tables(self) -> RunTables:
        """The run as tables by run, round and verdict."""
        return RunTables([self._finished])

    @property
    def rounds(self) -> pd.DataFrame:
        """One row for each round: ACC, ASR, numbers of decisions and of attacking clients, and seconds."""
        return self.tables.rounds

    @property
    def verdicts(self) -> pd.DataFrame:
        """One row for each submission: round, client, the truth (`malicious`, `attacking`) and the verdict."""
        return self.tables.verdicts

    @property
    def figures(self) -> dict[str, float | None]:
        """The figures of tables by heading, shares in percent; None where a rate is not defined."""
        return self._finished.figures

    def plot(self) -> Drawing:
        """ASR and ACC over the rounds: a figure that notebooks show, with `save(path)` for SVG and PDF files."""
        return draw_rates(self.config, self.records, self.summary)


def simulate(
    task: str = "digits",
    attack: str = "none",
    defense: str = "fedavg",
    *,
    rounds: int = 100,
    clients: int | None = None,
    per_round: int | None = None,
    pmr: float = 0.25,
    pdr: float = 0.5,
    alpha: float = math.inf,
    partition: str = "dirichlet",
    local_epochs: int | None = None,
    local_steps: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    lr_decay: float | None = None,
    churn: float = 0.0,
    attack_from: int = 1,
    attack_until: int | None = None,
    defend_from: int = 1,
    start: str = "converged",
    model: str = "",
    evaluate_every: int = 1,
    seed: int = 0,
    device: str = "cpu",
    engine: str = "auto",
    workers: int = 0,
    data_dir: str | Path = "",
    sample_limit: int | None = None,
    task_settings: Mapping[str, Any] | None = None,
    attack_settings: Mapping[str, Any] | None = None,
    defense_settings: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    log: Sequence[str] = (),
    stop_when: Callable[[Record], bool] | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
) -> Run:
    """Simulate a federation, as `g2uardfl run` does.

    Parameters
    ----------
    task, attack, defense
        Names, or `package.module:ClassName` (default: "digits", "none", "fedavg").
    rounds
        The number of rounds (default: 100).
    clients, per_round
        The numbers of clients and of clients selected per round (default: those of the task).
    pmr, pdr
        The fraction of malicious clients, and the fraction of their data with backdoor (default: 0.25, 0.5).
    alpha, partition
        The concentration of the Dirichlet partition of the data, where infinity is IID; or partition="natural"
        (default: infinity, "dirichlet").
    local_epochs, local_steps
        Passes over a client's data, or SGD steps instead (default: passes as the task says).
    lr, batch_size, momentum, weight_decay, lr_decay
        Local training (default: those of the task).
    churn
        The fraction of clients that join or leave at a random round (default: 0).
    attack_from, attack_until, defend_from
        The first and last round of the attack, and the first of the defence (default: all rounds).
    start
        The initial model: "converged", "scratch" or a file (default: "converged").
    model
        One of the task's models (default: the first).
    evaluate_every
        Rounds between evaluations (default: 1).
    seed
        Determines all random choices (default: 0).
    device, engine, workers
        Where and how clients are trained (default: "cpu", "auto", one worker per core).
    data_dir
        The folder of the data sets (default: `G2UARDFL_DATA`).
    sample_limit
        At most this number of samples of each set is used (default: all).
    task_settings, attack_settings, defense_settings
        Further settings of task, attack and defence by name (default: none).
    callbacks
        Objects whose methods are called at the start, after each round and at the end (default: none).
    log
        Trackers, as in `g2uardfl run --log`: "tensorboard", "wandb", "mlflow", "csv" (default: none).
    stop_when
        Called with the record of each round; the run ends once it returns True, after an evaluated round
        (default: None).
    out
        A run directory, for `load_runs`, `compare` and `report` (default: None, no files).
    overwrite
        Whether to replace a run in `out` (default: False).

    Returns
    -------
    Run
        With `.summary`, the tables `.rounds` and `.verdicts` (which need pandas), and `.plot()`.

    Examples
    --------
    >>> run = simulate("digits", "black_box", "g2uardfl", rounds=2, start="scratch", local_steps=1)
    >>> run.summary["rounds"], len(run.records)
    (2, 2)
    """
    values: dict[str, Any] = {
        "task": task, "attack": attack, "defense": defense, "rounds": rounds, "clients": clients,
        "per_round": per_round, "pmr": pmr, "pdr": pdr, "alpha": alpha, "partition": partition,
        "local_epochs": local_epochs, "local_steps": local_steps, "lr": lr, "batch_size": batch_size,
        "momentum": momentum, "weight_decay": weight_decay, "lr_decay": lr_decay, "churn": churn,
        "attack_from": attack_from, "attack_until": attack_until, "defend_from": defend_from, "start": start,
        "model": model, "evaluate_every": evaluate_every, "seed": seed, "device": device, "engine": engine,
        "workers": workers, "data_dir": str(data_dir), "sample_limit": sample_limit,
        "task_settings": dict(task_settings or {}),
        "attack_settings": dict(attack_settings or {}), "defense_settings": dict(defense_settings or {}),
    }  # fmt: skip
    simulation = Simulation(build(RunConfig, values))
    used = [*trackers.create_all(log), *callbacks]
    if stop_when is not None:
        used.append(_EarlyStop(stop_when))
    path = None if out is None else Path(out)
    if path is not None:
        used.insert(0, RunDirectory(path, overwrite=overwrite))
    summary = simulation.run(used)
    finished = FinishedRun.of(path or Path(), simulation.config, simulation.records, summary)
    return Run(finished, simulation.weights, path)


class _EarlyStop(Callback):
    """Ends a run once a condition is met."""

    def __init__(self, condition: Callable[[Record], bool]) -> None:
        self._condition = condition

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """Test the condition."""
        if self._condition(record):
            simulation.finish_early("stop_when is met")
