"""Base class of attacks that draw their own trigger on images."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ..core.errors import ConfigError
from ..tasks.base import Pixels, Samples, Task
from .base import Attack, mix_trigger


class TriggerAttack(Attack):
    """Attackers draw a trigger on some of their images and label those with the setting `target`."""

    pixels: Pixels
    """How the task stores images."""

    def enlist(self, task: Task, team: Sequence[int]) -> None:
        """Refuse a task without images and a target that is not one of its labels."""
        super().enlist(task, team)
        if task.pixels is None:
            raise ConfigError(
                f"attack {self.name} draws on images, but task {task.name} has none: choose another attack"
            )
        if not 0 <= self.settings.target < task.num_classes:
            raise ConfigError(f"{self.name}: target={self.settings.target} is not a label of task {task.name}")
        self.pixels = task.pixels

    @abstractmethod
    def draw(self, images: Tensor, client: int | None) -> None:
        """Draw the part of the trigger that `client` trains with on `images`; the whole trigger for None."""

    def training_data(self, client: int, clean: Samples, pdr: float, generator: torch.Generator) -> Samples:
        """The client's own images, a random share `pdr` of them with its part of the trigger and the target label."""
        return mix_trigger(clean, pdr, generator, partial(self._triggered, client=client))

    def backdoor_test(self) -> Samples:
        """Test images of the other classes with the whole trigger."""
        test = self.task.test
        return self._triggered(test.take(torch.nonzero(test.y != self.settings.target).flatten()))

    def _triggered(self, samples: Samples, client: int | None = None) -> Samples:
        images = samples.x.clone()
        self.draw(images, client)
        return Samples(images, torch.full_like(samples.y, self.settings.target))
