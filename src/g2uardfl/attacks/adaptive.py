"""Adaptive attacks: attackers that know the defence and disguise another attack.

The G²uardFL paper describes the three in one sentence each ("Adaptive Attacks"); no original code exists. Each wraps
another attack, by default `pgd_replacement`, the paper's default; `randomized(black_box)` names another, and they wrap
each other too. Settings that a wrapper does not have are passed to the wrapped attack.
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

DEFAULT_ATTACK = "pgd_replacement"
"""The attack that a wrapper wraps by default: the default attack of the G²uardFL paper."""


class Wrapper(Attack):
    """Delegates everything to the wrapped attack; each subclass changes one thing.

    Parameters
    ----------
    attack
        The wrapped attack: a name, `package.module:ClassName` or an `Attack` object (default: "pgd_replacement").
    **settings
        The wrapper's own settings, and those of the inner attack if `attack` is a name.
    """

    def __init__(self, attack: str | Attack = DEFAULT_ATTACK, **settings: Any) -> None:
        names = {item.name for item in dataclasses.fields(self.Settings)}
        super().__init__(**{name: value for name, value in settings.items() if name in names})
        inner_settings = {name: value for name, value in settings.items() if name not in names}
        if not isinstance(attack, str | Attack):
            raise ConfigError(f"{self.name} cannot wrap attack={attack!r}: give an attack's name or an attack object")
        if inner_settings and not isinstance(attack, str):
            raise ConfigError(
                f"unknown setting {next(iter(inner_settings))!r}: pass the inner attack's settings only together with "
                "its name; an attack object is already configured"
            )
        self.inner = create(attack, **inner_settings) if isinstance(attack, str) else attack
        self._inner_name = attack if isinstance(attack, str) else attack.name
        if not self.inner.attacks:
            raise ConfigError(
                f"{self.name} cannot wrap {self.inner.name}, which does not attack: choose another attack"
            )

    def __repr__(self) -> str:
        own = "".join(f", {name}={value!r}" for name, value in dataclasses.asdict(self.settings).items())
        return f"{type(self).__name__}({self.inner!r}{own})"

    def enlist(self, task: Task, team: Sequence[int]) -> None:
        """Enlist the inner attack too."""
        super().enlist(task, team)
        self.inner.enlist(task, team)

    def configuration(self) -> dict[str, Any]:
        """The settings of both; where both have a setting, the wrapper's own."""
        return {**self.inner.configuration(), **super().configuration()}

    def spelled(self, name: str) -> str:
        """`wrapper(inner)`."""
        return f"{super().spelled(name.partition('(')[0].strip())}({self.inner.spelled(self._inner_name)})"

    def backdoor_test(self) -> Samples:
        """Delegate to the inner attack."""
        return self.inner.backdoor_test()

    def training_data(self, client: int, clean: Samples, pdr: float, generator: torch.Generator) -> Samples:
        """Delegate to the inner attack."""
        return self.inner.training_data(client, clean, pdr, generator)

    def observe(self, turn: Turn) -> None:
        """Let the inner attack observe."""
        self.inner.observe(turn)

    def attackers(self, turn: Turn) -> tuple[Member, ...]:
        """Delegate to the inner attack."""
        return self.inner.attackers(turn)

    def recipe(self, honest: Recipe) -> Recipe:
        """Delegate to the inner attack."""
        return self.inner.recipe(honest)

    def jobs(self, turn: Turn) -> Mapping[Hashable, Job]:
        """Delegate to the inner attack."""
        return self.inner.jobs(turn)

    def submissions(self, turn: Turn, trained: Mapping[Hashable, Model]) -> Mapping[int, Model]:
        """Delegate to the inner attack."""
        return self.inner.submissions(turn, trained)

    def state(self) -> SavedState:
        """Delegate to the inner attack."""
        return self.inner.state()

    def restore(self, state: SavedState) -> None:
        """Restore the inner attack."""
        self.inner.restore(state)


@dataclass(frozen=True)
class DynamicPDRSettings:
    """Settings of `DynamicPDR`; see its docstring."""

    low: float = number(0.05, 0, 1)
    high: float = number(0.20, 0, 1)


