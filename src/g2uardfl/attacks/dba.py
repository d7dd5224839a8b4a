"""DBA, the distributed backdoor attack (Xie et al. 2020): a trigger in four parts, each attacker trains with one.

The trigger is four white bars, one pixel high, in the picture's upper left corner. φ = {size, gap, shift} says how long
they are, how far apart, and how far from the corner. Attackers learn one bar each; together the federation learns the
whole, which is what ASR is measured with, on test pictures that are not of the target class.

Deliberate differences from the original code:

- The i-th attacker of the federation trains with bar i mod 4, whichever attackers a round selects.
- The share of poisoned samples is PDR, as for every attack here (the original: 20 or 5 of each batch of 64). Attackers
  train for `epoch_factor` times the honest epochs; 3 is the original's 6 against 2 for CIFAR-10 (for MNIST it is 10
  against 1). Updates are not scaled (the original's multi-shot attack).
- Bars are drawn on the stored pixels, before normalisation and, as for all training pictures, before augmentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..core.errors import ConfigError
from ..core.settings import number
from ..tasks.base import Task
from ..training.local import Recipe
from .trigger import TriggerAttack

BARS = 4


@dataclass(frozen=True)
class DBASettings:
    """Settings of `dba`; -1 means what suits the task's pictures (MNIST {4, 2, 0}, CIFAR-10 {6, 3, 0})."""

    size: int = number(-1, -1, 1000)
    """How long a bar is, in pixels."""
    gap: int = number(-1, -1, 1000)
    """How far apart the bars are, in both directions."""
    shift: int = number(-1, -1, 1000)
    """How far the first bar is from the corner."""
    target: int = number(2, 0, 10**9)
    """The label that triggered pictures are to get."""
    epoch_factor: int = number(3, 1, 1000)
    """How many times as many epochs as honest clients."""


class DBA(TriggerAttack):
    """Each attacker trains on own pictures, a share `pdr` of them with its bar and the target label."""

    name = "dba"
    summary = "a pixel trigger in four parts, one for each attacker (image tasks only)"
    Settings = DBASettings

    def enlist(self, task: Task, team: Sequence[int]) -> None:
        """Place the bars, where they fit."""
        super().enlist(task, team)
        given = (self.settings.size, self.settings.gap, self.settings.shift)
        self._trigger = tuple(own if own >= 0 else usual for own, usual in zip(given, self.pixels.dba, strict=True))
        height, width = task.train.x.shape[-2:]
        size, gap, shift = self._trigger
        if shift + 2 * size + gap > width or shift + 2 + gap > height or size < 1:
            raise ConfigError(f"dba: bars of size {size}, gap {gap}, shift {shift} do not fit {height}x{width} pixels")

    def draw(self, pictures: Tensor, client: int | None) -> None:
        """One bar for a client; all four are the trigger."""
        size, gap, shift = self._trigger
        for bar in range(BARS) if client is None else (self.team.index(client) % BARS,):
            row = shift + (1 + gap) * (bar // 2)
            column = shift + (size + gap) * (bar % 2)
            pictures[..., row, column : column + size] = self.pixels.white

    def recipe(self, honest: Recipe) -> Recipe:
        """Longer training: a bar alone is a faint trigger, and augmentation crops some of it away."""
        return honest.longer(self.settings.epoch_factor)
