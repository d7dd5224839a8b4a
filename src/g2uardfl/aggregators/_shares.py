"""The shares of clients in an average."""

from __future__ import annotations

import numpy as np

from ..core.numerics import Array


def sample_shares(num_examples: Array) -> Array:
    """n_i / Σ n; equal shares if no client has samples.

    >>> sample_shares(np.array([3.0, 1.0])), sample_shares(np.zeros(2))
    (array([0.75, 0.25]), array([0.5, 0.5]))
    """
    total = num_examples.sum()
    shares: Array = num_examples / total if total > 0 else np.full(len(num_examples), 1 / len(num_examples))
    return shares
