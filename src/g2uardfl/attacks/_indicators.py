"""The indicators of 3DFed: enlarged weights that reveal, in the next global model, what the server did to an update."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..core.state_files import SavedState
from ..tasks.base import Samples, Task
from .base import Model

_CANDIDATES = 10
"""The number of candidate weights per indicator, as in the original."""
_HESSIAN_SAMPLES = 64
"""The number of samples at each end of the mixed data on which the curvature is measured: few, because second
derivatives are expensive and only the ranking of the weights matters."""
_ARRAYS = ("places", "before", "planted", "group", "alphas")


@dataclass(frozen=True)
class Indicators:
    """The indicators of one round, one entry for each attacker."""

    round: int
    places: Tensor
    """Positions in the flattened indicator layer."""
    before: Tensor
    """The global model's weights at these positions."""
    planted: Tensor
    """The difference between the attackers' weights and the global model's."""
    group: Tensor
    """Each attacker's group; -1 for a decoy."""
    alphas: Tensor
    """Each group's α."""

    def feedback(self, layer: Tensor) -> Tensor:
        """The fraction of each planted change that is present in the next global model."""
        return (layer.detach().cpu().double().flatten()[self.places] - self.before) / self.planted

    def state(self) -> SavedState:
        """All fields, as a state to save."""
        return SavedState({"planted_in": self.round}, {name: getattr(self, name).numpy() for name in _ARRAYS})

    @classmethod
    def restored(cls, state: SavedState) -> Indicators:
        """The indicators in a saved state."""
        arrays = {name: torch.tensor(state.arrays[name]) for name in _ARRAYS}
        return cls(int(state.values["planted_in"]), **arrays)


def curvature(task: Task, model: nn.Module, layer: str, global_weights: Model, samples: Samples) -> Tensor:
    """The row sums of the loss's Hessian in `layer`, on some own and some triggered samples."""
    weight = global_weights[layer].detach().clone().requires_grad_()
    ends = [slice(0, _HESSIAN_SAMPLES), slice(-_HESSIAN_SAMPLES, None)]
    x = torch.cat([samples.x[end] for end in ends])
    y = torch.cat([samples.y[end] for end in ends])
    outputs = functional_call(model, {**global_weights, layer: weight}, (task.prepare(x),))
    (gradient,) = torch.autograd.grad(task.loss(outputs, y), weight, create_graph=True)
    (row_sums,) = torch.autograd.grad(gradient.sum(), weight)
    return row_sums


def quiet_places(moves: Tensor, row_sums: Tensor, count: int) -> Tensor:
    """The `count` positions of smallest curvature among the weights that training moved least.

    >>> quiet_places(torch.arange(11.0), torch.tensor([1.0] * 9 + [-0.5, 0.0]), 1)
    tensor([9])
    """
    candidates = moves.flatten().argsort(stable=True)[: _CANDIDATES * count]
    return candidates[row_sums.flatten().abs()[candidates].argsort(stable=True)[:count]].cpu()
