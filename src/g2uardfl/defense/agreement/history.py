"""The shapes of the last accepted updates: which norms and peaks are usual, and how far an update exceeds them.

All comparisons are between logarithms, so that a difference is a ratio.
"""

from __future__ import annotations

import math

import numpy as np

from ...core.numerics import Array
from ..stages import Mask
from .communities import MAX_COSINE_RATIO, MIN_MEMBERS
from .shapes import is_nonzero
from .sketches import Sketches, mean_cosine

_REMEMBERED = 200
"""How many accepted updates are remembered."""
_MIN_REMEMBERED = 20
"""With fewer remembered updates a round is compared with its own updates, too."""
_SMALL_STEPS = 50
"""Until so many updates have been accepted the model takes small steps: attackers are to be detected before the model
has learnt their backdoor, since afterwards they are hard to detect."""
_SMALL_STEP_SHARE = 0.3
"""The clipping norm of small steps, as a share of the round's lower quartile."""
_HONEST_QUANTILE = 0.25
"""This quantile of a round's norms is honest even if most of its clients are attackers, whose updates are larger."""
_UNUSUAL_QUANTILE = 0.9
"""A norm above this quantile of the accepted ones is unusual."""
_MAX_GROWTH = 2.0
"""Accepted updates are clipped to at most so many times the usual norm, if the norms of a round grow."""
_MIN_DEVIATION = 0.25
"""Norms and peaks that vary by less than this (standard deviation of logarithms) are treated as if they varied so."""
_DEVIATION_SCALES = np.array([1.0, 1.5])
"""What a standard deviation of norms and one of peaks counts for: peaks of honest updates have the heavier tail."""
_SINGLE_OUTLIER = 1.4
"""The z-score of a single outlier of a round is divided by this: attackers rarely come alone, and an honest update may
be three times as large as usual."""
_SHIFT = 4.0
"""If the median z-score of a round exceeds this, it is the usual shape that has changed."""
_TRIMMINGS, _TRIMMED_FROM = 3, 2.5
"""How many times the reference values are trimmed, and from how many standard deviations above the median."""
_MAX_NARROWING = 0.9
"""Trimming reduces the deviation of accepted updates to this share at most: honest ones may be of two kinds."""
_HETEROGENEOUS = 0.9
"""Clients are heterogeneous if their log norms have a larger standard deviation than this. Measured: 0.4 for clients
with the same kind of data, 0.6 to 0.7 under Dirichlet's α = 0.5, 1.1 to 2 under α = 0.05."""
_GAP_RATIO = 4.0
"""A group of updates is separate from the others if its norms are at least so many times as large; honest groups
hardly ever are."""
_NOTHING_IN_COMMON = 0.05
"""Updates with a mean cosine below this have almost nothing in common."""
_FLATTER = (7.0, 4.0)
"""How many times as large the peak-to-norm ratio of honest updates is as that of updates hidden under noise: before
any norms are known, and afterwards."""


