"""Edges of the submission graph: by how much the cosine of two updates exceeds what is usual between their rounds.

Honest clients learn many things, so that updates of different rounds are almost orthogonal. Attackers with one backdoor
pull the model in one direction, in this round and in all others. In one round of ten clients that is often too little
evidence; over thirty rounds it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.numerics import Array
from .sketches import Sketches

Numbers = npt.NDArray[np.int64]

_MIN_DEVIATION = 0.01
"""Cosines that vary by less than this (robust standard deviation) are treated as if they varied by this much."""
_LAYER_LIMITS = -6.0, 12.0
"""Limits of a single layer's z-score, so that no layer alone decides."""


def new_edges(sketches: Sketches, people: Numbers, rounds: Sequence[int]) -> Array:
    """(new submissions x submissions): z-scores of the similarity of the last round's submissions to all in the window.

    In each layer, the median cosine between the clients of the two rounds is subtracted, which removes what everybody
    learnt then; the rest is divided by its robust standard deviation and clipped. The mean over the layers is divided
    by its own deviation. Submissions of one client are not compared: their edge is 0, since every client resembles its
    own past.

    Parameters
    ----------
    sketches
        (submissions x layers x width): unit vectors, oldest round first.
    people
        For each submission the number of its client.
    rounds
        For each submission its round.
    """
    starts = np.flatnonzero(np.diff(rounds, prepend=rounds[0] - 1))
    new = slice(int(starts[-1]), len(people))
    by_layer = np.ascontiguousarray(sketches.transpose(1, 0, 2))
    cosines = by_layer[:, new] @ by_layer.transpose(0, 2, 1)
    comparable = people[new, None] != people[None, :]
    for start, stop in zip(starts, [*starts[1:], len(people)], strict=True):
        pairs = comparable[:, start:stop]
        if pairs.any():
            cosines[:, :, start:stop] -= np.median(cosines[:, :, start:stop][:, pairs], axis=1)[:, None, None]
    scale = np.maximum(_deviation(cosines[:, comparable]), _MIN_DEVIATION)
    similarity = np.clip(cosines / scale[:, None, None], *_LAYER_LIMITS).mean(axis=0, dtype=np.float64)
    similarity[~comparable] = 0.0
    spread = float(_deviation(similarity[comparable]))
    result: Array = similarity / spread if spread > 0 else similarity
    return result


def _deviation(values: npt.NDArray[np.floating[Any]]) -> Array:
    """The robust standard deviation around 0 along the last axis; 0 where there are no values."""
    if not values.shape[-1]:
        return np.zeros(values.shape[:-1])
    result: Array = 1.4826 * np.median(np.abs(values), axis=-1)
    return result
