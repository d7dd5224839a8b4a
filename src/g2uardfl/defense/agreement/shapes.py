"""The shape of an update: its norm, and how its norm is distributed over its entries."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...core.numerics import Array
from ...core.updates import SentUpdates, each_row
from ..stages import Mask

_ZERO_NORM = -700.0
"""Below this logarithm a norm counts as zero (float64's smallest positive number has -708)."""


def update_shapes(updates: Tensor | SentUpdates) -> Array:
    """(clients x 2): the logarithms of each update's norm and of its peak-to-norm ratio, max|Δw| / ||Δw||."""

    def norm_and_peak(row: Tensor) -> tuple[float, float]:
        lowest, highest = row.aminmax()
        return float(torch.linalg.vector_norm(row, dtype=torch.float64)), max(-float(lowest), float(highest))

    norms, peaks = np.array(each_row(updates, norm_and_peak)).T
    tiny = np.finfo(np.float64).tiny
    ratios = np.where(norms > 0, peaks / np.maximum(norms, tiny), tiny)
    return np.stack([np.log(norms + tiny), np.log(ratios)], axis=1)


def is_nonzero(shapes: Array) -> Mask:
    """Which updates are not zero."""
    result: Mask = shapes[:, 0] > _ZERO_NORM
    return result