class ShapeHistory:
    """The shapes of the last accepted updates."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []
        """Log norm and log peak-to-norm ratio of each."""

    @property
    def is_sufficient(self) -> bool:
        """Whether enough updates are remembered to compare with them alone."""
        return len(self.seen) >= _MIN_REMEMBERED

    @property
    def heterogeneous(self) -> bool:
        """Whether the norms differ so much that the clients must have different kinds of data."""
        norms = np.array([norm for norm, _ in self.seen])
        return self.is_sufficient and 1.4826 * float(np.median(np.abs(norms - np.median(norms)))) > _HETEROGENEOUS

    @property
    def usual_norm(self) -> float | None:
        """The median norm; None as long as nothing is remembered."""
        return float(np.exp(np.median([norm for norm, _ in self.seen]))) if self.seen else None

    def add(self, shapes: Array) -> None:
        """Remember accepted updates, except zero updates."""
        added = [(float(norm), float(peak)) for norm, peak in shapes[is_nonzero(shapes)]]
        self.seen = (self.seen + added)[-_REMEMBERED:]

    def norm_limit(self, norms: Array) -> float:
        """The norm to which accepted updates are clipped: the usual norm.

        Where updates grow it is the lower quartile of the round's accepted `norms`, up to twice the usual norm. In the
        first rounds, most of whose clients may be attackers, it is a share of that quartile.
        """
        quartile = float(np.quantile(norms, _HONEST_QUANTILE))
        if len(self.seen) < _SMALL_STEPS:
            return _SMALL_STEP_SHARE * quartile
        usual = self.usual_norm or 0.0
        return min(max(usual, quartile), _MAX_GROWTH * usual)

    @property
    def takes_small_steps(self) -> bool:
        """Whether too few updates have been accepted for full steps."""
        return len(self.seen) < _SMALL_STEPS

    def z_scores(self, shapes: Array, allowed: float, suspects: Mask, outsized: Mask) -> Array:
        """For each update the robust z-score by which its norm or its peak exceeds the usual.

        If most of the smaller updates of clients who are no `suspects` exceed it, the usual shape has changed, and the
        round is compared with them. The z-score of a single update above `allowed` is reduced. Updates that are
        `outsized` exceed the usual at least as far as they are apart from all others.
        """
        nonzero = is_nonzero(shapes)
        if not nonzero.any():
            return np.zeros(len(shapes))
        cleared = nonzero & ~suspects
        others = (cleared if cleared.any() else nonzero).copy()
        others[others] = smaller_group(shapes[others, 0], 1 if self.seen else _smallest_group(others))
        own, seen = shapes[others], np.array(self.seen).reshape(-1, 2)
        if self.is_sufficient:
            exceeding = _z_scores(shapes, seen, _MAX_NARROWING)
        else:
            exceeding = _z_scores(shapes, np.concatenate([seen, own]))
        if np.median(exceeding[others]) > _SHIFT:
            exceeding = _z_scores(shapes, own)
        if outsized.any():
            exceeding = np.where(outsized, np.maximum(exceeding, _distance(shapes, nonzero & ~outsized)), exceeding)
        if np.count_nonzero(exceeding > allowed) == 1:
            return np.where(exceeding > allowed, exceeding / _SINGLE_OUTLIER, exceeding)
        return exceeding

    def outsized(self, shapes: Array, sketches: Sketches) -> Mask:
        """Which updates of a round are so much larger than the others, and than accepted ones, that they must attack.

        These are at least two, separated from the others by their norms or by their peaks (noise makes large updates
        flat). If the others have much more in common, they may be the attackers and keep their updates small; no update
        is outsized then, unless it is as much flatter as only noise is.
        """
        nobody = np.zeros(len(shapes), dtype=bool)
        nonzero = is_nonzero(shapes)
        norms, peaks = shapes.T
        for values in (norms, -peaks):
            others = nonzero.copy()
            others[nonzero] = smaller_group(values[nonzero], _smallest_group(nonzero))
            larger = nonzero & ~others
            if np.count_nonzero(larger) > 1 and norms[larger].min() > norms[others].max():
                break
        else:
            return nobody
        if self.seen and norms[larger].min() <= np.quantile([norm for norm, _ in self.seen], _UNUSUAL_QUANTILE):
            return nobody
        of_larger, of_others = (mean_cosine(sketches[some]) for some in (larger, others))
        if of_larger > MAX_COSINE_RATIO * of_others:
            return larger
        flatter = np.median(peaks[others]) - np.median(peaks[larger]) > math.log(_FLATTER[bool(self.seen)])
        return larger if (flatter if self.seen or values is norms else of_others < _NOTHING_IN_COMMON) else nobody


def smaller_group(norms: Array, least: int) -> Mask:
    """All updates, or those of smaller norm if (log) norms form two groups with a gap wider than either group.

    The smaller ones may be few, but at least `least`: honest clients show no such gap, while attackers who hide under
    noise send large updates and may be most of a round.
    """
    ordered = np.sort(norms)
    for count in range(least, len(ordered)):
        lower, upper = ordered[:count], ordered[count:]
        gap = upper[0] - lower[-1]
        if gap > max(math.log(_GAP_RATIO), np.ptp(lower), np.ptp(upper)):
            smaller: Mask = norms <= lower[-1]
            return smaller
    return np.ones(len(norms), dtype=bool)


def _smallest_group(nonzero: Mask) -> int:
    return max(MIN_MEMBERS, math.ceil(_HONEST_QUANTILE * np.count_nonzero(nonzero)))


def _distance(shapes: Array, others: Mask) -> Array:
    """How much larger or flatter each update is than all `others`, in the smallest standard deviations."""
    (norms, peaks), (largest, _), (_, flattest) = shapes.T, shapes[others].max(axis=0), shapes[others].min(axis=0)
    result: Array = np.maximum(norms - largest, flattest - peaks) / _MIN_DEVIATION
    return result


def _z_scores(shapes: Array, reference: Array, narrowing: float = 0.0) -> Array:
    centre, deviation = np.array([_trimmed_moments(values, narrowing) for values in reference.T]).T
    result: Array = np.max((shapes - centre) / np.maximum(deviation, _MIN_DEVIATION) / _DEVIATION_SCALES, axis=1)
    return result


def _trimmed_moments(values: Array, narrowing: float) -> tuple[float, float]:
    """Median and robust standard deviation after attackers, who may be many, have been trimmed off the upper end.

    The deviation is at least `narrowing` times what it was before trimming.
    """
    deviations = []
    for _ in range(_TRIMMINGS):
        centre = float(np.median(values))
        # The median deviation of few values may be far too large.
        deviations.append(min(1.4826 * float(np.median(np.abs(values - centre))), float(values.std())))
        values = values[values <= centre + _TRIMMED_FROM * deviations[-1]]
    return centre, max(deviations[-1], narrowing * deviations[0])
