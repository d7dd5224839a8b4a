"""Attackers who know how the default profile tells them apart: five plug-ins to try it, or any other defence, with.

    python benchmarks/defense_runs.py --attacks "adaptive_attackers:TakingTurns(black_box)" --defenses g2uardfl

All but the last wrap any other attack. From another folder, put this one on Python's path.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from g2uardfl.attacks import create
from g2uardfl.attacks.adaptive import Wrapper
from g2uardfl.attacks.base import Attack, Member, Model, Turn
from g2uardfl.core.settings import number
from g2uardfl.core.state_files import SavedState
from g2uardfl.tasks.base import Samples, Task, concatenate
from g2uardfl.training.local import Job


@dataclass(frozen=True)
class OrthogonalNoiseSettings:
    """Settings of `orthogonal_noise`."""

    factor: float = number(1.0, 0, 1000)
    """How long the noise is beside the update."""


class OrthogonalNoise(Wrapper):
    """Each attacker adds noise of its own at right angles to its update, so that no two look alike."""

    name = "orthogonal_noise"
    summary = "wrapper: attackers hide in noise at right angles to their updates"
    Settings = OrthogonalNoiseSettings

    def submissions(self, turn: Turn, trained: Mapping[Hashable, Model]) -> Mapping[int, Model]:
        """The inner attack's models with noise."""
        sent = self.inner.submissions(turn, trained)
        return {client: self._noisy(turn, sent[client]) for client in sorted(sent)}

    def _noisy(self, turn: Turn, model: Model) -> Model:
        names = sorted(self.parameters)
        update = _flat(model, names) - _flat(turn.global_weights, names)
        noise = torch.randn(len(update), generator=turn.generator).to(update)
        squared = update @ update
        if squared > 0:
            noise -= (noise @ update) / squared * update
        noise *= self.settings.factor * squared.sqrt() / noise.norm()
        pieces = noise.split([model[name].numel() for name in names])
        added = zip(names, pieces, strict=True)
        return {**model, **{name: model[name] + piece.view_as(model[name]) for name, piece in added}}


def _flat(model: Model, names: Sequence[str]) -> Tensor:
    return torch.cat([model[name].flatten() for name in names])


@dataclass(frozen=True)
class MixedDirectionsSettings:
    """Settings of `mixed_directions`."""

    share: float = number(0.5, 0, 1)
    """What the malicious update weighs; the honest one weighs the rest."""


class TrainingBoth(Wrapper):
    """Each attacker trains honestly as well; subclasses make of both what is sent."""

    def jobs(self, turn: Turn) -> Mapping[Hashable, Job]:
        """The inner attack's jobs, and an honest one for each attacker."""
        honest = {("honest", one.client): Job(one.client, one.clean, one.recipe, one.seed) for one in turn.members}
        return {**{("inner", key): job for key, job in self.inner.jobs(turn).items()}, **honest}

    def submissions(self, turn: Turn, trained: Mapping[Hashable, Model]) -> Mapping[int, Model]:
        """What `disguised` makes of the attackers' honest models and of what the inner attack sends."""
        inner = {key: model for (kind, key), model in trained.items() if kind == "inner"}
        sent = self.inner.submissions(turn, inner)
        clients = sorted(sent)
        return self.disguised(
            {client: trained["honest", client] for client in clients}, {client: sent[client] for client in clients}
        )

    @abstractmethod
    def disguised(self, honest: Mapping[int, Model], malicious: Mapping[int, Model]) -> Mapping[int, Model]:
        """What each attacker sends."""


