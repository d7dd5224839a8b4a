"""Edges of the submission graph: by how much the cosine of two updates exceeds the median between their rounds.

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
from ...core.threads import in_parallel
from ..stages import Mask
from .sketches import Sketches

Numbers = npt.NDArray[np.int64]

_MIN_DEVIATION = 0.01
"""The minimum robust standard deviation of cosines."""
_LAYER_LIMITS = -6.0, 12.0
"""Limits of a single layer's z-score, so that no layer alone decides."""
_BLOCK_SIZE = 1 << 22
"""How many cosines a thread computes at once: 16 MiB."""


def new_edges(sketches: Sketches, people: Numbers, rounds: Sequence[int]) -> tuple[Array, Array]:
    """Z-scores of the similarity of the last round's submissions to all in the window.

    In each layer, the median cosine between the clients of the two rounds is subtracted, which removes what all clients
    learnt in them; the rest is divided by its robust standard deviation and clipped. The mean over the layers is
    divided by its own deviation. Submissions of one client have no edge (0), since every client resembles its own past;
    the second result is how much it does.

    Parameters
    ----------
    sketches
        (submissions x layers x width): unit vectors, oldest round first.
    people
        For each submission the number of its client.
    rounds
        For each submission its round.

    Returns
    -------
    edges
        (new submissions x submissions).
    repetition
        (new submissions x 2): the sum and the number of the z-scores with the same client's earlier submissions.
    """
    starts = np.flatnonzero(np.diff(rounds, prepend=rounds[0] - 1))
    new, layers = slice(int(starts[-1]), len(people)), sketches.shape[1]
    comparable = people[new, None] != people[None, :]
    blocks = [slice(start, stop) for start, stop in zip(starts, [*starts[1:], len(people)], strict=True)]

    def exceeding(some: slice) -> Array:
        """The sum over some layers of the limited z-scores."""
        by_layer = np.ascontiguousarray(sketches[:, some].transpose(1, 0, 2))
        cosines = by_layer[:, new] @ by_layer.transpose(0, 2, 1)
        for block in blocks:
            cosines[:, :, block] -= _medians(cosines[:, :, block], comparable[:, block])[:, None, None]
        scale = np.maximum(1.4826 * _medians(np.abs(cosines), comparable), _MIN_DEVIATION).astype(cosines.dtype)
        total: Array = np.clip(cosines / scale[:, None, None], *_LAYER_LIMITS).sum(axis=0, dtype=np.float64)
        return total

    step = max(_BLOCK_SIZE // comparable.size, 1)
    parts = in_parallel(exceeding, [slice(first, first + step) for first in range(0, layers, step)])
    similarity = np.asarray(sum(parts, np.zeros(comparable.shape)) / max(layers, 1))
    spread = 1.4826 * float(_medians(np.abs(similarity[None]), comparable)[0])
    if spread > 0:
        similarity /= spread
    earlier = ~comparable
    earlier[:, new] = False
    repetition = np.stack([np.sum(similarity * earlier, axis=1), np.count_nonzero(earlier, axis=1)], axis=1)
    return np.where(comparable, similarity, 0.0), repetition


def _medians(values: npt.NDArray[np.floating[Any]], mask: Mask) -> npt.NDArray[np.floating[Any]]:
    """For each layer the median of its values inside the mask; 0 where there are none.

    >>> _medians(np.array([[[1.0, 5.0, 2.0, 7.0]]]), np.array([[True, False, True, True]]))
    array([2.])
    """
    count = int(np.count_nonzero(mask))
    if not count:
        return np.zeros(len(values))
    inside = np.where(mask, values, np.inf).reshape(len(values), -1)
    # One position is several times faster than the two that NumPy's median partitions at.
    inside.partition(count // 2, axis=1)
    upper = inside[:, count // 2]
    result = upper if count % 2 else (upper + inside[:, : count // 2].max(axis=1)) / 2
    return np.asarray(result)
