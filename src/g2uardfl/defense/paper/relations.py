"""Inter-client relations: how alike two clients are (Graph Construction, second half).

Three matrices answer the three kinds of poisoned weights the paper tells apart: the cosine of weights (E1), the
difference of weight norms (E2) and the difference of update norms (E3). Each is z-scored, turned so that large means
alike, cut at 0 and scaled into [0, 1]; their mean is the adjacency matrix of the round.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ...core.numerics import Array, InnerProducts, cosine, z_scores

EdgeScaling = Literal["similarity", "printed"]


def raw_relations(products: InnerProducts) -> tuple[Array, Array, Array]:
    """E1, E2 and E3 before normalisation, each (clients x clients).

    E1 = (1 + cos(w_i, w_j)) / 2, E2 = | ||w_i|| - ||w_j|| |, E3 = | ||Δw_i|| - ||Δw_j|| |.
    """
    whole = products.total
    ww, uu = whole.ww[0], whole.uu[0]
    squared = np.diagonal(ww)
    angles = (1 + cosine(ww, squared[:, None], squared[None, :])) / 2
    weight_norms = np.sqrt(np.maximum(squared, 0))
    update_norms = np.sqrt(np.maximum(np.diagonal(uu), 0))
    return angles, _differences(weight_norms), _differences(update_norms)


def edge_strengths(normalised: Array, scaling: EdgeScaling) -> Array:
    """Drop negative relations and scale the others into [0, 1].

    "similarity" is tanh(max(E, 0)): strangers 0, twins towards 1. "printed" is the paper's exp(-tanh(max(E, 0))),
    which falls with similarity and gives strangers the weight 1.
    """
    strength = np.tanh(np.maximum(normalised, 0.0))
    return np.exp(-strength) if scaling == "printed" else strength


def adjacency(products: InnerProducts, scaling: EdgeScaling = "similarity") -> Array:
    """The adjacency matrix E of the round's clients: the mean of the three scaled relations."""
    angles, weight_differences, update_differences = (
        z_scores(relation, axis=None) for relation in raw_relations(products)
    )
    # A small difference means alike, so the two matrices of differences change sign.
    alike = (angles, -weight_differences, -update_differences)
    result: Array = np.mean([edge_strengths(relation, scaling) for relation in alike], axis=0)
    return result


def _differences(values: Array) -> Array:
    return np.abs(values[:, None] - values[None, :])
