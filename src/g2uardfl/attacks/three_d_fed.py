"""3DFed (Li et al. 2023): a covert backdoor that learns from round to round how the server treats it.

One attacker trains the backdoor for all. Each sends it with a noise mask (the masks of a group sum to 0) and with an
indicator, one weight that hardly matters, blown up by κ; the next global model tells from it whether the update was
accepted, clipped or refused. Where everything was refused, some attackers send decoys instead, models that are far off
in one weight, to draw the defence's attention. How strong the masks are is tuned by the same feedback.

The trigger is a pattern of 5 x 3 pixels; ASR is measured on test pictures that are not of the target class.

Deliberate differences from the original code, which lets every client take part in every round:

- Only selected attackers act. Feedback is read when an attacker is selected in the very next round, and skipped
  otherwise: later global models mix in what others sent.
- Decoys are sent by attackers instead of the backdoor. The original overwrites the files of honest participants.
- A decoy is the honestly trained reference with one little-used weight of the output layer moved by `decoy_gap`; the
  original trains until the gap is there.
- An indicator is never smaller than `indicator_floor`; the original lifts only those that are exactly 0.
- Masks are centred once more at the end, so that they cancel exactly; attackers form groups of `group_size`, and a
  lone attacker wears no mask.
- All groups mask the same classes, and no biases; the masks' multiplier starts at 0. α is drawn between the smallest
  and the largest of the accepted groups'. A server found to add noise leaves the number of decoys as it is. Attackers
  who add noise themselves (`model_obfuscation`) drown their own indicators and take it for the server's.
- The loss is 0.6 of the mean loss over own and triggered samples (PDR of them) and 0.4 ‖w - G‖, for `epoch_factor`
  times the honest epochs.
- Running statistics are sent as trained. No layer is known by name: indicators sit in the last convolution, masks in
  the last linear layer.
- Settings are those of the original for MNIST. For CIFAR-10 it uses groups of 5, 5 masked classes,
  mask_deviation 0.01, threshold 1e-5 and indicator_floor 1e-3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..core.errors import ConfigError
from ..core.settings import number
from ..core.state_files import SavedState
from ..tasks.base import Samples, Task
from ..training.local import Job, Recipe, joint_norm
from .base import Member, Model, Turn
from .trigger import TriggerAttack

PATTERN = ("#.#", " # ", "  .", " # ", "#.#")
"""The trigger: # is white, . is black, and blanks leave the picture as it is."""
PATTERN_ROW, PATTERN_COLUMN = 3, 23

MASK_STEPS, MASK_RATE = 30, 0.1
CANDIDATES = 10
"""How many times more candidates than indicators are looked at."""
HESSIAN_SAMPLES = 64
"""How many samples at each end of the mixed data the curvature is measured on."""


@dataclass(frozen=True)
class ThreeDFedSettings:
    """Settings of `three_d_fed`."""

    kappa: float = number(1e5, 1, 1e12)
    """κ, by which an indicator is blown up."""
    target: int = number(8, 0, 10**9)
    """The label that triggered pictures are to get."""
    distance_weight: float = number(0.4, 0, 1)
    """The weight of ‖w - G‖ in the loss."""
    epoch_factor: int = number(1, 1, 1000)
    """How many times as many epochs as honest clients."""
    max_scale: float = number(5.0, 1, 1e6)
    """The backdoor's update is scaled up to the honest reference's length, by at most this."""
    threshold: float = number(1e-4, 0, 1)
    """Feedback up to this means refused."""
    clipped_below: float = number(0.8, 0, 1)
    """Feedback up to this share of the largest means clipped."""
    indicator_floor: float = number(1e-2, 0, 1e3)
    """The least size of an indicator, so that it stands out from what training does to a weight."""
    group_size: int = number(2, 2, 1000)
    """How many attackers share masks that cancel."""
    masked_classes: int = number(8, 0, 10**9)
    """In how many classes' rows of the output layer the masks are."""
    mask_deviation: float = number(0.05, 0, 1e3)
    """Standard deviation of a mask before it is optimised."""
    energy_weight: float = number(0.1, 0, 1e6)
    """How much a mask wants every masked class to look trained."""
    norm_weight: float = number(0.08, 0, 1e6)
    """How much a mask wants to be small."""
    sum_weight: float = number(0.1, 0, 1e6)
    """How much the masks of a group want to cancel."""
    decoy_gap: float = number(10.0, 0, 1e6)
    """How far off a decoy's weight is."""


