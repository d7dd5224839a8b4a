"""The initial model of a run: a converged model, an untrained model, or a model file.

The paper's attacks begin after convergence. A converged model is trained centrally once and cached under a hash of
everything it depends on: the task, its model, its data, the training recipe and the seed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..core.cache import cache_dir
from ..core.errors import ConfigError, StateError
from ..core.files import atomic_write
from ..tasks.base import Task
from ..training.local import share_predicted
from .central import CentralTraining, Progress
from .config import RunConfig
from .environment import usable_device
from .schedule import start_seed

_RECIPE_VERSION = 3
"""Version of `CentralTraining`; increase it with every change of the result, so that cached models are not reused."""


@dataclass(frozen=True)
class ConvergedStart:
    """A converged model."""

    weights: dict[str, Tensor]
    path: Path | None
    """The cache file; None if it cannot be written."""
    was_cached: bool


def start_weights(task: Task, config: RunConfig, progress: Progress | None = None) -> dict[str, Tensor]:
    """The initial weights of a run, as `config.start` says.

    Parameters
    ----------
    task, config
        The task and the config of the run.
    progress
        Called after each step if a converged model has to be trained (default: None).
    """
    if config.start == "scratch":
        return fresh_weights(task, start_seed(config.seed))
    if config.start == "converged":
        return converged_start(task, device=config.device, progress=progress).weights
    weights = read_model(config.start)
    expected = {name: value.shape for name, value in task.build_model().state_dict().items()}
    if {name: value.shape for name, value in weights.items()} != expected:
        raise ConfigError(f"{config.start} holds another model than {task.name}'s {task.model}")
    return weights


def fresh_weights(task: Task, seed: int) -> dict[str, Tensor]:
    """The weights of an untrained model, drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return {name: value.detach().clone() for name, value in task.build_model().state_dict().items()}


def converged_start(
    task: Task, *, seed: int = 0, device: str = "cpu", progress: Progress | None = None, again: bool = False
) -> ConvergedStart:
    """The task's converged model, from the cache or else trained now and cached.

    An interrupted training is continued by the next call.

    Parameters
    ----------
    task
        The task, with its model and data.
    seed
        Determines the initial weights and the order of the samples (default: 0).
    device
        Where to train (default: "cpu").
    progress
        Called after each step with the numbers of steps done and of all steps (default: None).
    again
        Train even if a model is cached, and replace it (default: False).
    """
    usable_device(device)
    path = cache_dir() / "starts" / f"{task.name}-{task.model}-{start_key(task, seed)}.safetensors"
    if path.exists() and not again:
        return ConvergedStart(read_model(path), path, was_cached=True)
    unfinished = path.with_suffix(".unfinished")
    if again:
        unfinished.unlink(missing_ok=True)
    training = CentralTraining(task, fresh_weights(task, seed), seed=seed, device=device)
    weights = training.run(progress, unfinished)
    cached: Path | None = path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_model(path, weights)
        unfinished.unlink(missing_ok=True)
    except (OSError, StateError):
        cached = None
    return ConvergedStart(weights, cached, was_cached=False)


def start_scores(task: Task, weights: dict[str, Tensor], device: str = "cpu") -> tuple[float, float]:
    """ACC and ASR of a model on the task's test data, before any attack."""
    model = task.build_model().to(device)
    model.load_state_dict(weights)
    acc, asr = (share_predicted(task, model, samples.to(device)) for samples in (task.test, task.backdoor_test))
    return acc, asr


def start_key(task: Task, seed: int) -> str:
    """A short hash of everything that a converged model depends on."""
    defaults = dataclasses.asdict(task.defaults)
    recipe = {name: value for name, value in defaults.items() if name.startswith("pretrain_")}
    recipe |= {"momentum": task.defaults.momentum, "weight_decay": task.defaults.weight_decay}
    digest = hashlib.sha256(
        json.dumps([_RECIPE_VERSION, task.name, task.model, str(task.build_model()), recipe, seed]).encode()
    )
    for tensor in (task.train.x, task.train.y):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def read_model(path: str | Path) -> dict[str, Tensor]:
    """The weights in a model file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise ConfigError(f"there is no model file {path}") from error
    except (SafetensorError, OSError) as error:
        raise StateError(f"{path} is not a readable safetensors model ({error})") from error


def write_model(path: str | Path, weights: dict[str, Tensor]) -> None:
    """Write a model file, whole or not at all; an existing one is replaced."""
    from safetensors.torch import save

    target = Path(path)
    content = save({name: value.detach().cpu().contiguous() for name, value in weights.items()})
    try:
        with atomic_write(target) as file:
            file.write(content)
    except OSError as error:
        raise StateError(f"cannot write {target}: {error.strerror or error}") from error
