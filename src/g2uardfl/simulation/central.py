"""Central training of a task's model, which can be interrupted after any epoch and gives the same result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import StateError
from ..core.state_files import SavedState, read_state, write_state
from ..core.threads import one_thread
from ..tasks.base import Task
from ..training.local import batches

Progress = Callable[[int, int], None]
"""Called with the number of steps done and the number of all steps."""

_KIND = "central training"
_WORK_FOR_THREADS = 1e8
"""Parameters x samples of a training step below which one thread is fastest: a step of the digits model has 1e6 and
takes several times the CPU time with two threads, one of LeNet has 2e8 and takes hardly more."""
_SAVE_SECONDS = 10.0
"""The state is written after the first epoch that ends later than this after the last time."""


class CentralTraining:
    """Trains the task's model on all its training data.

    The learning rate warms up linearly over the first 5 % of the steps and then decays to 0 along a cosine. The last
    batch of an epoch is dropped if it is incomplete, because its gradient is noisier.

    Parameters
    ----------
    task
        What to train.
    weights
        The initial weights.
    seed
        The seed of the order of the samples, of augmentation and dropout.
    device
        Where to train.

    Attributes
    ----------
    epoch
        The number of finished epochs.
    """

    def __init__(self, task: Task, weights: dict[str, Tensor], *, seed: int, device: str) -> None:
        self.task = task
        self.epoch = 0
        self.model = task.build_model()
        self.model.load_state_dict(weights)
        self.model.to(device)
        self._device = torch.device(device)
        self._samples = task.train.to(device)
        self._batch_size = min(task.defaults.pretrain_batch_size, len(self._samples))
        self._steps = len(self._samples) // self._batch_size
        self._optimizer = self._make_optimizer()
        self._is_small = self._batch_size * sum(one.numel() for one in self.model.parameters()) < _WORK_FOR_THREADS
        self._generator = torch.Generator().manual_seed(seed)
        with self._own_randomness():
            torch.manual_seed(seed)
            self._random_states = self._current_random_states()

    def run(self, progress: Progress | None = None, saved: Path | None = None) -> dict[str, Tensor]:
        """Train the remaining epochs and return the weights.

        Parameters
        ----------
        progress
            Called after each step (default: None).
        saved
            A file for the state between two epochs. An interrupted training continues from it (default: None).
        """
        if saved is not None and saved.exists():
            with suppress(StateError):  # an unreadable state: train from the start
                self._restore(read_state(saved, _KIND))
        written = time.monotonic()
        for _ in range(self.epoch, self.task.defaults.pretrain_epochs):
            self._train_epoch(progress or (lambda done, total: None))
            if saved is not None and time.monotonic() - written > _SAVE_SECONDS:
                with suppress(OSError, StateError):  # a cache that cannot be written
                    saved.parent.mkdir(parents=True, exist_ok=True)
                    write_state(saved, _KIND, self._state())
                written = time.monotonic()
        return {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}

    def _train_epoch(self, progress: Progress) -> None:
        self.model.train()
        total = self.task.defaults.pretrain_epochs * self._steps
        step = self.epoch * self._steps
        with one_thread() if self._is_small else nullcontext(), self._own_randomness():
            self._set_random_states(self._random_states)
            for batch in batches(len(self._samples), self._batch_size, 1, 0, self._generator):
                if len(batch) < self._batch_size:
                    continue
                for group in self._optimizer.param_groups:
                    group["lr"] = self.task.defaults.pretrain_lr * _warm_cosine(step, total)
                indices = batch.to(self._device)
                x = self.task.prepare(self.task.augment(self._samples.x[indices], self._generator))
                self._optimizer.zero_grad()
                self.task.loss(self.model(x), self._samples.y[indices]).backward()  # type: ignore[no-untyped-call]
                self._optimizer.step()
                step += 1
                progress(step, total)
            self._random_states = self._current_random_states()
        self.epoch += 1

    def _state(self) -> SavedState:
        arrays = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for index, buffers in self._optimizer.state_dict()["state"].items():
            arrays |= {f"optimizer.{index}.{name}": value for name, value in buffers.items() if value is not None}
        arrays |= {f"random.{name}": value for name, value in self._random_states.items()}
        arrays["generator"] = self._generator.get_state()
        return SavedState({"epoch": self.epoch}, {name: value.cpu().numpy() for name, value in arrays.items()})

    def _restore(self, state: SavedState) -> None:
        arrays = {name: torch.from_numpy(value.copy()) for name, value in state.arrays.items()}

        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}

        buffers: dict[int, dict[str, Any]] = {}
        for name, value in part("optimizer.").items():
            index, _, buffer = name.partition(".")
            buffers.setdefault(int(index), {})[buffer] = value
        self.model.load_state_dict(part("model."))
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": buffers, "param_groups": groups})
        self._random_states = part("random.")
        self._generator.set_state(arrays["generator"])
        self.epoch = int(state.values["epoch"])

    def _make_optimizer(self) -> torch.optim.Optimizer:
        defaults, parameters = self.task.defaults, self.model.parameters()
        if defaults.pretrain_optimizer == "adam":
            return torch.optim.Adam(parameters, lr=defaults.pretrain_lr)
        return torch.optim.SGD(
            parameters,
            lr=defaults.pretrain_lr,
            momentum=defaults.momentum,
            weight_decay=defaults.weight_decay,
            nesterov=True,
        )

    @contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """Leave torch's global generators as they were."""
        with torch.random.fork_rng(devices=[] if self._device.type == "cpu" else None):
            yield

    def _current_random_states(self) -> dict[str, Tensor]:
        states = {"cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self._device)
        return states

    def _set_random_states(self, states: dict[str, Tensor]) -> None:
        torch.set_rng_state(states["cpu"])
        if "cuda" in states and self._device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"], self._device)


def _warm_cosine(step: int, total: int) -> float:
    """The learning rate of a step, as a multiple of the highest one."""
    warm_up = max(1, total // 20)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (total - warm_up)))
