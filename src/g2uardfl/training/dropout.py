"""Dropout whose masks follow from a key and nothing else.

torch's own dropout draws from one generator for the whole device: which mask a client gets would depend on who was
trained before it, or beside it. Here every element's fate is a hash of (key, layer, position), so that a client's masks
are the same alone, in a worker process, or among others in one batched model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

LAYER_STRIDE = 0x01A0_1999
"""How far apart the layers' positions are."""


class KeyedDropout(nn.Module):
    """Dropout with probability `p`, decided by the buffer `key` (set before every step) and the layer's number."""

    key: Tensor

    def __init__(self, p: float, layer: int) -> None:
        super().__init__()
        self.p = p
        self.layer = layer
        self.register_buffer("key", torch.zeros((), dtype=torch.int32), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """`x` with a share `p` of its elements set to 0 and the others scaled up; unchanged in evaluation."""
        if not self.training or self.p == 0:
            return x
        kept = keyed_hash(self.key, self.layer, x.shape, x.device) >= int(self.p * 2**32) - 2**31
        return x * (kept * (1 / (1 - self.p)))


def keyed_hash(key: Tensor, layer: int, shape: torch.Size, device: torch.device) -> Tensor:
    """32-bit integers, spread evenly over their whole range, that are a hash of key, layer and position.

    On a GPU every operation is a kernel of its own, so there are few: keys come well mixed (`step_key`), layers begin
    far apart, and two rounds of shifting and multiplying do the rest.
    """
    first = layer * LAYER_STRIDE % 2**30
    x = torch.arange(first, first + shape.numel(), dtype=torch.int32, device=device).view(shape) + key
    x = (x ^ (x >> 16)) * 0x7FEB352D
    return (x ^ (x >> 15)) * -0x7B935975


def with_keyed_dropout(model: nn.Module) -> nn.Module:
    """`model` with each of its dropout layers replaced by a keyed one, in place; parameters and names stay."""
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Dropout)
    ]
    for layer, (parent, name, child) in enumerate(places):
        setattr(parent, name, KeyedDropout(child.p, layer))
    return model


def step_key(seed: int, step: int) -> int:
    """The dropout key of a client's step, as a 32-bit integer."""
    mixed = (seed + (step + 1) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (mixed >> 32) - (1 << 31)


def set_key(model: nn.Module, key: int) -> None:
    """Set the key of every keyed dropout layer of `model`."""
    for module in model.modules():
        if isinstance(module, KeyedDropout):
            module.key.fill_(key)
