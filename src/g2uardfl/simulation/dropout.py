"""Dropout whose masks follow from a key and nothing else.

torch's own dropout draws from one generator for the whole device: which mask a client gets would depend on who was
trained before it, or beside it. Here every element's fate is a hash of (key, layer, position), so that a client's masks
are the same alone, in a worker process, or among others in one batched model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
        kept = keyed_uniform(self.key, self.layer, x.shape, x.device) >= self.p
        return x * kept / (1 - self.p)


def keyed_uniform(key: Tensor, layer: int, shape: torch.Size, device: torch.device) -> Tensor:
    """Numbers in [0, 1) that are a hash of key, layer and position (32-bit integer mixing in two rounds)."""
    position = torch.arange(shape.numel(), dtype=torch.int32, device=device).view(shape)
    mixed = _mix(position + _mix(key + layer * 40_503))
    return (mixed & 0xFFFFFF).float() / (1 << 24)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * -0x7B935975
    return x ^ ((x >> 16) & 0xFFFF)


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
    mixed = (seed ^ (seed >> 32)) * 0x9E3779B1 + step * 0x85EBCA77
    return (mixed & 0xFFFFFFFF) - (1 << 31)


def set_key(model: nn.Module, key: int) -> None:
    """Set the key of every keyed dropout layer of `model`."""
    for module in model.modules():
        if isinstance(module, KeyedDropout):
            module.key.fill_(key)
