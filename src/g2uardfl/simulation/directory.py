"""The run directory: `config.toml`, `rounds.jsonl`, `summary.json` and `model.safetensors`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import IO, Any

from ..errors import StateError
from .config import RunConfig
from .run import Callback, Simulation
from .start import write_model

FILES = ("config.toml", "rounds.jsonl", "summary.json", "model.safetensors", "report.html")


class RunDirectory(Callback):
    """Writes a run's files as it goes.

    A folder that already holds a run is refused unless `overwrite` is given; then only a run's own files go.
    """

    def __init__(self, path: str | Path, *, overwrite: bool = False) -> None:
        self.path = Path(path)
        self._rounds: IO[str] | None = None
        existing = [name for name in FILES if (self.path / name).exists()]
        if existing and not overwrite:
            raise StateError(f"{self.path} already holds a run: choose another --out, or --overwrite it")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for name in existing:
                (self.path / name).unlink()
            shutil.rmtree(self.path / "checkpoint", ignore_errors=True)
        except OSError as error:
            raise StateError(f"cannot write to {self.path}: {error.strerror}; choose another --out") from error

    def on_start(self, simulation: Simulation) -> None:
        """Write the complete config and open the log of rounds."""
        try:
            (self.path / "config.toml").write_text(simulation.config.to_toml(), encoding="utf-8")
            self._rounds = (self.path / "rounds.jsonl").open("w", encoding="utf-8")
        except OSError as error:
            raise StateError(f"cannot write to {self.path}: {error.strerror}; choose another --out") from error

    def on_round(self, record: dict[str, Any]) -> None:
        """Append one line; whoever reads along sees whole lines only."""
        if self._rounds is not None:
            self._rounds.write(json.dumps(record) + "\n")
            self._rounds.flush()

    def on_end(self, simulation: Simulation, summary: dict[str, Any]) -> None:
        """Write the summary and the final model."""
        if self._rounds is not None:
            self._rounds.close()
        (self.path / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        write_model(self.path / "model.safetensors", simulation.weights)


class FinishedRun:
    """A run directory, read back."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not (self.path / "config.toml").exists():
            raise StateError(f"{self.path} is not a run directory: it has no config.toml")
        self.config = RunConfig.from_file(self.path / "config.toml")
        try:
            lines = (self.path / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
            self.rounds: list[dict[str, Any]] = [json.loads(line) for line in lines]
            self.summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise StateError(f"{self.path} is not finished: {Path(error.filename).name} is missing") from error
        except ValueError as error:
            raise StateError(f"{self.path} is damaged: {error}") from error
