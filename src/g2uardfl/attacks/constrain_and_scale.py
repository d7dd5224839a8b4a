"""Constrain-and-scale (Bagdasaryan et al. 2020): a loss that stays near the global model, then scaling.

The attacker minimises α L + (1 - α) ‖w - G‖ on backdoored data and scales its update to replace the average.

Deliberate differences from the original code:

- α is 0.5, as in the G²uardFL paper; the original's default of 1 removes the distance.
- Scaling compensates for the attackers' share of the round's samples, because the server here averages what it
  receives; the original divides by all registered clients and scales by 100. The factor is never multiplied by the
  number of attackers.
- Learning rate and epochs are those of honest clients times `lr_factor` and `epoch_factor`. The original trains for 15
  epochs against 2, as `epoch_factor` = 15/2 does (of local steps as well). Its learning rate is half the honest one,
  decays to a hundredth, and is divided by 50 or 5000 once the backdoor works; here it is the honest one throughout,
  which implants the backdoor sooner.
- Backdoored inputs receive no noise, and running statistics are not scaled.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from ..core.settings import number, optional_number
from ..training.local import Recipe
from .base import Model, Turn, moved
from .black_box import DataPoisoning


@dataclass(frozen=True)
class ConstrainAndScaleSettings:
    """Settings of `ConstrainAndScale`; see its docstring."""

    alpha: float = number(0.5, 0, 1)
    scale: float | None = optional_number(0, math.inf, above=True)
    epoch_factor: float = number(7.5, 1, 1000)
    lr_factor: float = number(1.0, 0, 1000, above=True)


class ConstrainAndScale(DataPoisoning):
    """Trains on α L + (1 - α) ‖w - G‖ and scales the update.

    Parameters
    ----------
    alpha
        α: the weight of the task's loss; the distance has weight 1 - α (default: 0.5).
    scale
        The factor by which updates are scaled; None means the factor that replaces the average
        (default: None).
    epoch_factor
        The number of epochs, or steps, relative to honest clients (default: 7.5).
    lr_factor
        The learning rate relative to honest clients (default: 1.0).

    Notes
    -----
    Attackers know how many samples the clients of a round report together. Their scaled updates are large.

    References
    ----------
    Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS 2020.
    """

    name = "constrain_and_scale"
    summary = "a loss that stays near the global model, then scaled to replace the average"
    Settings = ConstrainAndScaleSettings

    def __init__(
        self,
        *,
        alpha: float = ConstrainAndScaleSettings.alpha,
        scale: float | None = ConstrainAndScaleSettings.scale,
        epoch_factor: float = ConstrainAndScaleSettings.epoch_factor,
        lr_factor: float = ConstrainAndScaleSettings.lr_factor,
    ) -> None:
        super().__init__(alpha=alpha, scale=scale, epoch_factor=epoch_factor, lr_factor=lr_factor)

    def recipe(self, honest: Recipe) -> Recipe:
        """Training with the constrained loss."""
        settings = self.settings
        return dataclasses.replace(
            honest.longer(settings.epoch_factor),
            lr=honest.lr * settings.lr_factor,
            loss_weight=settings.alpha,
            distance_weight=1 - settings.alpha,
        )

    def submissions(self, turn: Turn, trained: Mapping[Hashable, Model]) -> Mapping[int, Model]:
        """The scaled updates."""
        factor = turn.replacement_factor if self.settings.scale is None else self.settings.scale
        return {
            member.client: moved(turn.global_weights, trained[member.client], factor, self.parameters)
            for member in turn.members
        }
