"""Checkpoints, from which an interrupted run resumes and reaches the same result.

All random choices derive from the run's seed, so a checkpoint holds no generator state. It holds the model, the states
of the defence and the attack, and the number of the last finished round. Each checkpoint is one state file, written
atomically and with a checksum over all of it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from ..core.errors import StateError
from ..core.files import delete_unfinished
from ..core.state_files import SavedState, read_state, write_state
from .config import RunConfig

_KIND = "checkpoint"
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
    """Raise `StateError` if there is no run in `folder`, or one with another config."""
    if not (folder / "config.toml").exists():
        raise StateError(f"there is no run in {folder} to resume: leave out --resume to start it")
    if config_digest(RunConfig.from_file(folder / "config.toml")) != config_digest(config):
        raise StateError(f"{folder} holds a run with other settings: choose another --out, or g2uardfl resume {folder}")


def write_checkpoint(folder: Path, config: RunConfig, checkpoint: Checkpoint) -> None:
    """Write `checkpoint` into `folder` and delete all but the latest two."""
    from safetensors.torch import save

    path = folder / f"round-{checkpoint.round:08d}.state"
    weights = save({name: value.detach().cpu().contiguous() for name, value in checkpoint.weights.items()})
    values = {"round": checkpoint.round, "config": config_digest(config), "start": checkpoint.start_scores}
    parts = {
        "model": SavedState(arrays={"weights": np.frombuffer(weights, np.uint8)}),
        "defense": checkpoint.defense,
        "attack": checkpoint.attack,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        delete_unfinished(path)
        write_state(path, _KIND, SavedState.joined(parts, values))
        for old in _checkpoints(folder)[:-_KEPT]:
            old.unlink()
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
        except StateError as error:
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
    from safetensors.torch import load

    if path.is_dir():
        raise StateError(f"{path} was written by an earlier version of g2uardfl: start the run again with --overwrite")
    state = read_state(path, _KIND)
    try:
        weights = load(state.part("model").arrays["weights"].tobytes())
        defense, attack = state.part("defense"), state.part("attack")
        values = state.values
        checkpoint = Checkpoint(int(values["round"]), weights, defense, attack, dict(values["start"]))
        return checkpoint, str(values["config"])
    except Exception as error:  # safetensors has exceptions of its own
        raise StateError(f"{path} is incomplete ({error}): delete it or start the run again") from error


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*"))
