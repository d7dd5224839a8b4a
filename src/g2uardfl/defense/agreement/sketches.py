"""Directions of updates as short unit vectors (count sketches), so that updates of many rounds can be compared.

Signs and buckets are secret, because a client that knows them can hide any update in the null space of its sketch.
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
from ...core.threads import for_each
from ...core.updates import SentUpdates, temporary_block

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

    Parameters are multiplied by random signs and summed in random buckets. The cosine of two sketches equals that of
    the two updates up to an error of about 1 / sqrt(width). The component along the global model is removed: weight
    decay pulls every client in that direction, most of all those with little to learn. Numbers are rounded to half
    precision, in which saved states hold them.
    """
    model, sketches = _sketches(global_vector[None], layouts), _sketches(updates, layouts)
    along = np.sum(sketches * model, axis=-1, keepdims=True)
    rest = sketches - along * model
    return [_unit(one, _NEGLIGIBLE).astype(np.float16).astype(np.float32) for one in rest]


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


def _unit(vectors: Array, negligible: float | Array) -> Array:
    """Vectors of norm 1, and 0 for those without an entry above `negligible`."""
    largest = np.abs(vectors).max(axis=-1, keepdims=True)
    scaled = vectors / np.where(largest > negligible, largest, np.inf)
    norms = np.linalg.norm(scaled, axis=-1, keepdims=True)
    result: Array = scaled / np.where(norms > 0, norms, 1.0)
    return result


def _sketches(updates: Tensor | SentUpdates, layouts: Sequence[SketchLayout]) -> Array:
    """(layouts x clients x layers x width): the sketches in full."""
    parts = [it for layout in layouts for it in layout]
    if updates.device.type == "cpu":
        folded = _folded_in_blocks(updates, parts)
    else:
        matrix = updates if isinstance(updates, Tensor) else updates.matrix
        folded = torch.stack([_folded_together(matrix, it) for it in parts], dim=1)
    found: Array = folded.view(len(updates), len(layouts), len(layouts[0]), -1).double().cpu().numpy()
    largest = np.abs(found).max(initial=0.0, axis=(1, 2, 3), keepdims=True)
    return _unit(found, _NEGLIGIBLE * largest).swapaxes(0, 1)


def _folded_in_blocks(updates: Tensor | SentUpdates, parts: Sequence[LayerLayout]) -> Tensor:
    """(clients x parts x width): `_folded` of a large layer for one client after the other, of small ones for many."""
    clients = len(updates)
    result = torch.empty(clients, len(parts), parts[0].order.shape[1], dtype=updates.dtype)
    measured = np.zeros((clients, len(parts), 2))

    def fold(task: tuple[int, slice]) -> None:
        number, rows = task
        result[rows, number], measured[rows, number] = _folded(updates, rows, parts[number])

    tasks = []
    for number, part in enumerate(parts):
        count = max(_BLOCK_SIZE // len(part.signs), 1)
        tasks += [(number, slice(first, min(first + count, clients))) for first in range(0, clients, count)]
    for_each(fold, tasks)
    if isinstance(updates, SentUpdates):
        layers = len({part.columns.start for part in parts})
        updates.note_measured(measured[:, :layers, 0].sum(axis=1), measured[:, :layers, 1].max(axis=1))
    return result


def _folded(updates: Tensor | SentUpdates, rows: slice, layout: LayerLayout) -> tuple[Tensor, Array]:
    """The sketches of one layer of some updates, and its squared norms and peaks, since every value is read here.

    A sketch is the sum of each class of rows, and then of the classes in their orders.
    """
    classes, width = layout.order.shape
    sums = torch.zeros(rows.stop - rows.start, classes, width, dtype=updates.dtype)
    squares, peaks = np.zeros((2, len(sums)))
    start, size = layout.columns.start, layout.columns.stop - layout.columns.start
    step = max(_BLOCK_SIZE // width, 1) * width
    for first in range(0, size, step):
        last = min(first + step, size)
        with temporary_block(updates, (rows, slice(start + first, start + last))) as block:
            values = block.numpy()
            squares += torch.linalg.vector_norm(block, dim=1).double().square_().numpy()
            peaks = np.max([peaks, values.max(axis=1), -values.min(axis=1)], axis=0)
            products = block * layout.signs[first:last]
        whole = products.shape[1] - products.shape[1] % width
        numbers = layout.classes[first // width : (first + whole) // width]
        for one, row in zip(sums, products, strict=True):
            one.index_add_(0, numbers, row[:whole].view(-1, width))
        sums[:, layout.classes[-1], : products.shape[1] - whole] += products[:, whole:]
    sketches = sums.gather(2, layout.order.expand(len(sums), -1, -1)).sum(dim=1)
    return sketches, np.stack([squares, peaks], axis=1)


def _folded_together(updates: Tensor, layout: LayerLayout) -> Tensor:
    """`_folded` of all updates in few calls. On a GPU `index_add_` would add up in an order that is not determined."""
    classes, width = layout.order.shape
    products = updates[:, layout.columns] * layout.signs
    whole = products.shape[1] // width
    members = one_hot(layout.classes[:whole], classes).to(products.dtype).T
    sums = torch.matmul(members, products[:, : whole * width].view(len(updates), whole, width))
    rest = products.shape[1] - whole * width
    sums[:, layout.classes[-1], :rest] += products[:, whole * width :]
    return sums.gather(2, layout.order.expand(len(updates), -1, -1)).sum(dim=1)
