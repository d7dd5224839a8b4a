"""Projected gradient descent, without and with model replacement (Wang et al. 2020).

The attacker trains on backdoored data within a ball around the global model. With replacement it then scales its
update so that its model replaces the average.

Deliberate differences from the original code:

- Every step is projected. The original projects every tenth step and at the end of an epoch; its text version projects
  before the step, so the last step leaves the ball.
- The scaling factor compensates for the share of samples that all attackers of the round hold together. In the
  original each attacker compensates for its own share, so k attackers overshoot k-fold and accuracy suffers;
  `share="own"` does that.
- Running statistics of BatchNorm are sent as trained, neither projected nor scaled.
- The original shrinks the radius over the rounds if it knows that the server uses Krum. No attack here knows the
  defence.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from ..core.settings import choice, optional_number
from ..tasks.base import Task
from ..training.local import Recipe
from .base import Attack, Model, Turn, moved
from .black_box import DataPoisoning


@dataclass(frozen=True)
class PGDSettings:
    """Settings of `PGD`; see its docstring."""

    radius: float | None = optional_number(0, math.inf, above=True)


class PGD(DataPoisoning):
    """Black-box training, projected after every step onto the ball ‖w - G‖ <= ε over all parameters.

    Parameters
    ----------
    radius
        ε, the radius of the ball; None means the task's own, which is the G²uardFL paper's: 0.2 for MNIST, 1 for
        CIFAR-10, 2 for text (default: None).

    Notes
    -----
    Attackers control their training. A small ball makes their updates no larger than honest ones.

    References
    ----------
    Wang et al., "Attack of the Tails: Yes, You Really Can Backdoor Federated Learning", NeurIPS 2020.
    """

    name = "pgd"
    summary = "poisoned training within a ball around the global model"
    Settings = PGDSettings

    def __init__(self, *, radius: float | None = PGDSettings.radius) -> None:
        super().__init__(radius=radius)

    def enlist(self, task: Task, team: Sequence[int]) -> None:
        """Take the task's radius where none is given."""
        super().enlist(task, team)
        if self.settings.radius is None:
            self.settings = dataclasses.replace(self.settings, radius=task.pgd_radius)

    def recipe(self, honest: Recipe) -> Recipe:
        """Honest training within the ball."""
        return dataclasses.replace(honest, radius=self.settings.radius)


@dataclass(frozen=True)
class ReplacementSettings(PGDSettings):
    """Settings of `PGDReplacement`; see its docstring."""

    share: str = choice("team", "team", "own")


class PGDReplacement(PGD):
    """PGD, then G + (w - G) n / n_A, where n_A of the round's n samples are the attackers'.

    Parameters
    ----------
    radius
        ε, the radius of the ball; None means the task's own (default: None).
    share
        The share of the round's samples that the factor compensates for: that of all attackers together ("team"), or
        each attacker's own ("own") (default: "team").

    Notes
    -----
    Attackers know how many samples the clients of a round report together. Their scaled updates are large.

    References
    ----------
    Wang et al., "Attack of the Tails: Yes, You Really Can Backdoor Federated Learning", NeurIPS 2020.
    """

    name = "pgd_replacement"
    summary = "PGD, then scaled to replace the average"
    Settings = ReplacementSettings

    def __init__(
        self, *, radius: float | None = ReplacementSettings.radius, share: str = ReplacementSettings.share
    ) -> None:
        # The constructor of PGD takes no share.
        Attack.__init__(self, radius=radius, share=share)

    def submissions(self, turn: Turn, trained: Mapping[Hashable, Model]) -> Mapping[int, Model]:
        """The scaled updates."""
        sent = {}
        for member in turn.members:
            own = turn.num_examples / max(1, len(member.clean))
            factor = own if self.settings.share == "own" else turn.replacement_factor
            sent[member.client] = moved(turn.global_weights, trained[member.client], factor, self.parameters)
        return sent
