"""The weights of clients in an average, and the limit on reported sample counts."""

from __future__ import annotations

import numpy as np

from ..core.numerics import Array

FEWEST_TO_COMPARE = 3
"""The smallest number of clients whose sample counts are capped: two clients have no majority."""
LARGEST_COUNT = 8.0
"""The limit on a sample count, as a multiple of the round's median. It is the largest whole number for which one false
count among ten clients gets less than half of the weight (8 of 17 parts). No client of a Dirichlet(0.5) partition
exceeds it."""


def capped(num_examples: Array) -> Array:
    """Sample counts, limited to `LARGEST_COUNT` times their upper median, which a minority of clients cannot raise.

    >>> capped(np.array([10.0, 9e14, 30.0, 20.0]))
    array([ 10., 240.,  30.,  20.])
    """
    if len(num_examples) < FEWEST_TO_COMPARE:
        return num_examples
    median = np.sort(num_examples)[len(num_examples) // 2]
    result: Array = np.minimum(num_examples, LARGEST_COUNT * median)
    return result


def sample_shares(num_examples: Array) -> Array:
    """n_i / Σ n; equal shares if no client has samples.

    >>> sample_shares(np.array([3.0, 1.0])), sample_shares(np.zeros(2))
    (array([0.75, 0.25]), array([0.5, 0.5]))
    """
    total = num_examples.sum()
    shares: Array = num_examples / total if total > 0 else np.full(len(num_examples), 1 / len(num_examples))
    return shares
