"""Dropout whose masks are a function of a key.

torch's dropout draws from one generator per device, so a client's masks would depend on which clients were trained
before it or beside it. Here a hash of (key, layer, position) decides whether an element is dropped. A client's masks
are then the same in the loop, in a worker process and in the batched model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

LAYER_STRIDE = 0x01A0_1999
"""Distance between the first positions of consecutive layers: more elements than a dropout layer has in practice."""


class KeyedDropout(nn.Module):
    """Dropout with probability `p`; its mask is a function of the buffer `key` (set before each step) and `layer`."""

    key: Tensor

    def __init__(self, p: float, layer: int) -> None:
        super().__init__()
        self.p = p
        self.layer = layer
        self.register_buffer("key", torch.zeros((), dtype=torch.int32), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """In training, set a fraction `p` of the elements of `x` to 0 and scale the others by 1 / (1 - p)."""
        if not self.training or self.p == 0:
            return x
        kept = keyed_hash(self.key, self.layer, x.shape, x.device) >= int(self.p * 2**32) - 2**31
        return x * (kept * (1 / (1 - self.p)))


def keyed_hash(key: Tensor, layer: int, shape: torch.Size, device: torch.device) -> Tensor:
    """A hash of key, layer and position: 32-bit integers, uniform over their whole range.

    On a GPU each operation is a kernel launch, so there are few: keys are already well mixed (`step_key`), the
    positions of different layers do not overlap, and two rounds of shift and multiply suffice.
    """
    first = layer * LAYER_STRIDE % 2**30
    x = torch.arange(first, first + shape.numel(), dtype=torch.int32, device=device).view(shape) + key
    x = (x ^ (x >> 16)) * 0x7FEB352D
    return (x ^ (x >> 15)) * -0x7B935975


def with_keyed_dropout(model: nn.Module) -> nn.Module:
    """`model` with each `nn.Dropout` replaced in place by a keyed one; parameters and names do not change."""
    layers = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Dropout)
    ]
    for layer, (parent, name, child) in enumerate(layers):
        setattr(parent, name, KeyedDropout(child.p, layer))
    return model


def step_key(seed: int, step: int) -> int:
    """The dropout key of one step of a job, a 32-bit integer (mixed as in SplitMix64)."""
    mixed = (seed + (step + 1) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (mixed >> 32) - (1 << 31)


def set_key(model: nn.Module, key: int) -> None:
    """Set the key of every keyed dropout layer of `model`."""
    for module in model.modules():
        if isinstance(module, KeyedDropout):
            module.key.fill_(key)
