"""Aggregation into a normal and a poisoned model, and adaptive poison eliminating.

G+ and G- are weighted means of the clipped updates of C+ and C-, and the new model moves from G+ away from G-:

    G = G+ + γ · Σ_{C-}|s| / Σ|s| · log(1 + n) · (G+ - Ḡ-)

Both models are linear in the clients' updates, so the whole step is one number a client times its update. That is
how it is computed here: no intermediate model is ever built, and the lengths of G+ - G and G- - G come from the
inner products of the updates.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from ...core.numerics import Array
from ..stages import Mask

DistanceWeighting = Literal["near", "printed"]


def distance_weights(distances: Array, weighting: DistanceWeighting = "near") -> Array:
    """Weights that sum to 1 from the distances to the cluster centre: softmax(-d), or softmax(+d) as printed.

    The text wants clients near the centre to weigh more; the printed sign does the opposite.

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
    """For each client the factor of its update in (group model - global model); zeros outside the group."""
    coefficients = np.zeros(len(members))
    if members.any():
        coefficients[members] = distance_weights(distances[members], weighting) * clipping[members]
    return coefficients


def step_norm(coefficients: Array, update_products: Array) -> float:
    """||Σ_i c_i Δw_i||, from the matrix of inner products of the updates."""
    return math.sqrt(max(0.0, float(coefficients @ update_products @ coefficients)))


def elimination_strength(scores: Array, malicious: Mask, median_norm: float, rate: float) -> float:
    """γ · Σ_{C-}|s| / Σ|s| · log(1 + n): how far to move away from the poisoned model."""
    total = float(np.abs(scores).sum())
    if not malicious.any() or total == 0.0:
        return 0.0
    return rate * float(np.abs(scores[malicious]).sum()) / total * float(np.log1p(median_norm))


def eliminating_coefficients(benign: Array, malicious: Array, update_products: Array, strength: float) -> Array:
    """For each client the factor of its update in the whole step: G+ - G, plus `strength` times (G+ - Ḡ-).

    Ḡ- is G- brought no farther from the global model than G+ is.
    """
    if strength == 0.0:
        return benign
    plus, minus = step_norm(benign, update_products), step_norm(malicious, update_products)
    shortened = malicious * min(1.0, plus / minus) if minus > 0 else malicious
    return benign + strength * (benign - shortened)
