"""What an attacker can do who knows the layout of sketches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from g2uardfl.defense.agreement.sketches import LayerLayout


def buckets_of(layer: LayerLayout) -> list[int]:
    """The bucket of each entry of a layer, by search."""
    width = layer.order.shape[1]
    order = layer.order.tolist()
    place = [[one.index(entry) for entry in range(width)] for one in order]
    return [place[int(layer.classes[entry // width])][entry % width] for entry in range(len(layer.signs))]


def hidden_part(update: np.ndarray, signs: Sequence[int], buckets: Sequence[int]) -> np.ndarray:
    """The projection of a layer's update onto the null space of its sketch: nothing of it is left in any bucket."""
    signs, buckets = np.asarray(signs), np.asarray(buckets)
    means = np.bincount(buckets, signs * update) / np.maximum(np.bincount(buckets), 1)
    return update - signs * means[buckets]
