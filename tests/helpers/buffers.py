"""A second computation of the robust mean of statistics and counters: one value at a time, in loops."""

from __future__ import annotations

from collections.abc import Sequence


def slow_mean(
    values: Sequence[float], shares: Sequence[float], model: float, variance: bool = False, scale: float = 1.0
) -> float:
    """One value of the new model, from the values of the clients that vote.

    `scale` is how far from the value of the `model` a value counts where fewer than three clients vote.
    """
    if len(values) >= 3:
        centre = sorted(values)[(len(values) - 1) // 2]
        reach = 2 * sorted(abs(value - centre) for value in values)[len(values) // 2]
    else:
        centre, reach = model, scale
    high, low = centre + reach, centre - reach
    if variance:
        low = centre**2 / high if high > 0 else 0.0
    clipped = [min(max(value, low), high) for value in values]
    return sum(share * value for share, value in zip(shares, clipped, strict=True)) / sum(shares)
