"""DBA, the distributed backdoor attack (Xie et al. 2020): each attacker trains with one of the trigger's four parts.

The trigger consists of four white bars, one pixel high, in the upper left corner of the image. φ = {size, gap, shift}
gives their size, their distance from each other and their distance from the corner. Each attacker trains with one bar;
the federation as a whole learns all of them. ASR is measured with the whole trigger, on test images that are not of
the target class.

Deliberate differences from the original code:

- The i-th attacker of the federation trains with bar i mod 4, whichever attackers a round selects.
- The share of poisoned samples is PDR, as for every attack here (the original: 20 or 5 of each batch of 64). Attackers
  train for `epoch_factor` times the honest epochs; 3 is the original's 6 against 2 for CIFAR-10 (for MNIST it is 10
  against 1). Updates are not scaled (the original's multi-shot attack).
- Bars are drawn on the stored pixels, before normalisation and, as for all training images, before augmentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ..core.errors import ConfigError
from ..core.settings import number, optional_number
from ..tasks.base import Task
from ..training.local import Recipe
from .trigger import TriggerAttack

BARS = 4
"""The number of parts of the trigger, as in the original."""


@dataclass(frozen=True)
class DBASettings:
    """Settings of `DBA`; see its docstring."""

    size: int | None = optional_number(1, 1000, integer=True)
    gap: int | None = optional_number(0, 1000, integer=True)
    shift: int | None = optional_number(0, 1000, integer=True)
    target: int = number(2, 0, 10**9)
    epoch_factor: int = number(3, 1, 1000)


class DBA(TriggerAttack):
    """Each attacker trains on its own images, a share `pdr` of them with its bar and the target label.

    For `size`, `gap` and `shift`, None means the task's own value: {4, 2, 0} for MNIST and {6, 3, 0} for CIFAR-10.

    Parameters
    ----------
    size
        The length of a bar in pixels (default: None).
    gap
        The distance between bars in pixels, in both directions (default: None).
    shift
        The distance of the first bar from the corner in pixels (default: None).
    target
        The attacker's target label for images with the trigger (default: 2).
    epoch_factor
        The number of epochs relative to honest clients (default: 3).

    Notes
    -----
    For tasks with images. ASR is measured with the whole trigger, on test images that are not of the target class.

    References
    ----------
    Xie et al., "DBA: Distributed Backdoor Attacks against Federated Learning", ICLR 2020.
    """

    name = "dba"
    summary = "a pixel trigger in four parts, one for each attacker (image tasks only)"
    Settings = DBASettings

    def __init__(
        self,
        *,
        size: int | None = DBASettings.size,
        gap: int | None = DBASettings.gap,
        shift: int | None = DBASettings.shift,
        target: int = DBASettings.target,
        epoch_factor: int = DBASettings.epoch_factor,
    ) -> None:
        super().__init__(size=size, gap=gap, shift=shift, target=target, epoch_factor=epoch_factor)

    def enlist(self, task: Task, team: Sequence[int]) -> None:
        """Compute the positions of the bars; refuse bars that do not fit the images."""
        super().enlist(task, team)
        usual = dict(zip(("size", "gap", "shift"), self.pixels.dba, strict=True))
        missing = {name: value for name, value in usual.items() if getattr(self.settings, name) is None}
        self.settings = replace(self.settings, **missing)
        self._trigger = size, gap, shift = self.settings.size, self.settings.gap, self.settings.shift
        height, width = task.train.x.shape[-2:]
        if shift + 2 * size + gap > width or shift + 2 + gap > height:
            raise ConfigError(f"dba: bars of size {size}, gap {gap}, shift {shift} do not fit {height}x{width} pixels")

    def draw(self, images: Tensor, client: int | None) -> None:
        """One bar for a client; all four for the whole trigger."""
        size, gap, shift = self._trigger
        for bar in range(BARS) if client is None else (self.team.index(client) % BARS,):
            row = shift + (1 + gap) * (bar // 2)
            column = shift + (size + gap) * (bar % 2)
            images[..., row, column : column + size] = self.pixels.white

    def recipe(self, honest: Recipe) -> Recipe:
        """Longer training: one bar is a small trigger, and augmentation crops part of it."""
        return honest.longer(self.settings.epoch_factor)