class MixedDirections(TrainingBoth):
    """A mixture of both updates is sent."""

    name = "mixed_directions"
    summary = "wrapper: attackers mix an honest update into the malicious one"
    Settings = MixedDirectionsSettings

    def disguised(self, honest: Mapping[int, Model], malicious: Mapping[int, Model]) -> Mapping[int, Model]:
        """Each attacker mixes its own."""
        return {client: self._mixed(honest[client], malicious[client]) for client in malicious}

    def _mixed(self, honest: Model, malicious: Model) -> Model:
        share = self.settings.share
        mixed = {name: honest[name].lerp(malicious[name], share) for name in sorted(self.parameters)}
        return {**malicious, **mixed}


class TakingTurns(Wrapper):
    """Only one attacker of a round attacks, so that it has nobody to resemble; the others are honest.

    It is the one that has attacked least often.
    """

    name = "taking_turns"
    summary = "wrapper: one attacker a round, each in its turn"

    def enlist(self, task: Task, team: Sequence[int]) -> None:
        """Nobody has attacked yet."""
        super().enlist(task, team)
        self._attacked = dict.fromkeys(self.team, 0)

    def attackers(self, turn: Turn) -> tuple[Member, ...]:
        """One of those whom the inner attack would let attack."""
        willing = self.inner.attackers(turn)
        if not willing:
            return ()
        chosen = min(willing, key=lambda one: (self._attacked[one.client], one.client))
        self._attacked[chosen.client] += 1
        return (chosen,)

    def state(self) -> SavedState:
        """How often each has attacked, beside what the inner attack remembers."""
        inner = super().state()
        return SavedState({"inner": inner.values, "attacked": list(self._attacked.items())}, inner.arrays)

    def restore(self, state: SavedState) -> None:
        """Go on with whose turn it is."""
        super().restore(SavedState(state.values["inner"], state.arrays))
        self._attacked = dict(state.values["attacked"])


@dataclass(frozen=True)
class SleepersSettings:
    """Settings of `sleepers`."""

    honest_rounds: int = number(50, 0, 10**9)
    """For how many rounds they are honest."""


class Sleepers(Wrapper):
    """Attackers earn a good record first."""

    name = "sleepers"
    summary = "wrapper: attackers are honest for the first 50 rounds"
    Settings = SleepersSettings

    def attackers(self, turn: Turn) -> tuple[Member, ...]:
        """Nobody at first."""
        return self.inner.attackers(turn) if turn.number > self.settings.honest_rounds else ()


class TwoGroups(Attack):
    """Half of the attackers plant one backdoor and half another; ASR is measured on both together."""

    name = "two_groups"
    summary = "two backdoors at once, by two groups of attackers"

    def __init__(self, first: str = "black_box", second: str = "dba") -> None:
        super().__init__()
        self.groups = [create(first), create(second)]

    def enlist(self, task: Task, team: Sequence[int]) -> None:
        """Every other attacker goes to the second group."""
        super().enlist(task, team)
        for number_, group in enumerate(self.groups):
            group.enlist(task, self.team[number_::2])

    def backdoor_test(self) -> Samples:
        """What both are measured on."""
        return concatenate(*(group.backdoor_test() for group in self.groups))

    def training_data(self, client: int, clean: Samples, pdr: float, generator: torch.Generator) -> Samples:
        """As the client's group does."""
        return self.groups[self.team.index(client) % 2].training_data(client, clean, pdr, generator)

    def jobs(self, turn: Turn) -> Mapping[Hashable, Job]:
        """Those of both groups."""
        return {(group, key): job for group, part in self._parts(turn) for key, job in group.jobs(part).items()}

    def submissions(self, turn: Turn, trained: Mapping[Hashable, Model]) -> Mapping[int, Model]:
        """Those of both groups."""
        sent: dict[int, Model] = {}
        for group, part in self._parts(turn):
            sent.update(group.submissions(part, {key: w for (owner, key), w in trained.items() if owner is group}))
        return sent

    def _parts(self, turn: Turn) -> Iterator[tuple[Attack, Turn]]:
        for group in self.groups:
            members = tuple(member for member in turn.members if member.client in group.team)
            if members:
                yield group, dataclasses.replace(turn, members=members)
