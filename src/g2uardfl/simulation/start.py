"""Where a run begins: a converged model, trained centrally once and kept, a fresh model, or a model file.

The paper's attacks begin after convergence. A converged start is found again by a hash of everything it depends on:
the task, its model, its data, the recipe and the seed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ..core.cache import cache_dir
from ..core.errors import ConfigError, StateError
from ..core.files import replacing
from ..tasks.base import Task, TrainingDefaults
from ..training.local import batches, share_predicted

Progress = Callable[[int, int], None]
"""Called with the number of epochs done and to do."""

_RECIPE_VERSION = 3


@dataclass(frozen=True)
class ConvergedStart:
    """A trained model and what it reached on the task's own test data."""

    weights: dict[str, Tensor]
    acc: float
    asr: float
    path: Path | None
    """Where it is kept, if it could be."""
    was_cached: bool


def fresh_weights(task: Task, seed: int) -> dict[str, Tensor]:
    """An untrained model's weights, drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return {name: value.detach().clone() for name, value in task.build_model().state_dict().items()}


def converged_start(
    task: Task, *, seed: int = 0, device: str = "cpu", progress: Progress | None = None, again: bool = False
) -> ConvergedStart:
    """The task's converged model: from the cache if it is there, else trained now and kept.

    Parameters
    ----------
    seed
        Decides the first weights and the order of the data.
    again
        Train even if a kept model exists, and replace it.
    """
    path = cache_dir() / "starts" / f"{task.name}-{task.model}-{start_key(task, seed)}.safetensors"
    if path.exists() and not again:
        weights, notes = read_model(path)
        return ConvergedStart(weights, float(notes["acc"]), float(notes["asr"]), path, was_cached=True)
    weights = train_centrally(task, seed=seed, device=device, progress=progress)
    model = task.build_model().to(device)
    model.load_state_dict(weights)
    acc = share_predicted(task, model, task.test.to(device))
    asr = share_predicted(task, model, task.backdoor_test.to(device))
    kept: Path | None = path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_model(path, weights, {"acc": repr(acc), "asr": repr(asr), "task": task.name, "model": task.model})
    except (OSError, StateError):
        kept = None
    return ConvergedStart(weights, acc, asr, kept, was_cached=False)


def start_key(task: Task, seed: int) -> str:
    """A short hash of everything a converged start depends on."""
    defaults = dataclasses.asdict(task.defaults)
    recipe = {name: value for name, value in defaults.items() if name.startswith("pretrain_")}
    recipe |= {"momentum": task.defaults.momentum, "weight_decay": task.defaults.weight_decay}
    digest = hashlib.sha256(
        json.dumps([_RECIPE_VERSION, task.name, task.model, str(task.build_model()), recipe, seed]).encode()
    )
    for tensor in (task.train.x, task.train.y):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def train_centrally(
    task: Task, *, seed: int, device: str = "cpu", progress: Progress | None = None
) -> dict[str, Tensor]:
    """Train the task's model on all its training data.

    The learning rate rises over the first twentieth of the steps and then falls to 0 along a cosine; a last batch
    that is not full is left out, since its noisy step does more harm than good.
    """
    defaults = task.defaults
    model = task.build_model()
    model.load_state_dict(fresh_weights(task, seed))
    model.to(device).train()
    samples = task.train.to(device)
    batch_size = min(defaults.pretrain_batch_size, len(samples))
    optimizer = _optimizer(defaults, model)
    total = defaults.pretrain_epochs * (len(samples) // batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _warm_cosine(step, total))
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[] if device == "cpu" else None):
        torch.manual_seed(seed)
        for epoch in range(defaults.pretrain_epochs):
            for batch in batches(len(samples), batch_size, 1, 0, generator):
                if len(batch) < batch_size:
                    continue
                indices = batch.to(device)
                x = task.prepare(task.augment(samples.x[indices], generator))
                optimizer.zero_grad()
                task.loss(model(x), samples.y[indices]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
            if progress:
                progress(epoch + 1, defaults.pretrain_epochs)
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


def _optimizer(defaults: TrainingDefaults, model: nn.Module) -> torch.optim.Optimizer:
    if defaults.pretrain_optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=defaults.pretrain_lr)
    return torch.optim.SGD(
        model.parameters(),
        lr=defaults.pretrain_lr,
        momentum=defaults.momentum,
        weight_decay=defaults.weight_decay,
        nesterov=True,
    )


def _warm_cosine(step: int, total: int) -> float:
    warm_up = max(1, total // 20)
    return (
        (step + 1) / warm_up if step < warm_up else 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (total - warm_up)))
    )


def read_model(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A model file's weights and notes."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except FileNotFoundError as error:
        raise ConfigError(f"there is no model file {path}") from error
    except (SafetensorError, OSError) as error:
        raise StateError(f"{path} is not a readable safetensors model ({error})") from error


def write_model(path: str | Path, weights: dict[str, Tensor], notes: dict[str, str] | None = None) -> None:
    """Write a model file beside its place and rename it."""
    from safetensors.torch import save

    target = Path(path)
    content = save({name: value.detach().cpu().contiguous() for name, value in weights.items()}, metadata=notes)
    try:
        with replacing(target) as file:
            file.write(content)
    except OSError as error:
        raise StateError(f"cannot write {target}: {error.strerror or error}") from error
