"""Five attacks by attackers who know how the default profile detects them, as plug-ins for any run.

    g2uardfl sweep --attack "benchmarks/adaptive_attackers.py:TakingTurns(black_box)" --defense g2uardfl

All but `TwoGroups` wrap another attack.
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
    """The norm of the noise, as a multiple of the update's."""


class OrthogonalNoise(Wrapper):
    """Each attacker adds its own noise, orthogonal to its update, so that no two updates are similar."""

    name = "orthogonal_noise"
    summary = "wrapper: attackers add noise that is orthogonal to their updates"
    Settings = OrthogonalNoiseSettings

    def submissions(self, turn: Turn, trained: Mapping[Hashable, Model]) -> Mapping[int, Model]:
        """The inner attack's models plus noise."""
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
    """The weight of the malicious update; that of the honest one is 1 - `share`."""


class TrainingBoth(Wrapper):
    """Each attacker also trains honestly; subclasses combine both models."""

    def jobs(self, turn: Turn) -> Mapping[Hashable, Job]:
        """The inner attack's jobs, and one honest job for each attacker."""
        honest = {("honest", one.client): Job(one.client, one.clean, one.recipe, one.seed) for one in turn.members}
        return {**{("inner", key): job for key, job in self.inner.jobs(turn).items()}, **honest}

    def submissions(self, turn: Turn, trained: Mapping[Hashable, Model]) -> Mapping[int, Model]:
        """`disguised` applied to the attackers' honest models and the inner attack's submissions."""
        inner = {key: model for (kind, key), model in trained.items() if kind == "inner"}
        sent = self.inner.submissions(turn, inner)
        clients = sorted(sent)
        return self.disguised(
            {client: trained["honest", client] for client in clients}, {client: sent[client] for client in clients}
        )

    @abstractmethod
    def disguised(self, honest: Mapping[int, Model], malicious: Mapping[int, Model]) -> Mapping[int, Model]:
        """The model that each attacker sends."""


class MixedDirections(TrainingBoth):
    """Each attacker sends a weighted mean of its honest and its malicious model."""

    name = "mixed_directions"
    summary = "wrapper: attackers mix an honest update into the malicious one"
    Settings = MixedDirectionsSettings

    def disguised(self, honest: Mapping[int, Model], malicious: Mapping[int, Model]) -> Mapping[int, Model]:
        """Mix each attacker's two models."""
        return {client: self._mixed(honest[client], malicious[client]) for client in malicious}

    def _mixed(self, honest: Model, malicious: Model) -> Model:
        share = self.settings.share
        mixed = {name: honest[name].lerp(malicious[name], share) for name in sorted(self.parameters)}
        return {**malicious, **mixed}


class TakingTurns(Wrapper):
    """Only one attacker of each round attacks, so that no other update is similar to its own; the others are honest.

    It is the one that has attacked least often so far.
    """

    name = "taking_turns"
    summary = "wrapper: one attacker in each round, in turn"

    def enlist(self, task: Task, team: Sequence[int]) -> None:
        """Start all counts at 0."""
        super().enlist(task, team)
        self._attacked = dict.fromkeys(self.team, 0)

    def attackers(self, turn: Turn) -> tuple[Member, ...]:
        """One of the inner attack's attackers."""
        candidates = self.inner.attackers(turn)
        if not candidates:
            return ()
        chosen = min(candidates, key=lambda one: (self._attacked[one.client], one.client))
        self._attacked[chosen.client] += 1
        return (chosen,)

    def state(self) -> SavedState:
        """How often each client has attacked, and the state of the inner attack."""
        inner = super().state()
        return SavedState({"inner": inner.values, "attacked": list(self._attacked.items())}, inner.arrays)

    def restore(self, state: SavedState) -> None:
        """Continue with saved counts."""
        super().restore(SavedState(state.values["inner"], state.arrays))
        self._attacked = dict(state.values["attacked"])


@dataclass(frozen=True)
class SleepersSettings:
    """Settings of `sleepers`."""

    honest_rounds: int = number(50, 0, 10**9)
    """The number of rounds in which attackers are honest."""


class Sleepers(Wrapper):
    """Attackers first gain a good reputation."""

    name = "sleepers"
    summary = "wrapper: attackers are honest for the first 50 rounds"
    Settings = SleepersSettings

    def attackers(self, turn: Turn) -> tuple[Member, ...]:
        """Nobody in the first rounds."""
        return self.inner.attackers(turn) if turn.number > self.settings.honest_rounds else ()


