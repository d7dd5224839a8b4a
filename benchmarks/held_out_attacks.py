"""Attacks beside the paper's, as plug-ins, to see whether a defence holds elsewhere.

    python benchmarks/defense_runs.py --attacks "held_out_attacks:Neurotoxin(black_box)" held_out_attacks:Patch \
        --defenses fedavg g2uardfl

The default profile was made without them until commit 4bf69cc; what they then showed has gone into it, so that they are
no longer held out. From another folder, put this one on Python's path.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptive_attackers import TrainingBoth
from g2uardfl.attacks.adaptive import Wrapper
from g2uardfl.attacks.base import Attack, Model, Turn, moved
from g2uardfl.attacks.trigger import TriggerAttack
from g2uardfl.core.settings import number
from g2uardfl.core.state_files import SavedState
from g2uardfl.tasks.base import Samples


@dataclass(frozen=True)
class NeurotoxinSettings:
    """Settings of `neurotoxin`."""

    masked: float = number(0.05, 0, 1)
    """Which share of the parameters attackers leave alone: those that the federation moves most."""


class Neurotoxin(Wrapper):
    """Attackers change only what honest clients hardly do, so that the backdoor lasts (after Zhang et al. 2022).

    The original projects every step of the training; here the update that is sent is projected.
    """

    name = "neurotoxin"
    summary = "wrapper: attackers leave alone what the federation moves most"
    Settings = NeurotoxinSettings
    _seen: dict[str, Tensor] | None = None
    _busy: dict[str, Tensor] | None = None
    """For each parameter, whether the federation moved it more than others since attackers were last selected."""

    def observe(self, turn: Turn) -> None:
        """Compare the global model with the one seen before."""
        super().observe(turn)
        now = {name: turn.global_weights[name].detach().clone() for name in sorted(self.parameters)}
        if self._seen is not None and self.settings.masked > 0:
            steps = {name: (now[name] - self._seen[name].to(now[name])).abs() for name in now}
            every = torch.cat([step.flatten() for step in steps.values()])
            most = every.topk(max(1, round(self.settings.masked * len(every)))).values.min()
            self._busy = {name: step >= most for name, step in steps.items()}
        self._seen = now

    def submissions(self, turn: Turn, trained: Mapping[Hashable, Model]) -> Mapping[int, Model]:
        """The inner attack's models, but as the global one where that is busy."""
        sent = self.inner.submissions(turn, trained)
        if self._busy is None:
            return sent
        return {client: {**model, **self._kept(turn, model, self._busy)} for client, model in sent.items()}

    def _kept(self, turn: Turn, model: Model, busy: Mapping[str, Tensor]) -> Model:
        return {
            name: torch.where(mask.to(model[name].device), turn.global_weights[name], model[name])
            for name, mask in busy.items()
        }

    def state(self) -> SavedState:
        """What was seen last, beside what the inner attack remembers."""
        inner = super().state()
        arrays = {f"inner.{name}": array for name, array in inner.arrays.items()}
        for kind, tensors in (("seen", self._seen), ("busy", self._busy)):
            arrays |= {f"{kind}.{name}": tensor.cpu().numpy() for name, tensor in (tensors or {}).items()}
        return SavedState(inner.values, arrays)

    def restore(self, state: SavedState) -> None:
        """Go on with it."""
        parts: dict[str, dict[str, Tensor]] = {"inner": {}, "seen": {}, "busy": {}}
        for name, array in state.arrays.items():
            kind, _, rest = name.partition(".")
            parts[kind][rest] = torch.as_tensor(array)
        super().restore(SavedState(state.values, {name: array.numpy() for name, array in parts["inner"].items()}))
        self._seen, self._busy = parts["seen"] or None, parts["busy"] or None


@dataclass(frozen=True)
class LittleIsEnoughSettings:
    """Settings of `little_is_enough`."""

    deviations: float = number(1.5, 0, 1000)
    """How far from the mean of honest updates a parameter may lie."""


class LittleIsEnough(TrainingBoth):
    """All send the mean of their malicious updates, kept where honest ones might lie (after Baruch et al. 2019).

    What honest clients send they guess from training honestly themselves.
    """

    name = "little_is_enough"
    summary = "wrapper: attackers stay within what honest clients differ by"
    Settings = LittleIsEnoughSettings

    def disguised(self, honest: Mapping[int, Model], malicious: Mapping[int, Model]) -> Mapping[int, Model]:
        """One model for all; an attacker that is alone has nothing to compare with and sends what it trained."""
        if len(malicious) < 2:
            return malicious
        hidden = {name: self._hidden(name, honest, malicious) for name in sorted(self.parameters)}
        return {client: {**model, **hidden} for client, model in malicious.items()}

    def _hidden(self, name: str, honest: Mapping[int, Model], malicious: Mapping[int, Model]) -> Tensor:
        around = torch.stack([model[name] for model in honest.values()])
        mean, room = around.mean(dim=0), self.settings.deviations * around.std(dim=0)
        wanted = torch.stack([model[name] for model in malicious.values()]).mean(dim=0)
        return wanted.clamp(mean - room, mean + room)


@dataclass(frozen=True)
class PatchSettings:
    """Settings of `patch`."""

    size: int = number(3, 1, 1000)
    """How wide and high the square is, in pixels."""
    target: int = number(0, 0, 10**9)
    """The label that triggered pictures are to get."""


class Patch(TriggerAttack):
    """All attackers draw the same white square in the lower right corner (after Gu et al. 2017)."""

    name = "patch"
    summary = "a white square as trigger, the same for all attackers"
    Settings = PatchSettings

    def draw(self, pictures: Tensor, client: int | None) -> None:
        """The square."""
        size = self.settings.size
        pictures[..., -size:, -size:] = self.pixels.white


@dataclass(frozen=True)
class LabelFlippingSettings:
    """Settings of `label_flipping`."""

    source: int = number(1, 0, 10**9)
    target: int = number(7, 0, 10**9)


class LabelFlipping(Attack):
    """Attackers call one class by another's name; ASR is how often the model does so with test samples."""

    name = "label_flipping"
    summary = "one class is learnt as another"
    Settings = LabelFlippingSettings

    def training_data(self, client: int, clean: Samples, pdr: float, generator: torch.Generator) -> Samples:
        """Own samples, all of the source class with the target's label; the share is the data's own."""
        wrong = torch.full_like(clean.y, self.settings.target)
        return Samples(clean.x, torch.where(clean.y == self.settings.source, wrong, clean.y))

    def backdoor_test(self) -> Samples:
        """Test samples of the source class with the target's label."""
        test = self.task.test
        chosen = test.take(torch.nonzero(test.y == self.settings.source).flatten())
        return Samples(chosen.x, torch.full_like(chosen.y, self.settings.target))


@dataclass(frozen=True)
class SignFlippingSettings:
    """Settings of `sign_flipping`."""

    factor: float = number(1.0, 0, 1000)
    """How far attackers go the other way, in lengths of what they trained."""


class SignFlipping(Attack):
    """Attackers train honestly and send the opposite. It plants nothing: look at ACC."""

    name = "sign_flipping"
    summary = "the opposite of an honest update (untargeted: look at ACC)"
    Settings = SignFlippingSettings

    def submissions(self, turn: Turn, trained: Mapping[Hashable, Model]) -> Mapping[int, Model]:
        """G - factor (w - G)."""
        factor = -self.settings.factor
        return {
            one.client: moved(turn.global_weights, trained[one.client], factor, self.parameters) for one in turn.members
        }
