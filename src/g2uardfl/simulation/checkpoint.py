"""Checkpoints, from which an interrupted run resumes and reaches the same result.

All random choices derive from the run's seed, so a checkpoint holds no generator state. It holds the model, the states
of the defence and the attack, and the number of the last finished round. Each checkpoint is a folder that is written
under a temporary name and renamed when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from ..core.errors import ConfigError, StateError
from ..core.state_files import SavedState, read_state, write_state
from .config import RunConfig
from .start import read_model, write_model

_KEPT = 2
"""Number of checkpoints that are kept: if the latest is damaged, the run resumes from the one before."""
_NOT_COMPARED = ("device", "data_dir", "checkpoint_every", "workers")
"""Settings that may change when a run is resumed, because they do not define the experiment."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run between two rounds."""

    round: int
    """Number of finished rounds."""
    weights: dict[str, Tensor]
    defense: SavedState
    attack: SavedState
    start_scores: dict[str, float]


def config_digest(config: RunConfig) -> str:
    """A hash of the settings that define the experiment."""
    values = {name: value for name, value in asdict(config).items() if name not in _NOT_COMPARED}
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def require_same_config(folder: Path, config: RunConfig) -> None:
    """Raise `StateError` if the run in `folder` has another config."""
    if config_digest(RunConfig.from_file(folder / "config.toml")) != config_digest(config):
        raise StateError(f"{folder} holds a run with other settings: choose another --out, or g2uardfl resume {folder}")


def write_checkpoint(folder: Path, config: RunConfig, checkpoint: Checkpoint) -> None:
    """Write `checkpoint` into `folder` and delete all but the latest two."""
    final = folder / f"round-{checkpoint.round:08d}"
    partial = folder / f".{final.name}"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write_model(partial / "model.safetensors", checkpoint.weights)
        write_state(partial / "defense.state", "defense", checkpoint.defense)
        write_state(partial / "attack.state", "attack", checkpoint.attack)
        position = {"round": checkpoint.round, "config": config_digest(config), "start": checkpoint.start_scores}
        write_state(partial / "position.state", "position", SavedState(position))
        shutil.rmtree(final, ignore_errors=True)
        os.rename(partial, final)
        for old in _checkpoints(folder)[:-_KEPT]:
            shutil.rmtree(old)
    except OSError as error:
        raise StateError(
            f"cannot write the checkpoint of round {checkpoint.round} in {folder}: {error.strerror or error}; "
            "free disk space or choose another --out (the files written so far are kept)"
        ) from error


def read_checkpoint(folder: Path, config: RunConfig) -> Checkpoint | None:
    """The latest readable checkpoint; None if there is no checkpoint.

    Raises `StateError` if all checkpoints are damaged, or if the run was started with another config.
    """
    problem: Exception | None = None
    for path in reversed(_checkpoints(folder)):
        try:
            checkpoint, digest = _read(path)
        except (StateError, ConfigError) as error:
            problem = problem or error
            continue
        if digest != config_digest(config):
            raise StateError(
                f"{folder.parent / 'config.toml'} is not the config this run was started with: "
                "restore the original file or start a new run"
            )
        return checkpoint
    if problem:
        raise problem
    return None


def _read(path: Path) -> tuple[Checkpoint, str]:
    """A checkpoint and the hash of its config."""
    position = read_state(path / "position.state", "position").values
    weights, _ = read_model(path / "model.safetensors")
    defense, attack = (read_state(path / f"{kind}.state", kind) for kind in ("defense", "attack"))
    checkpoint = Checkpoint(int(position["round"]), weights, defense, attack, dict(position["start"]))
    return checkpoint, str(position["config"])


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("round-*") if path.is_dir())
