"""Norm clipping: factors that scale updates down to a maximum norm."""

from __future__ import annotations

import numpy as np

from .numerics import Array


def clip_factors(norms: Array, limit: float) -> Array:
    """For each update the factor min(1, limit / norm); 1 for a zero update.

    >>> clip_factors(np.array([0.0, 1.0, 4.0]), 2.0)
    array([1. , 1. , 0.5])
    """
    factors = np.ones(len(norms))
    exceeding = norms > limit
    factors[exceeding] = limit / norms[exceeding]
    return factors
