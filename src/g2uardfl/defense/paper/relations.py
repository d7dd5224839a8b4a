"""Inter-client relations: similarities of the round's clients (Graph Construction, second half).

Three matrices reflect the three kinds of poisoned weights that the paper distinguishes: the cosine similarity of
weights (E1), the difference of weight norms (E2) and the difference of update norms (E3). Each is converted to
z-scores, negated if it is a difference, clamped at 0 and scaled into [0, 1]. The adjacency matrix is their mean.

A fourth relation, the cosine similarity of updates, is not in the paper; a setting adds it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ...core.numerics import Array, InnerProducts, cosine, z_scores

EdgeScaling = Literal["similarity", "printed"]


def raw_relations(products: InnerProducts) -> tuple[Array, Array, Array]:
    """E1, E2 and E3 before the normalisation, each (clients x clients).

    E1 = (1 + cos(w_i, w_j)) / 2, E2 = | ||w_i|| - ||w_j|| |, E3 = | ||Δw_i|| - ||Δw_j|| |.
    """
    whole = products.total
    ww, uu = whole.ww[0], whole.uu[0]
    squared_norms = np.diagonal(ww)
    cosines = (1 + cosine(ww, squared_norms[:, None], squared_norms[None, :])) / 2
    weight_norms = np.sqrt(np.maximum(squared_norms, 0))
    update_norms = np.sqrt(np.maximum(np.diagonal(uu), 0))
    return cosines, _differences(weight_norms), _differences(update_norms)


def edge_strengths(normalised: Array, scaling: EdgeScaling) -> Array:
    """Edge weights in [0, 1] from normalised relations, in which larger means more similar.

    "similarity" is tanh(max(E, 0)): 0 for dissimilar clients, towards 1 with increasing similarity. "printed" is the
    equation exactly as printed, exp(-tanh(max(E, 0))): 1 for dissimilar clients, decreasing with similarity.
    """
    strength = np.tanh(np.maximum(normalised, 0.0))
    return np.exp(-strength) if scaling == "printed" else strength


def update_cosines(products: InnerProducts) -> Array:
    """(1 + cos(Δw_i, Δw_j)) / 2 before the normalisation: the relation that the paper does not have."""
    products_of_updates = products.total.uu[0]
    squared_norms = np.diagonal(products_of_updates)
    result: Array = (1 + cosine(products_of_updates, squared_norms[:, None], squared_norms[None, :])) / 2
    return result


def adjacency(
    products: InnerProducts, scaling: EdgeScaling = "similarity", *, with_update_cosines: bool = False
) -> Array:
    """The adjacency matrix E of the round's clients: the mean of the scaled relations."""
    cosines, weight_differences, update_differences = (
        z_scores(relation, axis=None) for relation in raw_relations(products)
    )
    similarities = [cosines, -weight_differences, -update_differences]
    if with_update_cosines:
        similarities.append(z_scores(update_cosines(products), axis=None))
    result: Array = np.mean([edge_strengths(relation, scaling) for relation in similarities], axis=0)
    return result


def _differences(values: Array) -> Array:
    return np.abs(values[:, None] - values[None, :])