class TwoGroups(Attack):
    """Half of the attackers plant one backdoor and half another; ASR is measured on the samples of both."""

    name = "two_groups"
    summary = "two groups of attackers plant two backdoors"

    def __init__(self, first: str = "black_box", second: str = "dba") -> None:
        super().__init__()
        self.groups = [create(first), create(second)]

    def enlist(self, task: Task, team: Sequence[int]) -> None:
        """Assign every second attacker to the second group."""
        super().enlist(task, team)
        for number_, group in enumerate(self.groups):
            group.enlist(task, self.team[number_::2])

    def backdoor_test(self) -> Samples:
        """The test samples of both backdoors."""
        return concatenate(*(group.backdoor_test() for group in self.groups))

    def training_data(self, client: int, clean: Samples, pdr: float, generator: torch.Generator) -> Samples:
        """The data of the client's group."""
        return self.groups[self.team.index(client) % 2].training_data(client, clean, pdr, generator)

    def jobs(self, turn: Turn) -> Mapping[Hashable, Job]:
        """The jobs of both groups."""
        return {(group, key): job for group, part in self._parts(turn) for key, job in group.jobs(part).items()}

    def submissions(self, turn: Turn, trained: Mapping[Hashable, Model]) -> Mapping[int, Model]:
        """The models of both groups."""
        sent: dict[int, Model] = {}
        for group, part in self._parts(turn):
            sent.update(group.submissions(part, {key: w for (owner, key), w in trained.items() if owner is group}))
        return sent

    def _parts(self, turn: Turn) -> Iterator[tuple[Attack, Turn]]:
        for group in self.groups:
            members = tuple(member for member in turn.members if member.client in group.team)
            if members:
                yield group, dataclasses.replace(turn, members=members)


@dataclass(frozen=True)
class SlowDripSettings:
    """Settings of `slow_drip`."""

    beta: float = number(0.25, 0, 100)
    """The norm of the malicious part, as a multiple of the honest update's."""


class SlowDrip(TrainingBoth):
    """Each attacker adds a little of the team's common malicious direction to an honest update."""

    name = "slow_drip"
    summary = "wrapper: honest updates plus a small common malicious part"
    Settings = SlowDripSettings

    def submissions(self, turn: Turn, trained: Mapping[Hashable, Model]) -> Mapping[int, Model]:
        """Add the mean malicious part of the round's attackers, scaled to `beta` times each honest update."""
        self._model = turn.global_weights
        return super().submissions(turn, trained)

    def disguised(self, honest: Mapping[int, Model], malicious: Mapping[int, Model]) -> Mapping[int, Model]:
        """Honest models plus the common direction."""
        names = sorted(self.parameters)
        parts = [_flat(malicious[client], names) - _flat(honest[client], names) for client in malicious]
        common = torch.stack(parts).mean(dim=0)
        common = common / common.norm().clamp(min=1e-30)
        return {client: self._dripped(honest[client], malicious[client], common, names) for client in malicious}

    def _dripped(self, honest: Model, malicious: Model, common: Tensor, names: Sequence[str]) -> Model:
        own = _flat(honest, names)
        norm = (own - _flat(self._model, names)).norm()
        pieces = (own + self.settings.beta * norm * common).split([honest[name].numel() for name in names])
        sent = {name: piece.view_as(honest[name]) for name, piece in zip(names, pieces, strict=True)}
        return {**malicious, **sent}


@dataclass(frozen=True)
class TinyFirstSettings:
    """Settings of `tiny_first`."""

    factor: float = number(0.001, 0, 1)
    """What the first updates are multiplied by."""
    rounds: int = number(1, 0, 10**9)
    """In how many rounds updates are tiny."""


class TinyFirst(Wrapper):
    """Attackers first send tiny updates, so that honest ones seem far too large in comparison."""

    name = "tiny_first"
    summary = "wrapper: attackers send tiny updates in the first rounds"
    Settings = TinyFirstSettings

    def submissions(self, turn: Turn, trained: Mapping[Hashable, Model]) -> Mapping[int, Model]:
        """The inner attack's models; in the first rounds moved almost back to the global model."""
        sent = self.inner.submissions(turn, trained)
        if turn.number > self.settings.rounds:
            return sent
        return {
            client: {
                **model,
                **{name: turn.global_weights[name].lerp(model[name], self.settings.factor) for name in self.parameters},
            }
            for client, model in sent.items()
        }
