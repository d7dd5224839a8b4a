"""The shape of an update: its norm, and its peak-to-norm ratio. Which shapes are usual.

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
from .window import HISTORY

_MIN_DEVIATION = 0.25
"""The minimum robust standard deviation of log norms and of log peaks."""
_PEAK_SCALE = 1.5
"""The deviation of peaks is multiplied by this: those of honest updates have the heavier tail."""
_ZERO_NORM = -700.0
"""Below this logarithm a norm counts as zero (float64's smallest positive number has -708)."""


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

    Every trusted client counts, whether it was accepted or not, so that a minority cannot define what is usual.
    """

    def __init__(self) -> None:
        self.rounds: list[Array] = []
        """For each of the last rounds (clients x 2): log norm and log peak-to-norm ratio."""

    def z_scores(self, shapes: Array, trusted: Mask, allowed: float) -> Array:
        """For each update the robust z-score by which its norm or its peak exceeds the usual; remember trusted ones.

        If most of the round's clients are above `allowed`, the usual shape has changed: no round flags most of its
        clients because of their shapes.
        """
        self.rounds = [*self.rounds, shapes[is_nonzero(shapes) & trusted]][-HISTORY:]
        all_shapes = np.concatenate(self.rounds)
        if not len(all_shapes):
            return np.zeros(len(shapes))
        centre = np.median(all_shapes, axis=0)
        deviation = np.maximum(1.4826 * np.median(np.abs(all_shapes - centre), axis=0), _MIN_DEVIATION)
        exceeding = ((shapes - centre) / (deviation * [1.0, _PEAK_SCALE])).max(axis=1)
        scores: Array = np.where(is_nonzero(shapes), exceeding, 0.0)
        return scores if 2 * np.count_nonzero(scores > allowed) <= len(scores) else np.zeros(len(shapes))

    @property
    def usual_norm(self) -> float:
        """The median norm; 0 if nothing is remembered."""
        norms = np.concatenate([np.zeros(0), *(one[:, 0] for one in self.rounds)])
        return math.exp(float(np.median(norms))) if len(norms) else 0.0

    def state(self) -> SavedState:
        """The last rounds."""
        return SavedState({"rounds": [one.tolist() for one in self.rounds]})

    def restore(self, state: SavedState) -> None:
        """Continue with saved rounds."""
        self.rounds = [np.array(one, dtype=np.float64).reshape(-1, 2) for one in state.values["rounds"]]