@dataclass(frozen=True)
class _Indicators:
    """What was planted in a round, one entry for each attacker."""

    round: int
    places: Tensor
    """Positions in the flattened indicator layer."""
    before: Tensor
    """The global model's weights there."""
    planted: Tensor
    """By how much the attackers' weights differed from them."""
    group: Tensor
    """Each attacker's group; -1 for a decoy."""
    alphas: Tensor
    """Each group's α."""

    def feedback(self, layer: Tensor) -> Tensor:
        """The share of each planted change that arrived in the next global model."""
        return (layer.detach().cpu().double().flatten()[self.places] - self.before) / self.planted


class ThreeDFed(TriggerAttack):
    """One backdoor for all attackers, with masks that cancel, indicators that report back, and decoys."""

    name = "three_d_fed"
    summary = "one backdoor for all, noise masks, indicators that report back, decoys (image tasks only)"
    Settings = ThreeDFedSettings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.decoys = 0
        """How many attackers will be decoys."""
        self.alpha_range = (0.0, 1.0)
        """Where the groups' α, the weight of the masks' energy, are drawn from."""
        self.server_adds_noise = False
        self._planted: _Indicators | None = None

    def enlist(self, task: Task, team: Sequence[int]) -> None:
        """Find the layers to work in; a model without convolution or linear output is refused."""
        super().enlist(task, team)
        self._model = task.build_model().eval()
        modules = dict(self._model.named_modules())
        convolutions = [name for name, module in modules.items() if isinstance(module, nn.Conv2d)]
        outputs = [
            name
            for name, module in modules.items()
            if isinstance(module, nn.Linear) and module.out_features == task.num_classes
        ]
        if not convolutions or not outputs:
            raise ConfigError(f"attack {self.name} needs a convolution and a linear output layer: choose another model")
        self._indicator_layer = f"{convolutions[-1]}.weight"
        self._output_weight, self._output_bias = f"{outputs[-1]}.weight", f"{outputs[-1]}.bias"
        self._parameters = [name for name, _ in self._model.named_parameters()]

    def draw(self, pictures: Tensor, client: int | None) -> None:
        """The same pattern for everybody."""
        top = min(PATTERN_ROW, pictures.shape[-2] - len(PATTERN))
        left = min(PATTERN_COLUMN, pictures.shape[-1] - len(PATTERN[0]))
        for row, line in enumerate(PATTERN):
            for column, mark in enumerate(line):
                if mark != " ":
                    pictures[..., top + row, left + column] = self.pixels.white if mark == "#" else 0

    def observe(self, turn: Turn) -> None:
        """Read the indicators of the last round, if an attacker was there to see what became of them."""
        planted, self._planted = self._planted, None
        if planted is not None and turn.number == planted.round + 1:
            self._learn(planted, planted.feedback(turn.global_weights[self._indicator_layer]))

    def _learn(self, planted: _Indicators, feedback: Tensor) -> None:
        """Tune masks and decoys by what came back."""
        if self.server_adds_noise or bool(((feedback > 1) | (feedback < -self.settings.threshold)).any()):
            self.server_adds_noise = True
            return
        accepted = feedback > max(self.settings.threshold, self.settings.clipped_below * float(feedback.max()))
        decoy = planted.group < 0
        if bool((feedback <= self.settings.threshold).all()):
            self.decoys += 1
        self.decoys = max(0, self.decoys - int((accepted & decoy).sum()))
        groups = range(len(planted.alphas))
        good = [group for group in groups if accepted[planted.group == group].double().mean() >= 0.8]
        alphas = sorted(float(planted.alphas[group]) for group in good)
        if not alphas:
            self.alpha_range = (0.0, 1.0)
        elif len(alphas) == len(groups):
            self.alpha_range = (alphas[0], alphas[-1])
        else:
            self.alpha_range = (alphas[0], max(alphas[0], min(alphas[0] + 0.1, 0.99)))

    def recipe(self, honest: Recipe) -> Recipe:
        """How the backdoor is trained."""
        return dataclasses.replace(
            honest.longer(self.settings.epoch_factor),
            loss_weight=1 - self.settings.distance_weight,
            distance_weight=self.settings.distance_weight,
        )

    def jobs(self, turn: Turn) -> Mapping[Hashable, Job]:
        """The first attacker trains the backdoor, and an honest reference on its own data."""
        lead = turn.members[0]
        return {
            "backdoor": Job(lead.client, lead.poisoned, self.recipe(lead.recipe), lead.seed),
            "reference": Job(lead.client, lead.clean, lead.recipe, lead.seed),
        }

    def submissions(self, turn: Turn, trained: Mapping[Hashable, Model]) -> Mapping[int, Model]:
        """The backdoor behind masks, and decoys, all with their indicators."""
        backdoor, reference = (self._update(turn, trained[key]) for key in ("backdoor", "reference"))
        honest, own = (float(joint_norm(update.values())) for update in (reference, backdoor))
        stretch = min(max(honest / max(own, 1e-12), 1.0), self.settings.max_scale)
        backdoor = {name: stretch * value for name, value in backdoor.items()}
        decoys = min(self.decoys, len(turn.members) - 1)
        covert = len(turn.members) - decoys
        group = _groups(covert, self.settings.group_size)
        alphas = self._draw_alphas(int(group.max()) + 1, turn.generator)
        updates = self._masked(backdoor, group, alphas, turn.generator)
        updates += [self._decoy(reference, backdoor, turn.generator) for _ in range(decoys)]
        places = self._places(turn.members[0], turn.global_weights, backdoor, reference, len(updates))
        for update, place in zip(updates, places.tolist(), strict=True):
            self._plant(update, place)
        group = torch.cat([group, torch.full((decoys,), -1)])
        self._remember(turn, places, updates, group, alphas)
        statistics = [trained["backdoor"]] * covert + [trained["reference"]] * decoys
        return {
            member.client: {
                name: turn.global_weights[name] + update[name] if name in update else value
                for name, value in behind.items()
            }
            for member, update, behind in zip(turn.members, updates, statistics, strict=True)
        }

    def _update(self, turn: Turn, trained: Model) -> dict[str, Tensor]:
        return {name: trained[name] - turn.global_weights[name] for name in self._parameters}

    def _draw_alphas(self, count: int, generator: torch.Generator) -> Tensor:
        low, high = self.alpha_range
        drawn = low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)
        return torch.full_like(drawn, 0.1) if self.server_adds_noise else drawn

    def _masked(
        self, backdoor: dict[str, Tensor], group: Tensor, alphas: Tensor, generator: torch.Generator
    ) -> list[dict[str, Tensor]]:
        """The backdoor's update once for each attacker, under the masks of its group."""
        weight = backdoor[self._output_weight]
        others = [label for label in range(len(weight)) if label != self.settings.target]
        chosen = torch.tensor(others)[torch.randperm(len(others), generator=generator)[: self.settings.masked_classes]]
        chosen = chosen.to(weight.device)
        bias = backdoor[self._output_bias][chosen] if self._output_bias in backdoor else weight.new_zeros(len(chosen))
        updates = []
        for index, alpha in enumerate(alphas.tolist()):
            size = int((group == index).sum())
            masks = self._optimised_masks(weight[chosen], bias, size, alpha, generator)
            for mask in masks:
                under_mask = weight.clone()
                under_mask[chosen] += mask
                updates.append({name: value.clone() for name, value in backdoor.items()})
                updates[-1][self._output_weight] = under_mask
        return updates

    def _optimised_masks(
        self, weight: Tensor, bias: Tensor, size: int, alpha: float, generator: torch.Generator
    ) -> Tensor:
        """Masks of `size` attackers for some rows of the output layer, which sum to 0.

        They make the energy |Δb| + Σ|ΔW| of every masked class large, so that the target's does not stand out.
        """
        settings = self.settings
        if size < 2 or not len(weight):
            return weight.new_zeros(size, *weight.shape)
        first = settings.mask_deviation * torch.randn(size, *weight.shape, generator=generator).to(weight)
        masks = (first - first.mean(dim=0)).requires_grad_()
        multiplier = 0.0
        for _ in range(MASK_STEPS):
            energy = bias.abs() + (weight + masks).abs().sum(dim=-1)
            length = torch.linalg.vector_norm(masks.flatten(1), dim=1).sum()
            remainder = torch.linalg.vector_norm(masks.sum(dim=0))
            loss = alpha * settings.energy_weight * (1 / energy.clamp(min=1e-12)).sum()
            loss = loss + (1 - alpha) * settings.norm_weight * length + multiplier * settings.sum_weight * remainder
            (gradient,) = torch.autograd.grad(loss / (1 + multiplier), masks)
            with torch.no_grad():
                masks -= MASK_RATE * gradient
            multiplier += 0.1 * float(remainder.detach())
        found: Tensor = masks.detach()
        return found - found.mean(dim=0)

    def _decoy(
        self, reference: dict[str, Tensor], backdoor: dict[str, Tensor], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """The honest reference, far off in one of the output weights that training hardly touched."""
        decoy = {name: value.clone() for name, value in reference.items()}
        gaps = (backdoor[self._output_weight] - reference[self._output_weight]).abs().flatten()
        little_used = gaps.argsort()[: max(1, len(gaps) // 100)]
        place = little_used[torch.randint(len(little_used), (1,), generator=generator).to(little_used.device)]
        decoy[self._output_weight].view(-1)[place] += self.settings.decoy_gap
        return decoy

    def _places(self, lead: Member, global_weights: Model, backdoor: Model, reference: Model, count: int) -> Tensor:
        """Where the indicators go: weights that training hardly moved and on which the loss hardly depends."""
        moved = (backdoor[self._indicator_layer].abs() + reference[self._indicator_layer].abs()).flatten()
        candidates = moved.argsort(stable=True)[: CANDIDATES * count]
        curvature = self._curvature(lead.poisoned, global_weights).flatten().abs()[candidates]
        return candidates[curvature.argsort(stable=True)[:count]].cpu()

    def _curvature(self, samples: Samples, global_weights: Model) -> Tensor:
        """The row sums of the loss's Hessian in the indicator layer, on some own and some triggered samples."""
        layer = global_weights[self._indicator_layer].detach().clone().requires_grad_()
        ends = [slice(0, HESSIAN_SAMPLES), slice(-HESSIAN_SAMPLES, None)]
        x = torch.cat([samples.x[end] for end in ends])
        y = torch.cat([samples.y[end] for end in ends])
        weights = {**global_weights, self._indicator_layer: layer}
        outputs = functional_call(self._model, weights, (self.task.prepare(x),))
        (gradient,) = torch.autograd.grad(self.task.loss(outputs, y), layer, create_graph=True)
        (row_sums,) = torch.autograd.grad(gradient.sum(), layer)
        return row_sums

    def _plant(self, update: dict[str, Tensor], place: int) -> None:
        """Blow up one weight's change."""
        change = update[self._indicator_layer].view(-1)
        grown = self.settings.kappa * change[place]
        least = grown.new_tensor(self.settings.indicator_floor)
        change[place] = torch.copysign(torch.maximum(grown.abs(), least), grown)

    def _remember(
        self, turn: Turn, places: Tensor, updates: list[dict[str, Tensor]], group: Tensor, alphas: Tensor
    ) -> None:
        layer = turn.global_weights[self._indicator_layer].cpu().flatten()
        planted = torch.stack(
            [update[self._indicator_layer].view(-1)[place].cpu() for update, place in zip(updates, places, strict=True)]
        )
        # What arrives is the change as it survives the rounding of the weight that is sent.
        sent = (layer[places] + planted).double() - layer[places].double()
        self._planted = _Indicators(turn.number, places, layer[places].double(), sent, group, alphas)

    def state(self) -> SavedState:
        """Feedback so far and the indicators that are out."""
        values: dict[str, Any] = {
            "decoys": self.decoys,
            "alpha_range": list(self.alpha_range),
            "server_adds_noise": self.server_adds_noise,
            "planted_in": None,
        }
        if self._planted is None:
            return SavedState(values)
        values["planted_in"] = self._planted.round
        names = ("places", "before", "planted", "group", "alphas")
        return SavedState(values, {name: getattr(self._planted, name).numpy() for name in names})

    def restore(self, state: SavedState) -> None:
        """Go on with the same feedback and indicators."""
        values = state.values
        self.decoys, self.server_adds_noise = int(values["decoys"]), bool(values["server_adds_noise"])
        self.alpha_range = (float(values["alpha_range"][0]), float(values["alpha_range"][1]))
        self._planted = None
        if values["planted_in"] is not None:
            arrays = {name: torch.from_numpy(np.array(value)) for name, value in state.arrays.items()}
            self._planted = _Indicators(int(values["planted_in"]), **arrays)


def _groups(count: int, size: int) -> Tensor:
    """Each attacker's group: as many groups of at least `size` as there can be, else one."""
    return torch.arange(count) * max(1, count // size) // count
