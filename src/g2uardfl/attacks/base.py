"""What an attack is: what malicious clients train on and what they send.

One attack object acts for all malicious clients. It sees their data, the global models they are sent and what they
trained, and nothing of the server or of benign clients.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import ConfigError
from ..state_files import SavedState
from ..tasks.base import Samples, Task, concatenate


class Attack(ABC):
    """An attack; by itself it behaves like honest clients.

    A third party's attack subclasses this in its own module and is used as `--attack package.module:ClassName`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for `g2uardfl list attacks`."""
    attacks: ClassVar[bool] = True
    """Whether the malicious clients do anything at all."""

    def __init__(self, **settings: Any) -> None:
        if settings:
            raise ConfigError(f"attack {self.name} has no setting {', '.join(sorted(settings))}")

    def training_data(self, task: Task, clean: Samples, pdr: float, generator: torch.Generator) -> Samples:
        """What a malicious client trains on, given its own data and the poisoned data rate it was told."""
        return clean

    def submissions(
        self, global_weights: Mapping[str, Tensor], trained: Mapping[int, Mapping[str, Tensor]]
    ) -> Mapping[int, Mapping[str, Tensor]]:
        """What the malicious clients of this round send, given what each of them trained."""
        return trained

    def state(self) -> SavedState:
        """What the attack remembers between rounds; one without memory remembers nothing."""
        return SavedState()

    def restore(self, state: SavedState) -> None:  # noqa: B027 - an attack without memory has nothing to restore
        """Go on from what `state` returned."""


def mix_backdoor(task: Task, clean: Samples, pdr: float, generator: torch.Generator) -> Samples:
    """As many samples as `clean` has, of which the share `pdr` are backdoored (PDR = |D^A| / |D|).

    Backdoored samples are drawn from the attacker's pool without repetition as long as it lasts; the others are a
    random part of the client's own. At least one sample of each is kept where 0 < pdr < 1 and there is room.
    """
    total = len(clean)
    poisoned = round(pdr * total)
    if 0 < pdr < 1 and total >= 2:
        poisoned = min(max(poisoned, 1), total - 1)
    pool = len(task.backdoor_train)
    passes = -(-poisoned // pool)
    draws = torch.cat([torch.randperm(pool, generator=generator) for _ in range(max(passes, 1))])[:poisoned]
    kept = torch.randperm(total, generator=generator)[: total - poisoned]
    return concatenate(clean.take(kept), task.backdoor_train.take(draws))
