"""Directions of updates as short unit vectors (count sketches), so that updates of many rounds can be compared.

Whoever knows the signs and buckets of a sketch can hide any update in its null space, so that they are secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ...core.layout import Layer
from ...core.numerics import Array
from ...core.updates import SentUpdates, each_row

Sketches = npt.NDArray[np.float32]

_NEGLIGIBLE = 1e-12
"""A layer's sketch below this share of the largest entry of all layers is rounding noise and counts as zero; so does
what remains of a unit vector below this size."""
_CLASSES = 16
"""How many permutations of the buckets a layer has. Twice as many hide the buckets better, and a sketch takes up to a
tenth longer."""
_BLOCK_SIZE = 1 << 17
"""The number of entries that are multiplied by their signs at once on a CPU: 512 KiB in float32, so that the products
stay in the core's cache."""


@dataclass(frozen=True)
class LayerLayout:
    """Where the entries of a layer are in its sketch. A row is `width` consecutive entries; the last may be shorter."""

    columns: slice
    """The layer's columns of the update."""
    signs: Tensor
    """The sign of each entry, as int8."""
    classes: Tensor
    """The class of each row."""
    order: Tensor
    """(classes x width): a permutation for each class. Number b of the sketch is the sum of entry `order[c, b]` of each
    row, where c is the row's class."""

    def to(self, device: torch.device) -> LayerLayout:
        """The same on another device."""
        return LayerLayout(self.columns, self.signs.to(device), self.classes.to(device), self.order.to(device))


SketchLayout = tuple[LayerLayout, ...]


def sketch_layout(layers: Sequence[Layer], width: int, secret: int, renewals: int = 0) -> SketchLayout:
    """The signs and buckets of sketches, drawn from a secret and the number of its renewals.

    Only sketches of the same layout are comparable.
    """
    generator = np.random.default_rng([secret, renewals])

    def layout_of(layer: Layer) -> LayerLayout:
        size = layer.columns.stop - layer.columns.start
        bits = np.unpackbits(np.frombuffer(generator.bytes(-(-size // 8)), dtype=np.uint8), count=size)
        rows = -(-size // width)
        classes = generator.integers(min(_CLASSES, rows), size=rows)
        order = np.tile(np.arange(width), (min(_CLASSES, rows), 1))
        generator.permuted(order, axis=1, out=order)
        return LayerLayout(
            layer.columns, torch.from_numpy(2 * bits.view(np.int8) - 1), *map(torch.from_numpy, (classes, order))
        )

    return tuple(layout_of(layer) for layer in layers)


def directions(updates: Tensor | SentUpdates, global_vector: Tensor, layouts: Sequence[SketchLayout]) -> list[Sketches]:
    """For each layout (clients x layers x width): a unit vector for each layer of each update, zero for a zero update.

    Parameters are multiplied by random signs and summed in random buckets. The cosine of two sketches is that of the
    two updates up to an error of about 1 / sqrt(width). The component along the global model is removed: weight decay
    pulls every client that way, most of all those with nothing to learn.
    """

    def sketch(row: Tensor) -> Array:
        folded = torch.stack([torch.stack([_folded(row[it.columns], it) for it in layout]) for layout in layouts])
        found: Array = folded.double().cpu().numpy()
        return _unit(found, _NEGLIGIBLE * np.abs(found).max(initial=0.0))

    model = sketch(global_vector)
    sketches = np.stack(each_row(updates, sketch), axis=1)
    along = np.sum(sketches * model[:, None], axis=-1, keepdims=True)
    rest = sketches - along * model[:, None]
    return [_unit(one, _NEGLIGIBLE).astype(np.float32) for one in rest]


def cosines_with_others(sketches: Sketches) -> Array:
    """For each of at least two clients its mean cosine with all others, over all layers.

    >>> cosines_with_others(np.array([[[1, 0]], [[1, 0]], [[0, 1]]], dtype=np.float32))
    array([0.5, 0.5, 0. ])
    """
    exact = sketches.astype(np.float64)
    with_all = np.mean(np.sum(exact * exact.sum(axis=0), axis=-1), axis=-1)
    alone = np.mean(np.sum(exact**2, axis=-1), axis=-1)
    result: Array = (with_all - alone) / (len(sketches) - 1)
    return result


def mean_cosine(sketches: Sketches) -> float:
    """The mean cosine over all pairs of clients and all layers; 0 for fewer than two clients.

    >>> mean_cosine(np.array([[[1, 0]], [[0, 1]]], dtype=np.float32))
    0.0
    """
    return float(cosines_with_others(sketches).mean()) if len(sketches) > 1 else 0.0


def _unit(vectors: Array, negligible: float) -> Array:
    """Vectors of norm 1, and 0 for those without an entry above `negligible`."""
    largest = np.abs(vectors).max(axis=-1, keepdims=True)
    scaled = vectors / np.where(largest > negligible, largest, np.inf)
    norms = np.linalg.norm(scaled, axis=-1, keepdims=True)
    result: Array = scaled / np.where(norms > 0, norms, 1.0)
    return result


def _folded(values: Tensor, layout: LayerLayout) -> Tensor:
    """The sketch of one layer: the sum of each class of rows, and then of the classes in their own orders."""
    classes, width = layout.order.shape
    sums = values.new_zeros(classes, width)
    whole = len(values) // width
    rows = max(_BLOCK_SIZE // width, 1) if values.is_cpu else max(whole, 1)
    for start in range(0, whole, rows):
        stop = min(start + rows, whole)
        entries = slice(start * width, stop * width)
        products = (values[entries] * layout.signs[entries]).view(-1, width)
        if values.is_cpu:
            sums.index_add_(0, layout.classes[start:stop], products)
        else:  # There the order in which `index_add_` adds up is not determined.
            sums = one_hot(layout.classes[:whole], classes).to(values.dtype).T @ products
    rest = slice(whole * width, len(values))
    sums[layout.classes[-1], : len(values) - whole * width] += values[rest] * layout.signs[rest]
    return sums.gather(1, layout.order).sum(dim=0)
