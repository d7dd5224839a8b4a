"""The form of a model that can be batched over clients: padded samples are masked, vmap can map every layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd


class MaskedBatchNorm(nn.Module):
    """BatchNorm in training mode over the samples marked in the buffer `real`, without waiting for the device.

    Otherwise padded samples would enter the mean, the variance and the running statistics. Parameters and buffers keep
    their names.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    real: Tensor

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.eps = norm.eps
        self.momentum = norm.momentum or 0.0
        self.weight, self.bias = norm.weight, norm.bias
        for name, buffer in norm.named_buffers():
            self.register_buffer(name, buffer)
        self.register_buffer("real", torch.ones(1, dtype=torch.bool), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each channel of `x` (samples x channels x ...) to mean 0 and variance 1, then scale and shift."""
        channels = (-1, *[1] * (x.dim() - 2))
        others = [0, *range(2, x.dim())]
        weight = self.real.to(x.dtype).view(-1, *[1] * (x.dim() - 1))
        count = weight.sum() * (x[0, 0].numel())
        mean = (x * weight).sum(others) / count
        centred = x - mean.view(channels)
        variance = (centred.square() * weight).sum(others) / count
        unbiased = variance * (count / (count - 1))
        self.running_mean.mul_(1 - self.momentum).add_(self.momentum * mean.detach())
        self.running_var.mul_(1 - self.momentum).add_(self.momentum * unbiased.detach())
        self.num_batches_tracked.add_(1)
        scale = self.weight * (variance + self.eps).rsqrt()
        return centred * scale.view(channels) + self.bias.view(channels)


def has_batched_form(model: nn.Module) -> bool:
    """Whether every layer of `model` has a batched form (recurrent layers need a model with the switch `fused`)."""
    return all(_layer_has_batched_form(layer, hasattr(model, "fused")) for layer in model.modules())


def to_batched_form(model: nn.Module) -> nn.Module:
    """`model`, changed in place: BatchNorm masks padding, and recurrent layers take the form that vmap can map."""
    for parent in list(model.modules()):
        if hasattr(parent, "fused"):
            parent.fused = False  # type: ignore[assignment]
        for name, child in list(parent.named_children()):
            if isinstance(child, _BatchNorm):
                setattr(parent, name, MaskedBatchNorm(child))
    return model


def _layer_has_batched_form(layer: nn.Module, model_has_fused_switch: bool) -> bool:
    if isinstance(layer, _BatchNorm):
        plain = isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d))
        return plain and layer.affine and layer.track_running_stats and layer.momentum is not None
    if isinstance(layer, _NormBase):
        return not layer.track_running_stats
    if isinstance(layer, nn.RNNBase):
        return model_has_fused_switch
    return isinstance(layer, nn.Dropout) or not isinstance(layer, _DropoutNd)
