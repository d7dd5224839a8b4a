"""Attacks that are not in the paper, as plug-ins, to test how well a defence generalises.

    g2uardfl sweep --defense fedavg g2uardfl --attack \
        "benchmarks/held_out_attacks.py:Neurotoxin(black_box)" benchmarks/held_out_attacks.py:Patch

They were held out while the default profile was developed until commit 4bf69cc, and have influenced it since.
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
    """The share of the parameters that attackers do not change: those that the federation changes most."""


class Neurotoxin(Wrapper):
    """Attackers change only parameters that honest clients hardly change, so that the backdoor lasts.

    After Zhang et al. 2022. The original projects every step of the training; here the final update is projected.
    """

    name = "neurotoxin"
    summary = "wrapper: attackers do not change the parameters that the federation changes most"
    Settings = NeurotoxinSettings
    _seen: dict[str, Tensor] | None = None
    _busy: dict[str, Tensor] | None = None
    """The parameters that the federation has changed most since attackers were last selected."""

    def observe(self, turn: Turn) -> None:
        """Compare the global model with the one seen last."""
        super().observe(turn)
        now = {name: turn.global_weights[name].detach().clone() for name in sorted(self.parameters)}
        if self._seen is not None and self.settings.masked > 0:
            steps = {name: (now[name] - self._seen[name].to(now[name])).abs() for name in now}
            sizes = torch.cat([step.flatten() for step in steps.values()])
            smallest_masked = sizes.topk(max(1, round(self.settings.masked * len(sizes)))).values.min()
            self._busy = {name: step >= smallest_masked for name, step in steps.items()}
        self._seen = now

    def submissions(self, turn: Turn, trained: Mapping[Hashable, Model]) -> Mapping[int, Model]:
        """The inner attack's models, with the global model's values in the masked parameters."""
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
        """The global model seen last, the mask, and the state of the inner attack."""
        inner = super().state()
        arrays = {f"inner.{name}": array for name, array in inner.arrays.items()}
        for kind, tensors in (("seen", self._seen), ("busy", self._busy)):
            arrays |= {f"{kind}.{name}": tensor.cpu().numpy() for name, tensor in (tensors or {}).items()}
        return SavedState(inner.values, arrays)

    def restore(self, state: SavedState) -> None:
        """Continue with a saved state."""
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
    """The largest distance of a parameter from the honest mean, in standard deviations of honest models."""


class LittleIsEnough(TrainingBoth):
    """All attackers send the mean of their malicious models, clamped to the range of honest ones.

    After Baruch et al. 2019. The attackers estimate that range from their own honest training.
    """

    name = "little_is_enough"
    summary = "wrapper: attackers stay within the range of honest models"
    Settings = LittleIsEnoughSettings

    def disguised(self, honest: Mapping[int, Model], malicious: Mapping[int, Model]) -> Mapping[int, Model]:
        """The same model for all; a single attacker has nothing to compare with and sends its malicious model."""
        if len(malicious) < 2:
            return malicious
        hidden = {name: self._hidden(name, honest, malicious) for name in sorted(self.parameters)}
        return {client: {**model, **hidden} for client, model in malicious.items()}

    def _hidden(self, name: str, honest: Mapping[int, Model], malicious: Mapping[int, Model]) -> Tensor:
        values = torch.stack([model[name] for model in honest.values()])
        mean, margin = values.mean(dim=0), self.settings.deviations * values.std(dim=0)
        target = torch.stack([model[name] for model in malicious.values()]).mean(dim=0)
        return target.clamp(mean - margin, mean + margin)


@dataclass(frozen=True)
class PatchSettings:
    """Settings of `patch`."""

    size: int = number(3, 1, 1000)
    """Width and height of the square, in pixels."""
    target: int = number(0, 0, 10**9)
    """The label that attackers assign to images with the trigger."""


class Patch(TriggerAttack):
    """All attackers draw the same white square into the lower right corner (after Gu et al. 2017)."""

    name = "patch"
    summary = "a white square as trigger, the same for all attackers"
    Settings = PatchSettings

    def draw(self, pictures: Tensor, client: int | None) -> None:
        """Draw the square."""
        size = self.settings.size
        pictures[..., -size:, -size:] = self.pixels.white


@dataclass(frozen=True)
class LabelFlippingSettings:
    """Settings of `label_flipping`."""

    source: int = number(1, 0, 10**9)
    """The class whose samples get another label."""
    target: int = number(7, 0, 10**9)
    """That label."""


class LabelFlipping(Attack):
    """Attackers label one class as another; ASR is the share of test samples of that class predicted so."""

    name = "label_flipping"
    summary = "attackers label one class as another"
    Settings = LabelFlippingSettings

    def training_data(self, client: int, clean: Samples, pdr: float, generator: torch.Generator) -> Samples:
        """All own samples, those of the source class with the target label; `pdr` is ignored."""
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
    """The norm of the sent update, as a multiple of the honest one's."""


class SignFlipping(Attack):
    """Attackers train honestly and send the negative update. There is no backdoor; the effect shows in ACC."""

    name = "sign_flipping"
    summary = "the negative of an honest update (untargeted: the effect shows in ACC)"
    Settings = SignFlippingSettings

    def submissions(self, turn: Turn, trained: Mapping[Hashable, Model]) -> Mapping[int, Model]:
        """G - factor (w - G)."""
        factor = -self.settings.factor
        return {
            one.client: moved(turn.global_weights, trained[one.client], factor, self.parameters) for one in turn.members
        }
