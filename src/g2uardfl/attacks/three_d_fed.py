"""3DFed (Li et al. 2023): a covert backdoor that adapts to how the server treats it.

One attacker trains the backdoor for all. Each attacker sends it with a noise mask (the masks of a group sum to 0) and
with an indicator: one weight that hardly affects the loss, whose change is multiplied by κ. The next global model shows
from it whether the update was accepted, clipped or rejected. If all were rejected, some attackers send decoys instead:
models with one weight far from the others', which attract the defence's attention. The same feedback sets the strength
of the masks.

The trigger is a pattern of 5 x 3 pixels; ASR is measured on test images that are not of the target class.

Deliberate differences from the original code, in which every client takes part in every round:

- Only selected attackers act. Feedback is read if an attacker is selected in the very next round, and skipped
  otherwise: later global models contain the updates of others.
- Attackers send decoys instead of the backdoor. The original overwrites the files of honest participants.
- A decoy is the honestly trained reference with one little-used weight of the output layer moved by `decoy_gap`; the
  original trains until the gap is reached.
- An indicator is at least `indicator_floor`; the original replaces only indicators of exactly 0.
- Masks are centred once more at the end, so that they cancel exactly. A single attacker has no mask.
- All groups mask the same classes, and no biases; the masks' multiplier starts at 0. α is drawn between the smallest
  and the largest α of the accepted groups. If the server is found to add noise, the number of decoys stays the same.
  Attackers that add noise themselves (`model_obfuscation`) hide their own indicators and attribute that noise to the
  server.
- The loss is 0.6 of the mean loss over own and triggered samples (PDR of them) plus 0.4 ‖w - G‖. The original trains
  the backdoor for 15 epochs, honest clients for 1 (MNIST) or 2 (CIFAR-10). Here `epoch_factor` is 15/2, of epochs or of
  steps: where honest clients take 2 steps, the attacker takes 15.
- Running statistics are sent as trained. No layer is found by its name: indicators are in the last convolution, masks
  in the last linear layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.errors import ConfigError
from ..core.settings import number, optional_number
from ..core.state_files import SavedState
from ..tasks.base import Task
from ..training.local import Job, Recipe, joint_norm
from ._indicators import Indicators, curvature, quiet_places
from ._masks import group_of_each, optimised_masks
from .base import Member, Model, Turn
from .trigger import TriggerAttack

PATTERN = ("#.#", " # ", "  .", " # ", "#.#")
"""The trigger: # is white, . is black, and blanks leave the image unchanged."""
PATTERN_ROW, PATTERN_COLUMN = 3, 23
"""The position of the trigger's upper left corner, as in the original; smaller images have it at their edge."""


@dataclass(frozen=True)
class ThreeDFedSettings:
    """Settings of `ThreeDFed`; see its docstring."""

    kappa: float = number(1e5, 1, 1e12)
    target: int = number(8, 0, 10**9)
    distance_weight: float = number(0.4, 0, 1)
    epoch_factor: float = number(7.5, 1, 1000)
    max_scale: float = number(5.0, 1, 1e6)
    threshold: float | None = optional_number(0, 1, integer=False)
    clipped_below: float = number(0.8, 0, 1)
    indicator_floor: float | None = optional_number(0, 1e3, integer=False)
    group_size: int | None = optional_number(2, 1000, integer=True)
    masked_classes: int | None = optional_number(0, 10**9, integer=True)
    mask_deviation: float | None = optional_number(0, 1e3, integer=False)
    energy_weight: float = number(0.1, 0, 1e6)
    norm_weight: float | None = optional_number(0, 1e6, integer=False)
    sum_weight: float | None = optional_number(0, 1e6, integer=False)
    decoy_gap: float = number(10.0, 0, 1e6)


