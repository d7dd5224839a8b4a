"""The shares of clients in an average, and how far a client's sample count is believed."""

from __future__ import annotations

import numpy as np

from ..core.numerics import Array

FEWEST_TO_COMPARE = 3
"""With fewer clients there is no majority that a client could be compared with."""
LARGEST_COUNT = 8.0
"""How many times the median of the round a sample count may be: the largest whole number with which one liar among ten
has less than half of an average (8 of 17 parts). Of the clients of a Dirichlet(0.5) partition none is above it."""


def capped(num_examples: Array) -> Array:
    """Sample counts, none above `LARGEST_COUNT` times their upper median, which a minority of liars cannot raise.

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
