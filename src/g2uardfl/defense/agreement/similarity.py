"""The similarity graph: by how much the cosine of two submissions exceeds the usual cosine of their two rounds.

Honest clients learn many things, so that near convergence their updates are almost orthogonal. Attackers with one
backdoor pull the model in one direction, in this round and in the rounds before. In one round of ten clients that is
often too little evidence; over thirty rounds it is not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.numerics import Array
from ...core.threads import in_parallel
from .sketches import Sketches

Numbers = npt.NDArray[np.int64]
Cosines = npt.NDArray[np.float32]

_HONEST_SHARE = 0.1
"""At least this share of a round's clients is honest, in all but very few rounds."""
_MIN_DEVIATION = 0.01
"""Cosines that vary by less than this (robust standard deviation) are treated as if they varied by this much."""
_LAYER_LIMITS = -6.0, 12.0
"""Limits of a single layer's z-score, so that no layer alone decides; evidence for similarity may weigh more."""


def similarity_graph(clients: Numbers, rounds: list[int], sketches: Sketches) -> Array:
    """(submissions x submissions): the mean over layers of the z-score of two submissions' cosine.

    In each layer, the cosine that is usual between the clients of the two rounds is subtracted (early in training it is
    large), and the rest is divided by the robust standard deviation. Submissions of one client are not compared, and
    their edge is 0: every client resembles its own past.

    Parameters
    ----------
    clients
        For each submission the number of its client.
    rounds
        For each submission its round.
    sketches
        For each submission and layer its direction.
    """
    same = clients[:, None] == clients[None, :]
    _, round_index, sizes = np.unique(rounds, return_inverse=True, return_counts=True)
    place = _places(round_index, sizes)

    def in_layer(rows: Tensor) -> Sketches:
        cosines: Sketches = (rows @ rows.T).numpy()
        cosines[same] = np.nan
        cosines -= _usual_cosines(cosines, place, sizes)[round_index[:, None], round_index[None, :]]
        cosines /= max(_deviation(cosines), _MIN_DEVIATION)
        return np.clip(cosines, *_LAYER_LIMITS, out=cosines)

    layers = torch.from_numpy(sketches.transpose(1, 0, 2).copy()).unbind()
    result = np.zeros(same.shape)
    for one in in_parallel(in_layer, layers):
        result += one
    result[same] = 0.0
    return result / len(layers)


def _places(round_index: Numbers, sizes: Numbers) -> Numbers:
    """The place of each submission if every round had as many places as the largest round."""
    first = np.cumsum(sizes) - sizes
    result: Numbers = round_index * sizes.max() + np.arange(len(round_index)) - first[round_index]
    return result


def _usual_cosines(cosines: Cosines, place: Numbers, sizes: Numbers) -> Cosines:
    """(rounds x rounds): the cosine that is usual between the clients of two rounds, 0 where there are no pairs.

    That is the median, unless attackers are so many in these rounds that the median is theirs. A client's own median is
    as high only if it is an attacker, so that the lowest tenth of the clients' medians is honest. It is below the
    median of all pairs anyway, by about the same everywhere; where it is lower by more than a standard deviation, it is
    used instead.
    """
    rounds, seats = len(sizes), int(sizes.max())
    padded = np.full((rounds * seats, rounds * seats), np.nan, dtype=np.float32)
    padded[place[:, None], place[None, :]] = cosines
    by_rounds = padded.reshape(rounds, seats, rounds, seats)
    pairs = by_rounds.transpose(0, 2, 1, 3).reshape(rounds, rounds, seats * seats)
    medians = _quantile(pairs, 0.5)
    of_clients = _quantile(by_rounds, 0.5)
    both = np.concatenate([of_clients.transpose(0, 2, 1), of_clients.transpose(2, 0, 1)], axis=2)
    lowest = _quantile(both, _HONEST_SHARE)
    present = ~np.isnan(medians)
    lower = lowest + np.median((medians - lowest)[present]) if present.any() else lowest
    apart = np.abs(pairs - medians[:, :, None])
    # The larger deviation of these rounds and of all: early in training it differs between rounds.
    deviations = np.maximum(1.4826 * _quantile(apart, 0.5), _deviation(apart))
    return np.where(present, np.where(medians - lower > deviations, lower, medians), np.float32(0))


def _deviation(values: Cosines) -> float:
    """The robust standard deviation around 0 of the values that are not NaN; 0 if there are none."""
    present = np.abs(values[~np.isnan(values)])
    return 1.4826 * float(np.median(present)) if len(present) else 0.0


def _quantile(values: Cosines, share: float) -> Cosines:
    """The quantile along the last axis without NaN, NaN where nothing is left; much faster than `numpy.nanquantile`."""
    ordered = np.sort(values, axis=-1)  # NaN sorts last
    position = share * np.maximum(np.sum(~np.isnan(values), axis=-1, keepdims=True) - 1, 0)
    below = position.astype(np.int64)
    above = np.ceil(position).astype(np.int64)
    low, high = np.take_along_axis(ordered, below, axis=-1), np.take_along_axis(ordered, above, axis=-1)
    result: Cosines = (low + (high - low) * (position - below).astype(np.float32))[..., 0]
    return result
