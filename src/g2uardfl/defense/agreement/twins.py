"""Twins: clients of one round whose updates are almost the same. They may be too few to form a community."""

from __future__ import annotations

import numpy as np

from ...core.numerics import Array
from ..stages import Mask
from .similarity import Numbers

_MAX_TWIN_SHARE = 0.1
"""If more than this share of the unrelated submissions has a twin in another round, twins are nothing unusual: honest
clients with the same kind of data then send them."""


def find_twins(edges: Array, rounds: Numbers, suspects: Mask, min_similarity: float) -> list[int | None]:
    """For each submission of the last round the most similar one of that round, if above `min_similarity`.

    No twins are reported if most clients who are no suspects would have one: early in training the honest majority
    learns the same. Nor if more than a tenth of the unrelated submissions have a twin in another round.
    """
    count = int(np.count_nonzero(rounds == rounds[-1]))
    here = edges[-count:, -count:]
    is_twin = here.max(axis=1) > min_similarity
    none: list[int | None] = [None for _ in range(count)]
    if 2 * np.count_nonzero(is_twin & ~suspects[-count:]) > np.count_nonzero(~suspects[-count:]):
        return none
    similar = edges > min_similarity
    related = similar[-count:][is_twin].any(axis=0)
    unrelated = ~related & ~suspects
    across = similar & (rounds[:, None] != rounds[None, :])
    if unrelated.any() and across[np.ix_(unrelated, unrelated)].any(axis=1).mean() > _MAX_TWIN_SHARE:
        return none
    return [int(other) if one else None for one, other in zip(is_twin, here.argmax(axis=1), strict=True)]
