"""Client attributes: statistics of a client's weights and updates (Graph Construction, first half).

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

from ...core.layout import Layer
from ...core.numerics import Array, InnerProducts, cosine, row_quantiles, z_scores
from ...core.threads import in_parallel

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
_BLOCK = 1 << 20
"""How many numbers of the updates are looked at together."""
_GPU_BLOCK = 1 << 27


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
    global_sums = [float(global_vector[layer.columns].sum(dtype=torch.float64)) for layer in layers]
    squares = np.diagonal(products.uu, axis1=1, axis2=2)

    def of_clients(some: slice) -> Array:
        parts = (products.gg, products.gu[:, some], squares[:, some])
        return _attributes(updates[some], global_vector, global_sums, previous[some], layers, *parts)

    # A few clients at a time: what is computed on the way stays small, and a CPU's cores share the work.
    step = max(1, (_BLOCK if updates.device.type == "cpu" else _GPU_BLOCK) // updates.shape[1])
    blocks = [slice(start, start + step) for start in range(0, len(updates), step)]
    return np.concatenate(list(in_parallel(of_clients, blocks)))


def _attributes(
    updates: Tensor,
    global_vector: Tensor,
    global_sums: Sequence[float],
    previous: Sequence[Tensor],
    layers: Sequence[Layer],
    gg: Array,
    gu: Array,
    uu: Array,
) -> Array:
    """The attributes of some clients; `gg`, `gu` and `uu` are their squared lengths and products, for each layer."""
    layer_features, weight_moments, update_moments = [], [], []
    gw, ww = gg[:, None] + gu, gg[:, None] + 2 * gu + uu
    weights = updates + global_vector
    for index, layer in enumerate(layers):
        u, w = updates[:, layer.columns], weights[:, layer.columns]
        p = torch.stack([row[layer.columns] for row in previous])
        update_moments.append(_moments(u, squares=uu[index]))
        # Near convergence clients differ in the last digits of their weights: sums and lengths come from the parts.
        weight_moments.append(_moments(w, total=global_sums[index] + update_moments[-1].total, squares=ww[index]))
        layer_features += [
            _arrange(weight_moments[-1], row_quantiles(w, _QUANTILES)),
            _arrange(update_moments[-1], row_quantiles(u, _QUANTILES)),
            cosine(gw[index], ww[index], gg[index])[:, None],
            cosine(_row_products(u, p), uu[index], _row_products(p, p))[:, None],
            measures(torch.sub(u, p, out=p)),
        ]
    model_features = [
        _arrange(_join(weight_moments), row_quantiles(weights, _QUANTILES)),
        _arrange(_join(update_moments), row_quantiles(updates, _QUANTILES)),
        cosine(gw.sum(axis=0), ww.sum(axis=0), gg.sum())[:, None],
    ]
    return np.concatenate(model_features + layer_features, axis=1)


def attribute_names(layers: Sequence[str]) -> list[str]:
    """What each column of `client_attributes` is, in words."""

    def of(vector: str, where: str) -> list[str]:
        return [f"{measure} of {vector}{where}" for measure in MEASURES]

    names = [*of("the weights", ""), *of("the update", ""), "angle between the weights and the global model"]
    for layer in layers:
        where = f" in layer {layer}"
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
    # Where the mean dominates, the difference of two large numbers is worthless: look again, at the centred rows.
    for row in np.flatnonzero(~(spread > 0.5 * squares)):
        exact = rows[row].double()
        spread[row] = float((exact - exact.mean()).square().sum())
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
    return _float64((first * second).sum(dim=1))


def _float64(values: Tensor) -> Array:
    return values.cpu().numpy().astype(np.float64)
