"""Random images, and statistics of images."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


def random_images(count: int, seed: int = 0) -> Tensor:
    """Colour images of 32x32 pixels without black pixels."""
    return torch.randint(1, 256, (count, 3, 32, 32), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def mean_and_std(images: Tensor) -> tuple[float, float]:
    """Exact mean and standard deviation of `uint8` images on a scale from 0 to 1, from their histogram."""
    counts = np.bincount(images.flatten().numpy(), minlength=256)
    levels = np.arange(256) / 255
    mean = (counts * levels).sum() / counts.sum()
    return mean, math.sqrt((counts * (levels - mean) ** 2).sum() / counts.sum())
