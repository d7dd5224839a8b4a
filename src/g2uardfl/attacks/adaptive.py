"""Attackers who know the defence and make themselves hard to tell apart: wrappers around any other attack.

The paper describes the three in a sentence each ("Adaptive Attacks"); no original code exists. By themselves they wrap
`pgd_replacement`, the paper's default attack; `randomized(black_box)` wraps another, and they wrap each other too. A
setting that a wrapper does not have goes to what it wraps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..core.errors import ConfigError
from ..core.settings import number
from ..core.state_files import SavedState
from ..tasks.base import Samples, Task
from ..training.local import Job, Recipe
from . import create
from .base import Attack, Member, Model, Turn


class Wrapper(Attack):
    """Does what the attack inside it does; subclasses change one thing.

    Parameters
    ----------
    attack
        The attack inside: a name, as anywhere else, or an attack object.
    **settings
        The wrapper's own settings; the rest is the inner attack's.
    """

    def __init__(self, attack: str | Attack = "pgd_replacement", **settings: Any) -> None:
        names = {item.name for item in dataclasses.fields(self.Settings)}
        super().__init__(**{name: value for name, value in settings.items() if name in names})
        others = {name: value for name, value in settings.items() if name not in names}
        if not isinstance(attack, str | Attack):
            raise ConfigError(f"{self.name} cannot wrap attack={attack!r}: give an attack's name or an attack object")
        if others and not isinstance(attack, str):
            raise ConfigError(f"unknown setting {next(iter(others))!r}: an attack that is made has its settings")
        self.inner = create(attack, **others) if isinstance(attack, str) else attack
        if not self.inner.attacks:
            raise ConfigError(f"{self.name}({self.inner.name}) would attack nobody: wrap an attack")

    def enlist(self, task: Task, team: Sequence[int]) -> None:
        """As inside."""
        super().enlist(task, team)
        self.inner.enlist(task, team)

    def backdoor_test(self) -> Samples:
        """As inside."""
        return self.inner.backdoor_test()

    def training_data(self, client: int, clean: Samples, pdr: float, generator: torch.Generator) -> Samples:
        """As inside."""
        return self.inner.training_data(client, clean, pdr, generator)

    def observe(self, turn: Turn) -> None:
        """As inside."""
        self.inner.observe(turn)

    def attackers(self, turn: Turn) -> tuple[Member, ...]:
        """As inside."""
        return self.inner.attackers(turn)

    def recipe(self, honest: Recipe) -> Recipe:
        """As inside."""
        return self.inner.recipe(honest)

    def jobs(self, turn: Turn) -> Mapping[Hashable, Job]:
        """As inside."""
        return self.inner.jobs(turn)

    def submissions(self, turn: Turn, trained: Mapping[Hashable, Model]) -> Mapping[int, Model]:
        """As inside."""
        return self.inner.submissions(turn, trained)

    def state(self) -> SavedState:
        """As inside."""
        return self.inner.state()

    def restore(self, state: SavedState) -> None:
        """As inside."""
        self.inner.restore(state)


@dataclass(frozen=True)
class DynamicPDRSettings:
    """Settings of `dynamic_pdr`."""

    low: float = number(0.05, 0, 1)
    """The least share of backdoored samples."""
    high: float = number(0.20, 0, 1)
    """The largest."""


class DynamicPDR(Wrapper):
    """Each malicious client draws its own poisoned data rate, evenly between `low` and `high`, once and for all."""

    name = "dynamic_pdr"
    summary = "wrapper: each attacker draws its own share of backdoored samples"
    Settings = DynamicPDRSettings

    def __init__(self, attack: str | Attack = "pgd_replacement", **settings: Any) -> None:
        super().__init__(attack, **settings)
        if self.settings.low > self.settings.high:
            raise ConfigError(f"dynamic_pdr: low={self.settings.low} is above high={self.settings.high}")

    def training_data(self, client: int, clean: Samples, pdr: float, generator: torch.Generator) -> Samples:
        """The inner attack's data at the client's own rate; the run's is not used."""
        low, high = self.settings.low, self.settings.high
        own = low + (high - low) * float(torch.rand((), generator=generator))
        return self.inner.training_data(client, clean, own, generator)


@dataclass(frozen=True)
class ModelObfuscationSettings:
    """Settings of `model_obfuscation`."""

    noise: float = number(0.034, 0, 1e6)
    """Standard deviation of the noise (the paper, after FLAME: 0.034)."""


class ModelObfuscation(Wrapper):
    """Attackers add Gaussian noise to every parameter they send, each its own."""

    name = "model_obfuscation"
    summary = "wrapper: attackers add Gaussian noise to what they send"
    Settings = ModelObfuscationSettings

    def submissions(self, turn: Turn, trained: Mapping[Hashable, Model]) -> Mapping[int, Model]:
        """The inner attack's models with noise."""
        sent = self.inner.submissions(turn, trained)
        return {client: self._noisy(sent[client], turn.generator) for client in sorted(sent)}

    def _noisy(self, weights: Model, generator: torch.Generator) -> dict[str, torch.Tensor]:
        return {
            name: value + self.settings.noise * torch.randn(value.shape, generator=generator).to(value)
            if name in self.parameters
            else value
            for name, value in weights.items()
        }


@dataclass(frozen=True)
class RandomizedSettings:
    """Settings of `randomized`."""

    probability: float = number(0.5, 0, 1)
    """How likely a selected malicious client is to attack."""


class Randomized(Wrapper):
    """Each selected malicious client attacks with `probability`, and is honest otherwise."""

    name = "randomized"
    summary = "wrapper: attackers attack half of the time and are honest otherwise"
    Settings = RandomizedSettings

    def attackers(self, turn: Turn) -> tuple[Member, ...]:
        """Those whose coin says so, of whom the inner attack may leave some out."""
        coins = torch.rand(len(turn.members), generator=turn.generator)
        chosen = tuple(
            member
            for member, coin in zip(turn.members, coins.tolist(), strict=True)
            if coin < self.settings.probability
        )
        return self.inner.attackers(dataclasses.replace(turn, members=chosen)) if chosen else ()
