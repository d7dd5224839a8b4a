"""Checkpoints: what a killed run needs to go on as if nothing had happened.

Everything random follows from the run's seed, so a checkpoint holds no generators: the model, what the defence and the
attack remember, and the number of the last finished round. Each is a folder that is written under another name and
renamed when it is whole; the last two are kept, so that one may be damaged.
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
_INCONSEQUENTIAL = ("device", "data_dir", "checkpoint_every", "workers")
"""Settings that may differ when a run goes on: they do not decide its result."""


@dataclass(frozen=True)
class Checkpoint:
    """A run after `round` finished rounds."""

    round: int
    weights: dict[str, Tensor]
    defense: SavedState
    attack: SavedState
    start_scores: dict[str, float]


def config_digest(config: RunConfig) -> str:
    """A hash of the settings that decide a run's result."""
    values = {name: value for name, value in asdict(config).items() if name not in _INCONSEQUENTIAL}
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def require_same_config(folder: Path, config: RunConfig) -> None:
    """Refuse to go on with the run in `folder` under another config than its own."""
    if config_digest(RunConfig.from_file(folder / "config.toml")) != config_digest(config):
        raise StateError(f"{folder} holds a run with other settings: choose another --out, or g2uardfl resume {folder}")


def write_checkpoint(folder: Path, config: RunConfig, checkpoint: Checkpoint) -> None:
    """Write `checkpoint` into `folder` and forget all but the last two."""
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
            "make room or choose another --out (the run so far is kept)"
        ) from error


def read_checkpoint(folder: Path, config: RunConfig) -> Checkpoint | None:
    """The latest checkpoint that can be read, None where there is none; refuses one of another config."""
    problems = []
    for path in reversed(_checkpoints(folder)):
        found = _read(path)
        if isinstance(found, Exception):
            problems.append(found)
            continue
        checkpoint, digest = found
        if digest != config_digest(config):
            raise StateError(
                f"{folder.parent / 'config.toml'} is not the config this run was started with: "
                "put the old one back, or start a new run"
            )
        return checkpoint
    if problems:
        raise problems[0]
    return None


def _read(path: Path) -> tuple[Checkpoint, str] | Exception:
    """A checkpoint and the hash of its config, or what is wrong with it."""
    try:
        position = read_state(path / "position.state", "position").values
        weights, _ = read_model(path / "model.safetensors")
        defense, attack = (read_state(path / f"{kind}.state", kind) for kind in ("defense", "attack"))
        checkpoint = Checkpoint(int(position["round"]), weights, defense, attack, dict(position["start"]))
        return checkpoint, str(position["config"])
    except (StateError, ConfigError) as error:
        return error


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("round-*") if path.is_dir())