class ThreeDFed(TriggerAttack):
    """One backdoor for all attackers, with masks that cancel, indicators that report back, and decoys.

    For settings with the default None, `usual` has the original's values for MNIST, and CIFAR-10 its own
    (`Cifar10.attack_defaults`).

    Parameters
    ----------
    kappa
        κ: the factor by which an indicator's change is multiplied (default: 1e5).
    target
        The attacker's target label for images with the trigger (default: 8).
    distance_weight
        The weight of ‖w - G‖ in the loss (default: 0.4).
    epoch_factor
        The number of epochs, or steps, relative to honest clients (default: 7.5).
    max_scale
        The largest factor by which the backdoor's update is scaled up to the norm of the honest reference
        (default: 5.0).
    threshold
        Feedback up to this value means that the update was rejected (default: None).
    clipped_below
        Feedback up to this fraction of the largest means that the update was clipped (default: 0.8).
    indicator_floor
        The smallest magnitude of an indicator, so that it exceeds what training does to a weight (default: None).
    group_size
        The number of attackers whose masks cancel (default: None).
    masked_classes
        The number of classes whose rows of the output layer are masked (default: None).
    mask_deviation
        The standard deviation of a mask before it is optimised (default: None).
    energy_weight
        The weight, in the masks' objective, of a large energy in every masked class (default: 0.1).
    norm_weight
        The weight of small norms of the masks (default: None).
    sum_weight
        The weight of masks that cancel within their group (default: None).
    decoy_gap
        The distance by which a decoy's weight is moved (default: 10.0).

    Notes
    -----
    For tasks with images whose model has a convolution and a linear layer. The attackers of a round cooperate, and
    infer from the next global model whether their updates were accepted, clipped or rejected. ASR is measured with
    their own trigger, on test images that are not of the target class.

    References
    ----------
    Li et al., "3DFed: Adaptive and Extensible Framework for Covert Backdoor Attack in Federated Learning",
    IEEE Symposium on Security and Privacy 2023.
    """

    name = "three_d_fed"
    summary = "one backdoor for all, noise masks, indicators that report back, decoys (image tasks only)"
    Settings = ThreeDFedSettings
    usual: ClassVar[Mapping[str, float]] = {
        "threshold": 1e-4,
        "indicator_floor": 1e-2,
        "group_size": 2,
        "masked_classes": 8,
        "mask_deviation": 0.05,
        "norm_weight": 0.08,
        "sum_weight": 0.1,
    }

    def __init__(
        self,
        *,
        kappa: float = ThreeDFedSettings.kappa,
        target: int = ThreeDFedSettings.target,
        distance_weight: float = ThreeDFedSettings.distance_weight,
        epoch_factor: float = ThreeDFedSettings.epoch_factor,
        max_scale: float = ThreeDFedSettings.max_scale,
        threshold: float | None = ThreeDFedSettings.threshold,
        clipped_below: float = ThreeDFedSettings.clipped_below,
        indicator_floor: float | None = ThreeDFedSettings.indicator_floor,
        group_size: int | None = ThreeDFedSettings.group_size,
        masked_classes: int | None = ThreeDFedSettings.masked_classes,
        mask_deviation: float | None = ThreeDFedSettings.mask_deviation,
        energy_weight: float = ThreeDFedSettings.energy_weight,
        norm_weight: float | None = ThreeDFedSettings.norm_weight,
        sum_weight: float | None = ThreeDFedSettings.sum_weight,
        decoy_gap: float = ThreeDFedSettings.decoy_gap,
    ) -> None:
        super().__init__(
            kappa=kappa,
            target=target,
            distance_weight=distance_weight,
            epoch_factor=epoch_factor,
            max_scale=max_scale,
            threshold=threshold,
            clipped_below=clipped_below,
            indicator_floor=indicator_floor,
            group_size=group_size,
            masked_classes=masked_classes,
            mask_deviation=mask_deviation,
            energy_weight=energy_weight,
            norm_weight=norm_weight,
            sum_weight=sum_weight,
            decoy_gap=decoy_gap,
        )
        self.decoys = 0
        """The number of attackers that will send decoys."""
        self.alpha_range = (0.0, 1.0)
        """The range of the groups' α, the weight of the masks' energy."""
        self.server_adds_noise = False
        self._planted: Indicators | None = None

    def enlist(self, task: Task, team: Sequence[int]) -> None:
        """Find the layers to modify; refuse a model without a convolution or a linear output layer."""
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

    def draw(self, images: Tensor, client: int | None) -> None:
        """The same pattern for all clients."""
        top = min(PATTERN_ROW, images.shape[-2] - len(PATTERN))
        left = min(PATTERN_COLUMN, images.shape[-1] - len(PATTERN[0]))
        for row, line in enumerate(PATTERN):
            for column, mark in enumerate(line):
                if mark != " ":
                    images[..., top + row, left + column] = self.pixels.white if mark == "#" else 0

    def observe(self, turn: Turn) -> None:
        """Read the indicators if they were planted in the round before this one."""
        planted, self._planted = self._planted, None
        if planted is not None and turn.number == planted.round + 1:
            self._learn(planted, planted.feedback(turn.global_weights[self._indicator_layer]))

    def _learn(self, planted: Indicators, feedback: Tensor) -> None:
        """Set the range of α and the number of decoys by the feedback."""
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
        """The masked backdoor and the decoys, all with their indicators."""
        backdoor, reference = (self._update(turn, trained[key]) for key in ("backdoor", "reference"))
        honest, own = (float(joint_norm(update.values())) for update in (reference, backdoor))
        scale = min(max(honest / max(own, 1e-12), 1.0), self.settings.max_scale)
        backdoor = {name: scale * value for name, value in backdoor.items()}
        decoys = min(self.decoys, len(turn.members) - 1)
        covert = len(turn.members) - decoys
        group = group_of_each(covert, self.settings.group_size)
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
        """The backdoor's update once for each attacker, with the masks of its group."""
        weight = backdoor[self._output_weight]
        others = [label for label in range(len(weight)) if label != self.settings.target]
        chosen = torch.tensor(others)[torch.randperm(len(others), generator=generator)[: self.settings.masked_classes]]
        chosen = chosen.to(weight.device)
        bias = backdoor[self._output_bias][chosen] if self._output_bias in backdoor else weight.new_zeros(len(chosen))
        updates = []
        for index, alpha in enumerate(alphas.tolist()):
            size = int((group == index).sum())
            masks = optimised_masks(
                weight[chosen],
                bias,
                size,
                generator,
                alpha=alpha,
                deviation=self.settings.mask_deviation,
                energy_weight=self.settings.energy_weight,
                norm_weight=self.settings.norm_weight,
                sum_weight=self.settings.sum_weight,
            )
            for mask in masks:
                masked = weight.clone()
                masked[chosen] += mask
                updates.append({name: value.clone() for name, value in backdoor.items()})
                updates[-1][self._output_weight] = masked
        return updates

    def _decoy(
        self, reference: dict[str, Tensor], backdoor: dict[str, Tensor], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """The honest reference with one output weight moved far, among those that training hardly changed."""
        decoy = {name: value.clone() for name, value in reference.items()}
        gaps = (backdoor[self._output_weight] - reference[self._output_weight]).abs().flatten()
        little_used = gaps.argsort()[: max(1, len(gaps) // 100)]
        place = little_used[torch.randint(len(little_used), (1,), generator=generator).to(little_used.device)]
        decoy[self._output_weight].view(-1)[place] += self.settings.decoy_gap
        return decoy

    def _places(self, lead: Member, global_weights: Model, backdoor: Model, reference: Model, count: int) -> Tensor:
        """The indicators' positions: weights that training hardly moved and on which the loss hardly depends."""
        moves = backdoor[self._indicator_layer].abs() + reference[self._indicator_layer].abs()
        row_sums = curvature(self.task, self._model, self._indicator_layer, global_weights, lead.poisoned)
        return quiet_places(moves, row_sums, count)

    def _plant(self, update: dict[str, Tensor], place: int) -> None:
        """Enlarge one weight's change."""
        change = update[self._indicator_layer].view(-1)
        enlarged = self.settings.kappa * change[place]
        floor = enlarged.new_tensor(self.settings.indicator_floor)
        change[place] = torch.copysign(torch.maximum(enlarged.abs(), floor), enlarged)

    def _remember(
        self, turn: Turn, places: Tensor, updates: list[dict[str, Tensor]], group: Tensor, alphas: Tensor
    ) -> None:
        layer = turn.global_weights[self._indicator_layer].cpu().flatten()
        planted = torch.stack(
            [update[self._indicator_layer].view(-1)[place].cpu() for update, place in zip(updates, places, strict=True)]
        )
        # The server sees the change after rounding to the precision of the weight that is sent.
        sent = (layer[places] + planted).double() - layer[places].double()
        self._planted = Indicators(turn.number, places, layer[places].double(), sent, group, alphas)

    def state(self) -> SavedState:
        """The feedback so far and the indicators whose feedback is still to come."""
        planted = SavedState({"planted_in": None}) if self._planted is None else self._planted.state()
        values: dict[str, Any] = {
            "decoys": self.decoys,
            "alpha_range": list(self.alpha_range),
            "server_adds_noise": self.server_adds_noise,
        }
        return SavedState({**values, **planted.values}, planted.arrays)

    def restore(self, state: SavedState) -> None:
        """Continue with the same feedback and indicators."""
        values = state.values
        self.decoys, self.server_adds_noise = int(values["decoys"]), bool(values["server_adds_noise"])
        self.alpha_range = (float(values["alpha_range"][0]), float(values["alpha_range"][1]))
        self._planted = None if values["planted_in"] is None else Indicators.restored(state)
