"""Trackers: the curves of a run in TensorBoard, Weights & Biases, MLflow or a CSV file; and custom callbacks.

A tracker gets, after each round, ACC and ASR, the detection rates of all rounds so far, the number of rejected clients
and seconds; rates that are not defined are left out.
"""

from __future__ import annotations

import csv
import hashlib
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError
from ..core.registry import Registry
from ..simulation.metrics import DetectionRates
from ..simulation.naming import flat_settings
from ..simulation.run import Callback, Record, Simulation

_registry = Registry(
    "tracker",
    "g2uardfl.simulation.run:Callback",
    {
        "tensorboard": f"{__name__}:TensorBoard",
        "wandb": f"{__name__}:WeightsAndBiases",
        "mlflow": f"{__name__}:MLflow",
        "csv": f"{__name__}:CSV",
    },
)
PROJECT = "g2uardfl"
"""The name of the project (Weights & Biases) or experiment (MLflow)."""


def create(name: str) -> Callback:
    """A tracker, from a built-in name or the import path of a subclass of `Callback` without arguments."""
    made: Callback = _registry.find(name)()
    return made


class Tracker(Callback):
    """Collects the values of each round; a subclass writes them."""

    def on_start(self, simulation: Simulation) -> None:
        """Open the log; a resumed run continues its own."""
        self._rates = DetectionRates()
        self._defend_from = simulation.config.defend_from
        self.open(simulation)
        for record in simulation.records:
            self.resumed(record["round"], self._values(record))

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """Write the values of the round."""
        self.write(record["round"], self._values(record))

    def on_end(self, simulation: Simulation, summary: dict[str, Any]) -> None:
        """Write the summary and close the log."""
        self.close(_numbers({**summary, **summary["detection"]}))

    @abstractmethod
    def open(self, simulation: Simulation) -> None:
        """Open the log in `simulation.path`."""

    @abstractmethod
    def write(self, number: int, values: Mapping[str, float]) -> None:
        """Write the values of a round."""

    def resumed(self, number: int, values: Mapping[str, float]) -> None:
        """Called on a resume for each round that was finished before."""

    @abstractmethod
    def close(self, summary: Mapping[str, float]) -> None:
        """Write the figures of the whole run, and close the log."""

    def _values(self, record: Record) -> dict[str, float]:
        if record["round"] >= self._defend_from:
            self._rates.add(record)
        refused = sum(verdict["decision"] != "accepted" for verdict in record["verdicts"].values())
        return _numbers(
            {
                "acc": record["acc"],
                "asr": record["asr"],
                "refused": refused,
                **{f"detection/{name}": value for name, value in self._rates.as_dict().items()},
                **{f"seconds/{name}": value for name, value in record["seconds"].items()},
            }
        )


class TensorBoard(Tracker):
    """TensorBoard events in `RUN/tensorboard`."""

    def open(self, simulation: Simulation) -> None:
        """Begin a file of events; what another file has after the checkpoint is hidden."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing("tensorboard") from error
        folder = _folder(simulation) / "tensorboard"
        self._writer = SummaryWriter(str(folder), purge_step=len(simulation.records) + 1)

    def write(self, number: int, values: Mapping[str, float]) -> None:
        """Add one point to each curve."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, number)

    def close(self, summary: Mapping[str, float]) -> None:
        """Flush and close."""
        self._writer.close()


class WeightsAndBiases(Tracker):
    """A run of Weights & Biases; WANDB_MODE=offline writes it into `RUN/wandb` only."""

    def open(self, simulation: Simulation) -> None:
        """Begin or continue the run; its id belongs to the run directory."""
        try:
            import wandb
        except ImportError as error:
            raise _missing("wandb") from error
        folder = _folder(simulation)
        try:
            self._run = wandb.init(
                project=PROJECT,
                name=folder.name,
                dir=str(folder),
                id=hashlib.sha256(str(folder).encode()).hexdigest()[:16],
                resume="allow" if simulation.records else None,
                config=flat_settings(simulation.config),
                settings=wandb.Settings(silent=True),
            )
        except wandb.errors.Error as error:
            raise ConfigError(f"Weights & Biases: {error}; without an account set WANDB_MODE=offline") from error

    def write(self, number: int, values: Mapping[str, float]) -> None:
        """Log one step."""
        self._run.log(dict(values), step=number)

    def close(self, summary: Mapping[str, float]) -> None:
        """Set the run's summary and finish it."""
        self._run.summary.update(dict(summary))
        self._run.finish()


class MLflow(Tracker):
    """A run of MLflow, at MLFLOW_TRACKING_URI or else in the folder `mlruns` beside the run directory."""

    def open(self, simulation: Simulation) -> None:
        """Begin the run, or continue that of the run directory."""
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            raise _missing("mlflow") from error
        folder = _folder(simulation)
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if address is None:
            # Without this, recent versions refuse folders.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            address = (folder.parent / "mlruns").as_uri()
        self._client = MlflowClient(tracking_uri=address)
        found = self._client.get_experiment_by_name(PROJECT)
        experiment = found.experiment_id if found else self._client.create_experiment(PROJECT)
        tags = {"g2uardfl.directory": str(folder)}
        earlier: list[Any] = []
        if simulation.records:
            earlier = self._client.search_runs([experiment], f"tags.`g2uardfl.directory` = '{folder}'", max_results=1)
        self._run = (earlier or [self._client.create_run(experiment, tags=tags, run_name=folder.name)])[0].info.run_id
        if not earlier:
            for name, value in flat_settings(simulation.config).items():
                self._client.log_param(self._run, name, value)

    def write(self, number: int, values: Mapping[str, float]) -> None:
        """Log the metrics of one step."""
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=number)

    def close(self, summary: Mapping[str, float]) -> None:
        """Log the figures of the whole run, and end it."""
        for name, value in summary.items():
            self._client.log_metric(self._run, f"summary/{name}", value)
        self._client.set_terminated(self._run)


class CSV(Tracker):
    """One line for each round in `RUN/rounds.csv`."""

    def open(self, simulation: Simulation) -> None:
        """Start a new file; on a resume, write the rounds that are finished."""
        self._columns: list[str] = []
        path = _folder(simulation) / "rounds.csv"
        self._file = path.open("w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file)

    def write(self, number: int, values: Mapping[str, float]) -> None:
        """Append a line."""
        if not self._columns:
            seconds = (name for name in values if name.startswith("seconds/"))
            self._columns = ["acc", "asr", "refused", *_RATES, *seconds]
            self._writer.writerow(["round", *self._columns])
        self._writer.writerow([number, *(values.get(name) for name in self._columns)])
        self._file.flush()

    def resumed(self, number: int, values: Mapping[str, float]) -> None:
        """Write the line again."""
        self.write(number, values)

    def close(self, summary: Mapping[str, float]) -> None:
        """Close the file."""
        self._file.close()


_RATES = tuple(f"detection/{name}" for name in ("precision", "recall", "f1", "benign_refused"))


def create_all(names: Sequence[str]) -> list[Callback]:
    """A tracker for each name."""
    return [create(name) for name in names]


def _folder(simulation: Simulation) -> Path:
    return (simulation.path or Path()).resolve()


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def _missing(extra: str) -> ConfigError:
    return ConfigError(f"--log {extra} needs {extra}: pip install 'g2uardfl[{extra}]'")
