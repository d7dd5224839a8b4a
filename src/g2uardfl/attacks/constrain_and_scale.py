"""Constrain-and-scale (Bagdasaryan et al. 2020): a loss that stays near the global model, then scaling.

The attacker minimises α L + (1 - α) ‖w - G‖ on backdoored data and scales its update to replace the average.

Deliberate differences from the original code:

- α is 0.5, as in the paper; the original's default of 1 switches the distance off.
- Scaling makes up for the attackers' share of the round's samples (the server here averages what it receives; the
  original divides by all registered clients and scales by 100). It is never multiplied by the number of attackers.
- Rate and epochs are those of honest clients times `lr_factor` and `epoch_factor`, instead of 15 epochs at rates that
  are divided by 50 or 5000 once the backdoor works.
- No noise is added to backdoored inputs, and running statistics are not scaled.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from ..core.settings import number
from ..training.local import Recipe
from .base import Model, Turn, moved
from .black_box import BlackBox


@dataclass(frozen=True)
class ConstrainAndScaleSettings:
    """Settings of `constrain_and_scale`."""

    alpha: float = number(0.5, 0, 1)
    """α, the weight of the task's loss; the distance weighs 1 - α."""
    scale: float = number(0.0, 0, math.inf)
    """By how much updates are scaled; 0 means by what replaces the average."""
    epoch_factor: int = number(1, 1, 1000)
    """How many times as many epochs as honest clients."""
    lr_factor: float = number(1.0, 0, 1000, above=True)
    """How many times the honest learning rate."""


class ConstrainAndScale(BlackBox):
    """Trains on α L + (1 - α) ‖w - G‖ and scales the update."""

    name = "constrain_and_scale"
    summary = "a loss that stays near the global model, then scaled to replace the average"
    Settings = ConstrainAndScaleSettings

    def recipe(self, honest: Recipe) -> Recipe:
        """The constrained loss."""
        settings = self.settings
        return dataclasses.replace(
            honest.longer(settings.epoch_factor),
            lr=honest.lr * settings.lr_factor,
            loss_weight=settings.alpha,
            distance_weight=1 - settings.alpha,
        )

    def submissions(self, turn: Turn, trained: Mapping[Hashable, Model]) -> Mapping[int, Model]:
        """The scaled updates."""
        factor = self.settings.scale or turn.replacement_factor
        return {
            member.client: moved(turn.global_weights, trained[member.client], factor, self.parameters)
            for member in turn.members
        }
