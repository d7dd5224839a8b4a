"""The noise masks of 3DFed: they hide which class an update trains, and cancel in the sum over a group of attackers."""

from __future__ import annotations

import torch
from torch import Tensor

_STEPS, _RATE, _MOMENTUM, _DECAY = 30, 0.1, 0.9, 5e-4
"""Steps, learning rate, momentum and weight decay of the optimisation; the original's values."""


def group_of_each(count: int, size: int) -> Tensor:
    """Each attacker's group: as many groups of at least `size` attackers as possible, otherwise one.

    >>> group_of_each(5, 2).tolist(), group_of_each(2, 3).tolist()
    ([0, 0, 0, 1, 1], [0, 0])
    """
    return torch.arange(count) * max(1, count // size) // count


def optimised_masks(
    weight: Tensor,
    bias: Tensor,
    size: int,
    generator: torch.Generator,
    *,
    alpha: float,
    deviation: float,
    energy_weight: float,
    norm_weight: float,
    sum_weight: float,
) -> Tensor:
    """Masks (size x rows x columns) that sum to 0, for a group of `size` attackers and some rows of the output layer.

    They minimise α energy_weight Σ 1/E + (1 - α) norm_weight Σ ‖mask‖, with the energy E = |Δb| + Σ|ΔW| of every
    masked class: a large energy in the other classes hides that of the target. A growing multiplier of
    sum_weight ‖Σ masks‖ makes the masks cancel.

    Parameters
    ----------
    weight, bias
        The rows of the output layer's update that are masked.
    deviation
        The standard deviation of the masks before they are optimised.
    alpha, energy_weight, norm_weight, sum_weight
        The weights in the objective.
    """
    if size < 2 or not len(weight):
        return weight.new_zeros(size, *weight.shape)
    first = deviation * torch.randn(size, *weight.shape, generator=generator).to(weight)
    masks = (first - first.mean(dim=0)).requires_grad_()
    optimizer = torch.optim.SGD([masks], lr=_RATE, momentum=_MOMENTUM, weight_decay=_DECAY)
    multiplier = 0.0
    for _ in range(_STEPS):
        energy = bias.abs() + (weight + masks).abs().sum(dim=-1)
        norms = torch.linalg.vector_norm(masks.flatten(1), dim=1).sum()
        remainder = torch.linalg.vector_norm(masks.sum(dim=0))
        loss = alpha * energy_weight * (1 / energy.clamp(min=1e-12)).sum()
        loss = loss + (1 - alpha) * norm_weight * norms + multiplier * sum_weight * remainder
        optimizer.zero_grad()
        (loss / (1 + multiplier)).backward()
        optimizer.step()
        multiplier += 0.1 * float(remainder.detach())
    found: Tensor = masks.detach()
    return found - found.mean(dim=0)
