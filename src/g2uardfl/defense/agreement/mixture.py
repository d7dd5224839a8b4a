"""One normal distribution or two? A mixture of two with a common variance, fitted by expectation maximisation."""

from __future__ import annotations

import math

import numpy as np

from ...core.numerics import Array

_CLEAR_CUT = 0.85
"""A cut in two that explains at least this share of the variance is between two components: the best cut through a
single normal distribution explains 2/π = 0.64, and rarely this much."""
_STEPS, _TOLERANCE = 100, 1e-5
"""Expectation maximisation ends after so many steps, or when the mean log-likelihood grows by less."""


def two_components(values: Array) -> tuple[float, Array]:
    """Fit the mixture: the mean gain in log-likelihood over a single normal, and each value's upper probability.

    The result of a fit depends on its start. One fit starts with few values in the upper component, a second one with
    the cut that separates the two parts best, if that is clear; the likelier one is returned.

    >>> gain, upper = two_components(np.array([0.0, 0.1, -0.1, 0.05, 5.0, 5.1]))
    >>> gain > 1, upper.round(2)
    (True, array([0., 0., 0., 0., 1., 1.]))
    """
    deviation = float(values.std())
    # Values that differ by rounding only are equal.
    if not deviation > 1e-12 * float(np.abs(values).max(initial=0.0)):
        return 0.0, np.zeros(len(values))
    x = (values - values.mean()) / deviation
    ordered = np.sort(x)
    few = ordered[-max(1, len(x) // 10) :]
    likelihood, upper = _fit(x, float(np.median(x)), float(few.mean()), 0.1)
    low, high, share = _best_cut(ordered)
    if -low * high > _CLEAR_CUT:
        likelihood, upper = max((likelihood, upper), _fit(x, low, high, share), key=lambda fit: fit[0])
    single = -0.5 * (math.log(2 * math.pi) + 1)
    return likelihood - single, upper


def _best_cut(ordered: Array) -> tuple[float, float, float]:
    """The cut of sorted values of mean 0 with the parts farthest apart: both means, and the upper part's share."""
    lower = np.arange(1, len(ordered))
    sums = np.cumsum(ordered)[:-1]
    between = sums**2 / (lower * (len(ordered) - lower))
    best = int(np.argmax(between))
    count, total = int(lower[best]), float(sums[best])
    return total / count, -total / (len(ordered) - count), 1 - count / len(ordered)


def _fit(x: Array, low: float, high: float, share: float) -> tuple[float, Array]:
    """Expectation maximisation for values of mean 0 and variance 1: mean log-likelihood and upper probabilities.

    Parameters
    ----------
    low, high, share
        The first means, and the first share of the upper component.
    """
    count = len(x)
    variance, last = 0.5, -math.inf
    for _ in range(_STEPS):
        # With a common variance the log-odds of the two components are linear in x.
        odds = math.log(share / (1 - share)) + (high - low) / variance * (x - (high + low) / 2)
        in_low = math.log(1 - share) - (1 + low**2) / (2 * variance) - 0.5 * math.log(2 * math.pi * variance)
        likelihood = in_low + float(np.logaddexp(0.0, odds).mean())
        upper: Array = 0.5 + 0.5 * np.tanh(odds / 2)
        if likelihood - last < _TOLERANCE:
            break
        last = likelihood
        members, moment = min(max(float(upper.sum()), 1e-12), count - 1e-12), float(upper @ x)
        share, low, high = members / count, -moment / (count - members), moment / members
        variance = max(1 - (1 - share) * low**2 - share * high**2, 1e-6)
    return likelihood, upper if high >= low else 1 - upper
