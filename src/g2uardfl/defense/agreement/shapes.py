"""The shape of an update: its norm, and how its norm is distributed over its entries. Which shapes are usual.

All comparisons are between logarithms, so that a difference is a ratio.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from ...core.numerics import Array
from ...core.state_files import SavedState
from ...core.updates import SentUpdates, norms_and_peaks
from ..stages import Mask

_ZERO_NORM = -700.0
"""Below this logarithm a norm counts as zero (float64's smallest positive number has -708)."""
_ROUNDS = 5
"""What is usual is measured over so many rounds: norms fall as the model learns, and attackers may be most of one."""
_MIN_DEVIATION = 0.25
"""Log norms and log peaks that vary by less than this (standard deviation) are treated as if they varied so."""
_PEAK_SCALE = 1.5
"""The deviation of peaks is multiplied by this: those of honest updates have the heavier tail."""
_HOMOGENEOUS = 0.4
"""The standard deviation of log norms of clients with the same kind of data. Measured: up to 0.4, 0.6 to 0.7 under
Dirichlet's α = 0.5, and 0.6 to 2 under α = 0.05."""
_MAX_HETEROGENEITY = 2.0
"""Beyond this the norms say nothing more about the kinds of data: around a converged model some clients have a thousand
times as much left to learn as others."""


def update_shapes(updates: Tensor | SentUpdates) -> Array:
    """(clients x 2): the logarithms of each update's norm and of its peak-to-norm ratio, max|Δw| / ||Δw||."""
    norms, peaks = norms_and_peaks(updates).T
    tiny = np.finfo(np.float64).tiny
    ratios = np.where(norms > 0, peaks / np.maximum(norms, tiny), tiny)
    return np.stack([np.log(norms + tiny), np.log(ratios)], axis=1)


def is_nonzero(shapes: Array) -> Mask:
    """Which updates are not zero."""
    result: Mask = shapes[:, 0] > _ZERO_NORM
    return result


class UsualShapes:
    """Median and robust standard deviation of the shapes of the last rounds.

    Every client counts, whether it was accepted or not, so that a few cannot define what is usual: as little as it is
    trusted, because clients with a bad reputation may be many.
    """

    def __init__(self) -> None:
        self.rounds: list[Array] = []
        """For each of the last rounds (clients x 3): log norm, log peak-to-norm ratio, and the client's weight."""

    def add(self, shapes: Array, weights: Array) -> None:
        """Remember a round, except zero updates. `weights` are between 0 and 1."""
        rows = np.column_stack([shapes, weights])[is_nonzero(shapes)]
        self.rounds = [*self.rounds, rows][-_ROUNDS:]

    @property
    def centre(self) -> Array:
        """The medians of log norms and log peaks."""
        return self._moments()[0]

    @property
    def deviation(self) -> Array:
        """The robust standard deviations of log norms and log peaks."""
        return self._moments()[1]

    def _moments(self) -> tuple[Array, Array]:
        rows = np.concatenate([*self.rounds, np.zeros((0, 3))])
        shapes, weights = rows[:, :2], rows[:, 2]
        if not weights.any():
            return np.zeros(2), np.full(2, _MIN_DEVIATION)
        centre = np.array([weighted_median(values, weights) for values in shapes.T])
        spread = [weighted_median(values, weights) for values in np.abs(shapes - centre).T]
        return centre, np.maximum(1.4826 * np.array(spread), _MIN_DEVIATION)

    def z_scores(self, shapes: Array, weights: Array, allowed: float) -> Array:
        """For each update of the last round the robust z-score by which its norm or its peak exceeds the usual.

        If this is above `allowed` for most of the round's clients, by their weights, the usual shape has changed: no
        round convicts most of its clients for their shapes.
        """
        exceeding = (shapes - self.centre) / self.deviation / [1.0, _PEAK_SCALE]
        scores: Array = np.where(is_nonzero(shapes), exceeding.max(axis=1), 0.0)
        return scores if 2 * weights[scores > allowed].sum() <= weights.sum() else np.zeros(len(shapes))

    @property
    def heterogeneity(self) -> float:
        """How many times as much norms differ as those of clients with the same kind of data, from 1 to 2."""
        return float(np.clip(self.deviation[0] / _HOMOGENEOUS, 1.0, _MAX_HETEROGENEITY))

    @property
    def usual_norm(self) -> float:
        """The median norm; 0 as long as nothing is remembered."""
        return math.exp(self.centre[0]) if any(len(one) for one in self.rounds) else 0.0

    def norm_limit(self, learning: float) -> float:
        """The norm to which accepted updates are clipped: the usual one, twice as much while clients learn the same."""
        return (1 + learning) * self.usual_norm

    def state(self) -> SavedState:
        """The last rounds."""
        return SavedState({"rounds": [one.tolist() for one in self.rounds]})

    def restore(self, state: SavedState) -> None:
        """Continue with saved rounds."""
        self.rounds = [np.array(one, dtype=np.float64).reshape(-1, 3) for one in state.values["rounds"]]


def weighted_median(values: Array, weights: Array) -> float:
    """The smallest value up to which at least half of the weight lies.

    >>> weighted_median(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 0.0]))
    1.0
    """
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(cumulative, cumulative[-1] / 2)])
