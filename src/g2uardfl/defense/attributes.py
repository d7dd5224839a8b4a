"""Client attributes: what a client's weights look like, in a few numbers (Graph Construction, first half).

Nine measures of one vector (Table "Measures of statistical characteristics", without the cosine) and the cosine of
two give 19 model-wise features and 29 features for each layer:

- model-wise, X1: the nine measures of the weights w and of the update Δw, and cos(w, g);
- layer-wise, X2: the same for each layer, cos(Δw, Δw_previous), and the nine measures of Δw - Δw_previous.

Δw_previous is the client's update of the round before. A client that was absent then has none, and the last step of
the global model, G^r - G^{r-1}, stands in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..numerics import Array, InnerProducts, cosine, row_quantiles, z_scores
from ..weights import Layer

MEASURES = (
    "norm",
    "minimum",
    "maximum",
    "mean",
    "standard deviation",
    "sum",
    "median",
    "5th percentile",
    "95th percentile",
)
_QUANTILES = (0.5, 0.05, 0.95)


def measures(rows: Tensor) -> Array:
    """The nine measures of each row, in the order of `MEASURES`: (clients x n) -> (clients x 9).

    The standard deviation is the population's, and percentiles interpolate linearly, as NumPy does.

    >>> dict(zip(MEASURES, measures(torch.tensor([[3.0, 4.0]]))[0].tolist()))["norm"]
    5.0
    """
    return _arrange(_moments(rows), row_quantiles(rows, _QUANTILES))


def client_attributes(
    updates: Tensor,
    global_vector: Tensor,
    previous: Sequence[Tensor],
    layers: Sequence[Layer],
    products: InnerProducts,
) -> Array:
    """The raw attributes of each client: (clients x (19 + 29 layers)), columns as in `attribute_names`.

    Parameters
    ----------
    updates
        Δw, one row a client.
    global_vector
        g, the flattened global model the clients started from.
    previous
        For each client its Δw_previous as a flat vector (zeros in the very first round).
    layers
        The model's layers and their columns.
    products
        The inner products of this round, from which lengths and angles are taken.
    """
    layer_features, weight_moments, update_moments = [], [], []
    for index, layer in enumerate(layers):
        u = updates[:, layer.columns]
        w = u + global_vector[layer.columns]
        p = torch.stack([row[layer.columns] for row in previous])
        gg, gw = products.gg[index], products.gw[index]
        ww, uu = np.diagonal(products.ww[index]), np.diagonal(products.uu[index])
        update_moments.append(_moments(u, squares=uu))
        # Near convergence clients differ in the last digits of their weights: sums and lengths come from the parts.
        global_sum = float(global_vector[layer.columns].sum(dtype=torch.float64))
        weight_moments.append(_moments(w, total=global_sum + update_moments[-1].total, squares=ww))
        up, pp = _row_products(u, p), _row_products(p, p)
        layer_features += [
            _arrange(weight_moments[-1], row_quantiles(w, _QUANTILES)),
            _arrange(update_moments[-1], row_quantiles(u, _QUANTILES)),
            cosine(gw, ww, gg)[:, None],
            cosine(up, uu, pp)[:, None],
            measures(u - p),
        ]
    whole = products.total()
    model_features = [
        _arrange(_join(weight_moments), row_quantiles(updates + global_vector, _QUANTILES)),
        _arrange(_join(update_moments), row_quantiles(updates, _QUANTILES)),
        cosine(whole.gw[0], np.diagonal(whole.ww[0]), whole.gg[0])[:, None],
    ]
    return np.concatenate(model_features + layer_features, axis=1)


def attribute_names(layers: Sequence[Layer]) -> list[str]:
    """What each column of `client_attributes` is, in words."""

    def of(vector: str, where: str) -> list[str]:
        return [f"{measure} of {vector}{where}" for measure in MEASURES]

    names = [*of("the weights", ""), *of("the update", ""), "angle between the weights and the global model"]
    for layer in layers:
        where = f" in layer {layer.name}"
        names += of("the weights", where) + of("the update", where)
        names += [f"angle between the weights and the global model{where}"]
        names += [f"angle between the update and the previous one{where}"]
        names += of("the change of the update since the previous one", where)
    return names


def normalised_attributes(raw: Array) -> Array:
    """Z-scores of each column over the clients of the round; a column that does not vary becomes 0."""
    return z_scores(raw, axis=0)


@dataclass(frozen=True)
class _Moments:
    """What joins over layers without a second look: for each row its sum, sum of squares, spread and extremes."""

    count: int
    total: Array
    squares: Array
    spread: Array
    """The sum of squared differences from the mean."""
    low: Array
    high: Array


def _moments(rows: Tensor, total: Array | None = None, squares: Array | None = None) -> _Moments:
    count = rows.shape[1]
    if total is None:
        total = _float64(rows.sum(dim=1))
    if squares is None:
        squares = _float64(torch.linalg.vector_norm(rows, dim=1)) ** 2
    squares = np.maximum(squares, 0)
    mean = total / count
    spread = squares - count * mean**2
    # Where the mean dominates, the difference of two large numbers is worthless: look again at the centred rows.
    doubtful = np.flatnonzero(~(spread > 0.5 * squares))
    if len(doubtful):
        centred = rows[doubtful] - torch.from_numpy(mean[doubtful]).to(rows)[:, None]
        spread[doubtful] = _float64(torch.linalg.vector_norm(centred, dim=1)) ** 2
    return _Moments(count, total, squares, spread, _float64(rows.amin(dim=1)), _float64(rows.amax(dim=1)))


def _join(parts: Sequence[_Moments]) -> _Moments:
    """The moments of concatenated rows from those of the parts (spread by the parallel variance formula)."""
    count = sum(part.count for part in parts)
    total = np.sum([part.total for part in parts], axis=0)
    between = np.sum([part.count * (part.total / part.count - total / count) ** 2 for part in parts], axis=0)
    return _Moments(
        count,
        total,
        np.sum([part.squares for part in parts], axis=0),
        np.sum([part.spread for part in parts], axis=0) + between,
        np.min([part.low for part in parts], axis=0),
        np.max([part.high for part in parts], axis=0),
    )


def _arrange(moments: _Moments, quantiles: Array) -> Array:
    columns = [
        np.sqrt(moments.squares),
        moments.low,
        moments.high,
        moments.total / moments.count,
        np.sqrt(np.maximum(moments.spread, 0) / moments.count),
        moments.total,
    ]
    return np.column_stack([*columns, quantiles])


def _row_products(first: Tensor, second: Tensor) -> Array:
    return _float64(torch.linalg.vecdot(first, second, dim=1))


def _float64(values: Tensor) -> Array:
    return values.cpu().numpy().astype(np.float64)
