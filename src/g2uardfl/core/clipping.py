"""Norm clipping: scaling factors that bring updates to at most a given norm."""

from __future__ import annotations

import numpy as np

from .numerics import Array


def clip_factors(norms: Array, limit: float) -> Array:
    """For each update the factor min(1, n^r / norm) that brings it to at most `limit`; 1 for a zero update.

    >>> clip_factors(np.array([0.0, 1.0, 4.0]), 2.0)
    array([1. , 1. , 0.5])
    """
    factors = np.ones(len(norms))
    longer = norms > limit
    factors[longer] = limit / norms[longer]
    return factors
