"""Loners: clients whose updates repeat themselves more than those of all other clients.

The updates of a lone attacker are similar to each other: it pulls the model in the same direction in every
round, while the updates of honest clients with similar data are mostly noise. Where honest clients have different data,
all of them repeat themselves, and no one stands out. One-sided outliers of the clients' mean similarity to their own
past are found by the generalised extreme Studentised deviate test (B. Rosner, "Percentage Points for a Generalized ESD
Many-Outlier Procedure", Technometrics 25(2), 1983).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...core.numerics import Array, share_of
from ..stages import Mask
from .groups import MIN_OTHERS
from .similarity import Numbers
from .window import HISTORY


@dataclass(frozen=True, eq=False)
class Loners:
    """The result of the test."""

    found: Mask
    """For each client whether it is a loner."""
    repetition: Array
    """For each client its mean similarity to its own past; NaN for clients with too few submissions."""


def find_loners(repetition: Array, people: Numbers, false_alarm_rate: float, max_share: float) -> Loners:
    """Test all clients with at least five submissions; five others at least must remain.

    Parameters
    ----------
    repetition
        (submissions x 2): sum and number of the similarities to the client's earlier submissions.
    people
        For each submission the number of its client, counted from 0.
    false_alarm_rate
        The probability that a loner is found among 25 or more clients whose repetitions are normally distributed; up to
        twice as high with ten clients.
    max_share
        At most this share of the tested clients are loners.

    Examples
    --------
    >>> repetition = np.array([[mean, 1.0] for mean in (1.0, 1.1, 0.9, 1.2, 0.8, 1.0, 4.0) for _ in range(5)])
    >>> find_loners(repetition, np.arange(7).repeat(5), 0.01, 0.5).found.tolist()
    [False, False, False, False, False, False, True]
    """
    totals, counts = (np.bincount(people, column) for column in repetition.T)
    tested = np.flatnonzero(np.bincount(people) >= HISTORY)
    means = np.full(len(counts), np.nan)
    means[tested] = totals[tested] / np.maximum(counts[tested], 1)
    found = np.zeros(len(counts), dtype=bool)
    order = tested[np.argsort(-means[tested], kind="stable")]
    most = min(share_of(len(order), max_share), len(order) - MIN_OTHERS)
    for index in range(most):
        rest = order[index:]
        # Each similarity is a z-score, so that the mean of n of them varies by 1 / sqrt(n) at least.
        deviation = max(float(means[rest].std(ddof=1)), 1 / math.sqrt(max(float(np.median(counts[rest])), 1.0)))
        if means[rest[0]] - means[rest].mean() > critical_deviate(len(rest), false_alarm_rate) * deviation:
            found[order[: index + 1]] = True
    return Loners(found, means)


def critical_deviate(count: int, false_alarm_rate: float) -> float:
    """The largest of `count` normal numbers exceeds their mean by more standard deviations at this rate (Grubbs).

    >>> round(critical_deviate(10, 0.05), 3)
    2.176
    """
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    quantile = float(stdtrit(count - 2, 1 - false_alarm_rate / count))
    return (count - 1) * quantile / math.sqrt(count * (count - 2 + quantile**2))
