"""The run directory: `config.toml`, `rounds.jsonl`, `summary.json`, `model.safetensors` and checkpoints."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..core.errors import StateError
from ..core.files import atomic_write
from .checkpoint import read_checkpoint, write_checkpoint
from .config import RunConfig
from .metrics import figures, summarise
from .run import Callback, Simulation
from .start import write_model

CHECKPOINTS = "checkpoint"
"""Name of the folder of checkpoints in a run directory."""
FILES = ("config.toml", "rounds.jsonl", "summary.json", "model.safetensors", "report.html")
"""Names of the files in a run directory."""


class RunDirectory(Callback):
    """Writes the files of a run while it runs, and checkpoints from which it can be resumed.

    Parameters
    ----------
    path
        The run directory.
    overwrite
        Delete the files of a run that is already in the folder; otherwise such a folder is rejected (default: False).
    resume
        Keep the files of the run in the folder, which is resumed (default: False).
    """

    def __init__(self, path: str | Path, *, overwrite: bool = False, resume: bool = False) -> None:
        self.path = Path(path)
        self._rounds: IO[str] | None = None
        if resume:
            return
        existing = [name for name in (*FILES, CHECKPOINTS) if (self.path / name).exists()]
        if existing and not overwrite:
            raise StateError(f"{self.path} already holds a run: choose another --out, or use --resume or --overwrite")
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            for name in existing:
                _remove(self.path / name)

    def on_start(self, simulation: Simulation) -> None:
        """Write the config, and open `rounds.jsonl` with the rounds up to the checkpoint the run resumes from."""
        simulation.path = self.path
        with self._writing():
            (self.path / "config.toml").write_text(simulation.config.to_toml(), encoding="utf-8")
            _write_lines(self.path / "rounds.jsonl", [json.dumps(record) for record in simulation.records])
            self._rounds = (self.path / "rounds.jsonl").open("a", encoding="utf-8")
        if not simulation.records:
            write_checkpoint(self.path / CHECKPOINTS, simulation.config, simulation.checkpoint())

    def on_round(self, simulation: Simulation, record: dict[str, Any]) -> None:
        """Append the record; write a checkpoint if one is due."""
        done = record["round"]
        if self._rounds is not None:
            with self._writing():
                self._rounds.write(json.dumps(record) + "\n")
                self._rounds.flush()
                os.fsync(self._rounds.fileno())
        config = simulation.config
        if done % config.checkpoint_every == 0 or done == config.rounds:
            write_checkpoint(self.path / CHECKPOINTS, simulation.config, simulation.checkpoint())

    def on_stop(self, simulation: Simulation) -> None:
        """Write a checkpoint of the last round."""
        write_checkpoint(self.path / CHECKPOINTS, simulation.config, simulation.checkpoint())

    def on_end(self, simulation: Simulation, summary: dict[str, Any]) -> None:
        """Write the final model and the summary."""
        if self._rounds is not None:
            self._rounds.close()
        with self._writing():
            write_model(self.path / "model.safetensors", simulation.weights)
            _write_lines(self.path / "summary.json", [json.dumps(summary, indent=2)])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn an `OSError` into a `StateError` that says what to do."""
        try:
            yield
        except OSError as error:
            raise StateError(
                f"cannot write to {self.path}: {error.strerror or error}; free disk space or choose another --out"
            ) from error


def resumed(path: str | Path) -> Simulation:
    """The simulation of an unfinished run, restored from its latest checkpoint."""
    folder = Path(path)
    if not (folder / "config.toml").exists():
        raise StateError(f"{folder} is not a run directory: it has no config.toml")
    if (folder / "summary.json").exists():
        raise StateError(f"{folder} is finished: see g2uardfl report {folder}")
    simulation = Simulation(RunConfig.from_file(folder / "config.toml"))
    checkpoint = read_checkpoint(folder / CHECKPOINTS, simulation.config)
    if checkpoint is None:
        raise StateError(f"{folder} has no checkpoint yet: start the run again with --overwrite")
    try:
        lines = (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()[: checkpoint.round]
        records = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise StateError(f"{folder / 'rounds.jsonl'} is damaged ({error}): start the run again") from error
    if [record["round"] for record in records] != list(range(1, checkpoint.round + 1)):
        raise StateError(f"{folder / 'rounds.jsonl'} lacks rounds before the checkpoint: start the run again")
    simulation.resume(checkpoint, records)
    return simulation


def _write_lines(path: Path, lines: list[str]) -> None:
    with atomic_write(path) as file:
        file.writelines(f"{line}\n".encode() for line in lines)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


class FinishedRun:
    """The files of a finished run.

    Parameters
    ----------
    path
        The run directory.
    unfinished_too
        Read a run without a summary, too; the summary is then that of the rounds so far (default: False).

    Attributes
    ----------
    config, rounds, summary
        The content of the files.
    """

    def __init__(self, path: str | Path, *, unfinished_too: bool = False) -> None:
        self.path = Path(path)
        if not (self.path / "config.toml").exists():
            raise StateError(f"{self.path} is not a run directory: it has no config.toml")
        self.config = RunConfig.from_file(self.path / "config.toml")
        is_finished = (self.path / "summary.json").exists()
        if not (is_finished or unfinished_too):
            raise StateError(f"{self.path} is not finished: continue with g2uardfl resume {self.path}")
        try:
            lines = (self.path / "rounds.jsonl").read_text(encoding="utf-8").split("\n")
            # The last line may be in the middle of being written; a complete one ends with a line break.
            self.rounds: list[dict[str, Any]] = [json.loads(line) for line in lines[:-1]]
            self.summary: dict[str, Any] = (
                json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
                if is_finished
                else summarise(self.rounds, self.config.defend_from)
            )
        except FileNotFoundError as error:
            raise StateError(f"{self.path} has no rounds yet: continue with g2uardfl resume {self.path}") from error
        except ValueError as error:
            raise StateError(f"{self.path} is damaged: {error}") from error

    @classmethod
    def of(cls, path: Path, config: RunConfig, rounds: list[dict[str, Any]], summary: dict[str, Any]) -> FinishedRun:
        """A run from the contents of its files, which need not exist."""
        run = cls.__new__(cls)
        run.path, run.config, run.rounds, run.summary = path, config, rounds, summary
        return run

    @property
    def attackers(self) -> set[str]:
        """The clients that attacked in at least one round, by the ids that verdicts use."""
        return {str(client) for record in self.rounds for client in record["malicious"]}

    @property
    def figures(self) -> dict[str, float | None]:
        """The figures of the run by heading, shares in percent; None where a rate is not defined."""
        return figures(self.summary)
