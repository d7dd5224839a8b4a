"""Projected gradient descent, without and with model replacement (Wang et al. 2020).

The attacker trains on backdoored data and stays in a ball around the global model. With replacement it then scales its
update so that the average becomes its model instead of everybody's.

Deliberate differences from the original code:

- The projection follows every step; the original projects every tenth and at the end of an epoch, and its text version
  before the step, so that the last one leaves the ball.
- Replacement scales by the share of samples that all attackers of the round hold together. In the original each one
  scales by its own share, so that k attackers overshoot k-fold and the model suffers; `share="own"` does that.
- Running statistics of BatchNorm are sent as trained, neither projected nor scaled.
- The original shrinks the radius over the rounds when it knows that the server uses Krum; no attack here knows the
  defence.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from ..core.settings import choice, number
from ..training.local import Recipe
from .base import Model, Turn, moved
from .black_box import BlackBox


@dataclass(frozen=True)
class PGDSettings:
    """Settings of `pgd`."""

    radius: float = number(0.0, 0, math.inf)
    """ε, the radius of the ball; 0 means the task's own (the paper's 0.2, 1, 2 and 2)."""


class PGD(BlackBox):
    """Black-box training, projected after every step onto the ball ‖w - G‖ <= ε over all parameters."""

    name = "pgd"
    summary = "poisoned training kept in a ball around the global model"
    Settings = PGDSettings

    def recipe(self, honest: Recipe) -> Recipe:
        """Honest training in the ball."""
        return dataclasses.replace(honest, radius=self.settings.radius or self.task.pgd_radius)


@dataclass(frozen=True)
class ReplacementSettings(PGDSettings):
    """Settings of `pgd_replacement`."""

    share: str = choice("team", "team", "own")
    """Whose share of the round's samples the factor makes up for: all attackers' together, or each one's own."""


class PGDReplacement(PGD):
    """PGD, then G + (w - G) n / n_A, where n_A of the round's n samples are the attackers'."""

    name = "pgd_replacement"
    summary = "PGD, then scaled to replace the average"
    Settings = ReplacementSettings

    def submissions(self, turn: Turn, trained: Mapping[Hashable, Model]) -> Mapping[int, Model]:
        """The scaled updates."""
        sent = {}
        for member in turn.members:
            own = turn.num_examples / max(1, len(member.clean))
            factor = own if self.settings.share == "own" else turn.replacement_factor
            sent[member.client] = moved(turn.global_weights, trained[member.client], factor, self.parameters)
        return sent
