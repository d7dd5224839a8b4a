"""Aggregation into a normal and a poisoned model, and adaptive poison eliminating.

G+ and G- are the global model plus the weighted means of the clipped updates of C+ and C-. The new model is G+, moved
away from G-:

    G = G+ + γ · Σ_{C-}|s| / Σ|s| · log(1 + n) · (G+ - Ḡ-)

Both models are linear in the clients' updates, so the whole step is a weighted sum of updates. The functions below
compute its coefficients. No intermediate model is built: the norms of G+ - G and G- - G follow from the inner products
of the updates.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from ...core.numerics import Array
from ..stages import Mask

DistanceWeighting = Literal["near", "printed"]


def distance_weights(distances: Array, weighting: DistanceWeighting = "near") -> Array:
    """Weights that sum to 1 from the distances to the cluster centre.

    "near" is softmax(-d), which gives clients near the centre more weight, as the paper's text requires. "printed" is
    the equation exactly as printed, softmax(d), which does the opposite.

    >>> distance_weights(np.array([0.0, 0.0]))
    array([0.5, 0.5])
    """
    signed = distances if weighting == "printed" else -distances
    exponentials = np.exp(signed - signed.max())
    result: Array = exponentials / exponentials.sum()
    return result


def group_coefficients(
    members: Mask, distances: Array, clipping: Array, weighting: DistanceWeighting = "near"
) -> Array:
    """The coefficient of each client's update in (group model - global model); 0 for clients outside the group."""
    coefficients = np.zeros(len(members))
    if members.any():
        coefficients[members] = distance_weights(distances[members], weighting) * clipping[members]
    return coefficients


def step_norm(coefficients: Array, update_products: Array) -> float:
    """||Σ_i c_i Δw_i|| from the inner products of the updates."""
    return math.sqrt(max(0.0, float(coefficients @ update_products @ coefficients)))


def elimination_strength(scores: Array, malicious: Mask, median_norm: float, rate: float) -> float:
    """γ · Σ_{C-}|s| / Σ|s| · log(1 + n): the size of the step away from the poisoned model."""
    total = float(np.abs(scores).sum())
    if not malicious.any() or total == 0.0:
        return 0.0
    return rate * float(np.abs(scores[malicious]).sum()) / total * float(np.log1p(median_norm))


def eliminating_coefficients(benign: Array, malicious: Array, update_products: Array, strength: float) -> Array:
    """The coefficient of each client's update in the whole step: G+ - G + `strength` (G+ - Ḡ-).

    Ḡ- is G- clipped to the distance between G+ and the global model.
    """
    if strength == 0.0:
        return benign
    plus, minus = step_norm(benign, update_products), step_norm(malicious, update_products)
    clipped = malicious * min(1.0, plus / minus) if minus > 0 else malicious
    return benign + strength * (benign - clipped)
