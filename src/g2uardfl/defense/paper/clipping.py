"""Norm clipping (Dynamic Filtering and Clipping, second half).

Every update is clipped to the norm n^r, the mean over rounds of the median update norm.
"""

from __future__ import annotations

import numpy as np

from ...core.numerics import Array


def average_median_norm(previous: float, norms: Array, round_number: int) -> float:
    """The running mean n^r = n^{r-1} + (median(norms) - n^{r-1}) / r, where the first round is r = 1.

    >>> average_median_norm(2.0, np.array([1.0, 4.0, 9.0]), 2)
    3.0
    """
    return previous + (float(np.median(norms)) - previous) / round_number
