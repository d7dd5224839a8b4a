"""Directions of updates as short unit vectors (count sketches), so that updates of many rounds can be compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.layout import Layer
from ...core.numerics import Array
from ...core.updates import SentUpdates, each_row

Sketches = npt.NDArray[np.float32]

_NEGLIGIBLE_LAYER = 1e-12
"""A layer's sketch below this share of the largest entry of all layers is rounding noise and counts as zero."""


def random_signs(size: int, seed: int) -> Tensor:
    """The signs by which `directions` multiplies the parameters; only sketches with the same signs are comparable."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(0, 2, (size,), generator=generator, dtype=torch.int8) * 2 - 1).float()


def directions(
    updates: Tensor | SentUpdates, global_vector: Tensor, signs: Tensor, layers: Sequence[Layer], width: int
) -> Sketches:
    """(clients x layers x width): a unit vector for each layer of each update, zero where the update is zero.

    Parameters are multiplied by random signs, and entries `width` apart are summed. The cosine of two sketches is that
    of the two updates up to an error of about 1 / sqrt(width). The component along the global model is removed: weight
    decay pulls every client that way, most of all those with nothing to learn.
    """

    def sketch(row: Tensor) -> Array:
        folded = torch.stack([_folded(row[it.columns], signs[it.columns], width) for it in layers])
        return _unit(folded.double().cpu().numpy())

    model = sketch(global_vector)
    sketches = np.stack(each_row(updates, sketch))
    along = np.sum(sketches * model, axis=-1, keepdims=True)
    return _unit(sketches - along * model).astype(np.float32)


def mean_cosine(sketches: Sketches) -> float:
    """The mean cosine over all pairs of clients and all layers; 0 for fewer than two clients.

    >>> mean_cosine(np.array([[[1, 0]], [[0, 1]]], dtype=np.float32))
    0.0
    """
    count = len(sketches)
    if count < 2:
        return 0.0
    together = float(np.mean(np.sum(np.sum(sketches, axis=0, dtype=np.float64) ** 2, axis=-1)))
    alone = float(np.mean(np.sum(np.sum(sketches.astype(np.float64) ** 2, axis=-1), axis=0)))
    return (together - alone) / (count * (count - 1))


def _unit(vectors: Array) -> Array:
    largest = np.abs(vectors).max(axis=-1, keepdims=True)
    scaled = vectors / np.where(largest > _NEGLIGIBLE_LAYER * largest.max(initial=0.0), largest, np.inf)
    norms = np.linalg.norm(scaled, axis=-1, keepdims=True)
    result: Array = scaled / np.where(norms > 0, norms, 1.0)
    return result


def _folded(values: Tensor, signs: Tensor, width: int) -> Tensor:
    whole = len(values) // width * width
    result = (values[:whole].view(-1, width) * signs[:whole].view(-1, width)).sum(dim=0)
    result[: len(values) - whole] += values[whole:] * signs[whole:]
    return result
