"""Client attributes: statistics of a client's weights and updates (Graph Construction, first half).

Nine measures of a vector (Table "Measures of statistical characteristics", without the cosine) and the cosine
similarity of two vectors give 19 features of the model and 29 features of each layer:

- model-wise, X1: the nine measures of the weights w and of the update Δw, and cos(w, g);
- layer-wise, X2: the same for each layer, cos(Δw, Δw_previous), and the nine measures of Δw - Δw_previous.

Δw_previous is the client's update of the previous round. For a client that was absent, the last step of the global
model, G^r - G^{r-1}, replaces it.
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
"""The quantiles among `MEASURES`, in the same order."""
_BLOCK_SIZE = 1 << 20
"""The number of values of the updates in one task on a CPU: 4 MiB in float32. Smaller blocks keep intermediate results
small and share the work evenly among threads; larger ones have less overhead."""
_PRODUCT_COLUMNS = 1 << 16
"""The number of columns that are converted to float64 at once on a CPU: 512 KiB, which stay in the core's cache."""
_GPU_BLOCK_SIZE = 1 << 27
"""The number of values of the updates in one task on a GPU: 512 MiB in float32. Larger blocks need fewer kernel
launches and more memory."""


def measures(rows: Tensor) -> Array:
    """The nine measures of each row, in the order of `MEASURES`: (clients x n) -> (clients x 9).

    Standard deviation and percentiles are NumPy's defaults: the population's deviation, and linear interpolation.

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
    """The raw attributes of each client: (clients x (19 + 29 layers)), with the columns of `attribute_names`.

    Parameters
    ----------
    updates
        Δw, with one row for each client.
    global_vector
        g, the flat global model at the start of the round.
    previous
        For each client Δw_previous as a flat vector (zeros in the first round).
    layers
        The layers of the model.
    products
        The inner products of this round, which supply norms and cosines.
    """
    global_sums = [float(global_vector[layer.columns].sum(dtype=torch.float64)) for layer in layers]
    squares = np.diagonal(products.uu, axis1=1, axis2=2)

    def of_block(clients: slice) -> Array:
        parts = (products.gg, products.gu[:, clients], squares[:, clients])
        return _attributes(updates[clients], global_vector, global_sums, previous[clients], layers, *parts)

    step = max(1, (_BLOCK_SIZE if updates.device.type == "cpu" else _GPU_BLOCK_SIZE) // updates.shape[1])
    blocks = [slice(start, start + step) for start in range(0, len(updates), step)]
    return np.concatenate(list(in_parallel(of_block, blocks)))


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
    """The attributes of a block of clients; `gg`, `gu` and `uu` are squared norms and inner products for each layer."""
    layer_features, weight_moments, update_moments = [], [], []
    gw, ww = gg[:, None] + gu, gg[:, None] + 2 * gu + uu
    weights = updates + global_vector
    for index, layer in enumerate(layers):
        u, w = updates[:, layer.columns], weights[:, layer.columns]
        p = torch.stack([row[layer.columns] for row in previous])
        update_moments.append(_moments(u, squares=uu[index]))
        # Near convergence the weights of clients differ only in their last digits. Sums and norms that are computed
        # from global model and update keep these digits; sums over float32 weights would lose them.
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
    """A description of each column of `client_attributes`."""

    def of(vector: str, where: str) -> list[str]:
        return [f"{measure} of {vector}{where}" for measure in MEASURES]

    names = [*of("the weights", ""), *of("the update", ""), "cosine similarity of the weights and the global model"]
    for layer in layers:
        where = f" in layer {layer}"
        names += of("the weights", where) + of("the update", where)
        names += [f"cosine similarity of the weights and the global model{where}"]
        names += [f"cosine similarity of the update and the previous one{where}"]
        names += of("the change of the update since the previous one", where)
    return names


def normalised_attributes(raw: Array) -> Array:
    """Z-scores of each column over the clients of the round; 0 in a constant column."""
    return z_scores(raw, axis=0)


@dataclass(frozen=True)
class _Moments:
    """Statistics of each row that can be combined over layers without reading the values again."""

    count: int
    """The number of columns."""
    total: Array
    """The sum."""
    squares: Array
    """The sum of squares."""
    squared_deviations: Array
    """The sum of squared deviations from the mean."""
    minimum: Array
    maximum: Array


def _moments(rows: Tensor, total: Array | None = None, squares: Array | None = None) -> _Moments:
    """The moments of each row; `total` and `squares` replace sums that are known more precisely."""
    count = rows.shape[1]
    if total is None:
        total = _float64(rows.sum(dim=1))
    if squares is None:
        squares = _float64(torch.linalg.vector_norm(rows, dim=1)) ** 2
    squares = np.maximum(squares, 0)
    mean = total / count
    deviations = squares - count * mean**2
    # Where the mean dominates, this difference of two large numbers loses digits, so it is computed from centred rows.
    for row in np.flatnonzero(~(deviations > 0.5 * squares)):
        exact = rows[row].double()
        deviations[row] = float((exact - exact.mean()).square().sum())
    return _Moments(count, total, squares, deviations, _float64(rows.amin(dim=1)), _float64(rows.amax(dim=1)))


def _join(parts: Sequence[_Moments]) -> _Moments:
    """The moments of concatenated rows from the moments of the parts, by the parallel variance formula."""
    count = sum(part.count for part in parts)
    total = np.sum([part.total for part in parts], axis=0)
    between = np.sum([part.count * (part.total / part.count - total / count) ** 2 for part in parts], axis=0)
    return _Moments(
        count,
        total,
        np.sum([part.squares for part in parts], axis=0),
        np.sum([part.squared_deviations for part in parts], axis=0) + between,
        np.min([part.minimum for part in parts], axis=0),
        np.max([part.maximum for part in parts], axis=0),
    )


def _arrange(moments: _Moments, quantiles: Array) -> Array:
    """The nine measures in the order of `MEASURES`."""
    columns = [
        np.sqrt(moments.squares),
        moments.minimum,
        moments.maximum,
        moments.total / moments.count,
        np.sqrt(np.maximum(moments.squared_deviations, 0) / moments.count),
        moments.total,
    ]
    return np.column_stack([*columns, quantiles])


def _row_products(first: Tensor, second: Tensor) -> Array:
    """The inner product of each pair of rows, in float64.

    In float32 the cosine of a layer with few parameters, such as a bias of a single number, would be 1 plus rounding
    errors, and z-scores would enlarge these to a full-sized attribute.
    """
    if first.device.type != "cpu":
        return _float64((first.double() * second.double()).sum(dim=1))
    products = np.zeros(len(first))
    for row, one, other in zip(range(len(first)), first, second, strict=True):
        for start in range(0, len(one), _PRODUCT_COLUMNS):
            columns = slice(start, start + _PRODUCT_COLUMNS)
            products[row] += torch.dot(one[columns].double(), other[columns].double())
    return products


def _float64(values: Tensor) -> Array:
    return values.cpu().numpy().astype(np.float64)
