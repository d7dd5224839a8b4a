"""The interface of attacks: what malicious clients train on, how they train, and what they send.

One attack object acts for all malicious clients (its team). It sees their data, the global models they receive and what
they trained. About the other clients it only knows the total number of samples that all clients of a round report, as
in Wang et al. (2020).

A round calls the methods of `Attack` from top to bottom. The simulator does the training: an attack returns jobs, so
that malicious clients train like honest ones, one by one on a CPU or in one batched model on a GPU.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from ..core.registry import absolute
from ..core.settings import NoSettings, build
from ..core.state_files import SavedState
from ..tasks.base import Samples, Task, concatenate
from ..training.local import Job, Recipe

Model: TypeAlias = Mapping[str, Tensor]
"""A model's weights by name."""


@dataclass(frozen=True)
class Member:
    """A malicious client that the server selected this round."""

    client: int
    clean: Samples
    """Its own data."""
    poisoned: Samples
    """The result of the attack's `training_data`."""
    recipe: Recipe
    """How an honest client trains this round."""
    seed: int
    """Determines its batch order, augmentation and dropout this round."""


@dataclass(frozen=True)
class Turn:
    """One round as the attacker sees it."""

    number: int
    global_weights: Model
    members: tuple[Member, ...]
    num_examples: int
    """The number of samples that all clients of the round report together."""
    generator: torch.Generator
    """For the attack's own random choices in this round (on the CPU)."""

    @property
    def replacement_factor(self) -> float:
        """The factor by which the members scale their updates to replace the average weighted by samples."""
        return self.num_examples / max(1, sum(len(member.clean) for member in self.members))


class Attack(ABC):
    """An attack; without overridden methods its clients behave like honest ones.

    A third party's attack subclasses this in its own module and is used as `--attack package.module:ClassName`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for `g2uardfl list attacks`."""
    attacks: ClassVar[bool] = True
    """Whether malicious clients differ from honest ones at all."""
    Settings: ClassVar[type] = NoSettings
    """A frozen dataclass of the attack's settings, with the fields of `settings.py`."""
    usual: ClassVar[Mapping[str, float]] = {}
    """The values of settings that are None, unless the task has its own (`Task.attack_defaults`)."""
    task: Task
    team: tuple[int, ...]
    """All malicious clients in ascending order."""

    def __init__(self, **settings: Any) -> None:
        self.settings: Any = build(self.Settings, settings, type(self).__name__)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in asdict(self.settings).items())
        return f"{type(self).__name__}({shown})"

    def enlist(self, task: Task, team: Sequence[int]) -> None:
        """Called once before the first round; an attack that does not support the task raises `ConfigError` here."""
        self.task, self.team = task, tuple(sorted(team))
        values = {**self.usual, **task.attack_defaults.get(self.name, {})}
        missing = {name: value for name, value in values.items() if getattr(self.settings, name) is None}
        if missing:
            self.settings = replace(self.settings, **missing)

    def configuration(self) -> dict[str, Any]:
        """All settings by name, as resolved for the task; called after `enlist`."""
        return asdict(self.settings)

    def spelled(self, name: str) -> str:
        """`name`, by which the attack was made, with the names of the attacks that it wraps."""
        return absolute(name)

    @cached_property
    def parameters(self) -> frozenset[str]:
        """The names of the task's trainable parameters."""
        return parameter_names(self.task)

    def backdoor_test(self) -> Samples:
        """The samples on which ASR is measured: inputs with the backdoor, and the attacker's target labels."""
        return self.task.backdoor_test

    def training_data(self, client: int, clean: Samples, pdr: float, generator: torch.Generator) -> Samples:
        """The training samples of a malicious client, from its own data and the poisoned data rate.

        Called once per client.
        """
        return clean

    def observe(self, turn: Turn) -> None:  # noqa: B027 - most attacks have no memory
        """Called first in every round in which the server selected a malicious client."""

    def attackers(self, turn: Turn) -> tuple[Member, ...]:
        """The members that attack in this round; the others train and report honestly."""
        return turn.members

    def recipe(self, honest: Recipe) -> Recipe:
        """How an attacker trains."""
        return honest

    def jobs(self, turn: Turn) -> Mapping[Hashable, Job]:
        """The training jobs of the attackers (`turn.members`), under any keys; by default one per attacker."""
        return {
            member.client: Job(member.client, member.poisoned, self.recipe(member.recipe), member.seed)
            for member in turn.members
        }

    def submissions(self, turn: Turn, trained: Mapping[Hashable, Model]) -> Mapping[int, Model]:
        """What each attacker sends, given the trained weights of every job by its key."""
        return {member.client: trained[member.client] for member in turn.members}

    def state(self) -> SavedState:
        """The attack's state between rounds; empty for a stateless attack."""
        return SavedState()

    def restore(self, state: SavedState) -> None:  # noqa: B027 - an attack without memory has nothing to restore
        """Restore what `state` returned; `enlist` has been called before."""


def poisoned_count(total: int, pdr: float) -> int:
    """The number of backdoored samples among `total`; at least one of each kind if 0 < pdr < 1 and total >= 2.

    >>> poisoned_count(10, 0.3), poisoned_count(10, 0.01), poisoned_count(10, 0.0)
    (3, 1, 0)
    """
    count = round(pdr * total)
    return min(max(count, 1), total - 1) if 0 < pdr < 1 and total >= 2 else count


def mix_backdoor(task: Task, clean: Samples, pdr: float, generator: torch.Generator) -> Samples:
    """As many samples as in `clean`; the share `pdr` is from the task's backdoor set (PDR = |D^A| / |D|).

    Backdoored samples are drawn without repetition as long as the backdoor set is large enough; the others are a
    random part of the client's own samples.
    """
    total = len(clean)
    poisoned = poisoned_count(total, pdr)
    pool = len(task.backdoor_train)
    passes = -(-poisoned // pool)
    draws = torch.cat([torch.randperm(pool, generator=generator) for _ in range(max(passes, 1))])[:poisoned]
    kept = torch.randperm(total, generator=generator)[: total - poisoned]
    return concatenate(clean.take(kept), task.backdoor_train.take(draws))


def mix_trigger(
    clean: Samples, pdr: float, generator: torch.Generator, poison: Callable[[Samples], Samples]
) -> Samples:
    """The client's samples, with `poison` applied to a random share `pdr` of them."""
    order = torch.randperm(len(clean), generator=generator)
    poisoned = poisoned_count(len(clean), pdr)
    return concatenate(clean.take(order[poisoned:]), poison(clean.take(order[:poisoned])))


def moved(global_weights: Model, trained: Model, factor: float, parameters: frozenset[str]) -> dict[str, Tensor]:
    """G + factor (w - G) for the named parameters; everything else (running statistics) as trained."""
    return {
        name: global_weights[name] + factor * (value - global_weights[name]) if name in parameters else value
        for name, value in trained.items()
    }


def parameter_names(task: Task) -> frozenset[str]:
    """The names of the trainable parameters of the task's model, without running statistics and counters."""
    return frozenset(name for name, _ in task.build_model().named_parameters(remove_duplicate=False))