class DynamicPDR(Wrapper):
    """Each malicious client draws its own poisoned data rate once, uniformly between `low` and `high`.

    Parameters
    ----------
    attack
        The wrapped attack: a name, `package.module:ClassName` or an `Attack` object (default: "pgd_replacement").
    low
        The smallest share of backdoored samples (default: 0.05).
    high
        The largest share of backdoored samples (default: 0.2).
    **inner_settings
        The settings of the inner attack, if `attack` is a name.

    Notes
    -----
    The poisoned data rate of the run is ignored.

    References
    ----------
    Hao Yu et al., "G²uardFL: Safeguarding Federated Learning Against Backdoor Attacks through Attributed Client Graph
    Clustering".
    """

    name = "dynamic_pdr"
    summary = "wrapper: each attacker draws its own share of backdoored samples"
    Settings = DynamicPDRSettings

    def __init__(
        self,
        attack: str | Attack = DEFAULT_ATTACK,
        *,
        low: float = DynamicPDRSettings.low,
        high: float = DynamicPDRSettings.high,
        **inner_settings: Any,
    ) -> None:
        super().__init__(attack, low=low, high=high, **inner_settings)
        if self.settings.low > self.settings.high:
            raise ConfigError(f"dynamic_pdr: low={self.settings.low} is above high={self.settings.high}")

    def training_data(self, client: int, clean: Samples, pdr: float, generator: torch.Generator) -> Samples:
        """The inner attack's data at the client's own rate; the rate of the run is ignored."""
        low, high = self.settings.low, self.settings.high
        own = low + (high - low) * float(torch.rand((), generator=generator))
        return self.inner.training_data(client, clean, own, generator)


@dataclass(frozen=True)
class ModelObfuscationSettings:
    """Settings of `ModelObfuscation`; see its docstring."""

    noise: float = number(0.034, 0, 1e6)


class ModelObfuscation(Wrapper):
    """Each attacker adds its own Gaussian noise to every parameter it sends.

    Parameters
    ----------
    attack
        The wrapped attack: a name, `package.module:ClassName` or an `Attack` object (default: "pgd_replacement").
    noise
        The standard deviation of the noise; the G²uardFL paper takes 0.034 from FLAME (default: 0.034).
    **inner_settings
        The settings of the inner attack, if `attack` is a name.

    Notes
    -----
    The noise hides how similar the updates of attackers are, and costs accuracy.

    References
    ----------
    Hao Yu et al., "G²uardFL: Safeguarding Federated Learning Against Backdoor Attacks through Attributed Client Graph
    Clustering".
    """

    name = "model_obfuscation"
    summary = "wrapper: attackers add Gaussian noise to what they send"
    Settings = ModelObfuscationSettings

    def __init__(
        self,
        attack: str | Attack = DEFAULT_ATTACK,
        *,
        noise: float = ModelObfuscationSettings.noise,
        **inner_settings: Any,
    ) -> None:
        super().__init__(attack, noise=noise, **inner_settings)

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
    """Settings of `Randomized`; see its docstring."""

    probability: float = number(0.5, 0, 1)


class Randomized(Wrapper):
    """Each selected malicious client attacks with `probability` and is honest otherwise.

    Parameters
    ----------
    attack
        The wrapped attack: a name, `package.module:ClassName` or an `Attack` object (default: "pgd_replacement").
    probability
        The probability that a selected malicious client attacks (default: 0.5).
    **inner_settings
        The settings of the inner attack, if `attack` is a name.

    Notes
    -----
    Detection rates leave out a malicious client in rounds in which it does not attack.

    References
    ----------
    Hao Yu et al., "G²uardFL: Safeguarding Federated Learning Against Backdoor Attacks through Attributed Client Graph
    Clustering".
    """

    name = "randomized"
    summary = "wrapper: attackers attack half of the time and are honest otherwise"
    Settings = RandomizedSettings

    def __init__(
        self,
        attack: str | Attack = DEFAULT_ATTACK,
        *,
        probability: float = RandomizedSettings.probability,
        **inner_settings: Any,
    ) -> None:
        super().__init__(attack, probability=probability, **inner_settings)

    def attackers(self, turn: Turn) -> tuple[Member, ...]:
        """The members drawn in this round, of whom the inner attack may leave some out."""
        draws = torch.rand(len(turn.members), generator=turn.generator)
        chosen = tuple(
            member
            for member, draw in zip(turn.members, draws.tolist(), strict=True)
            if draw < self.settings.probability
        )
        return self.inner.attackers(dataclasses.replace(turn, members=chosen)) if chosen else ()
