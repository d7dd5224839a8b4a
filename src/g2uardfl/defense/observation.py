"""What a detector can see of a round: a few thousand numbers about the updates, never the updates themselves.

Everything the defence decides follows from an `Observation`, so that recorded rounds can be decided again later, with
other settings, without training anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..aggregators.base import ClientId, Round
from ..core.layout import Layer
from ..core.numerics import Array, InnerProducts, inner_products
from .agreement.agreement import Sketches, directions, random_signs
from .agreement.examination import update_shapes
from .paper.attributes import LastRound, client_attributes

SKETCH_WIDTH = 256
_COLUMNS = 1 << 20
"""How many columns are centred at a time."""


@dataclass(frozen=True)
class Observation:
    """One round, in numbers. Layers are the model's, in the order of its layout."""

    clients: tuple[ClientId, ...]
    layers: tuple[str, ...]
    attributes: Array
    """(clients x features), raw: `client_attributes`."""
    products: InnerProducts
    """Of the updates with each other and with the global model, for each layer."""
    centred: Array
    """(layers x clients x clients): of the updates less their coordinate-wise median, which is what all share."""
    along_step: Array
    """(layers x clients): of the updates with the last step of the global model."""
    step_squared: Array
    """(layers,): of that step with itself."""
    shapes: Array
    """(clients x 2): `update_shapes`."""
    directions: Sketches
    """(clients x layers x width): short unit vectors that stand for the updates, to compare them over rounds."""


class Observer:
    """Turns rounds into observations; remembers the last round, which the next is compared with.

    Parameters
    ----------
    seed
        Decides the sketches: only those of one seed can be compared.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._signs: Tensor | None = None
        self._last = LastRound()

    def observe(self, round_: Round) -> Observation:
        """The round in numbers."""
        layers = round_.layout.layers
        updates, global_vector = round_.updates, round_.global_vector
        columns = [layer.columns for layer in layers]
        products = inner_products(updates, global_vector, columns)
        with_step = inner_products(updates, self._last.step(round_), columns)
        observation = Observation(
            clients=round_.clients,
            layers=tuple(layer.name for layer in layers),
            attributes=client_attributes(updates, global_vector, self._last.updates_of(round_), layers, products),
            products=products,
            centred=centred_products(updates, layers),
            along_step=with_step.gu,
            step_squared=with_step.gg,
            shapes=update_shapes(updates),
            directions=self._directions(round_),
        )
        self._last.remember(round_)
        return observation

    def _directions(self, round_: Round) -> Sketches:
        if self._signs is None:
            self._signs = random_signs(len(round_.global_vector), self.seed).to(round_.global_vector)
        return directions(round_.updates, round_.global_vector, self._signs, round_.layout.layers, SKETCH_WIDTH)


def centred_products(updates: Tensor, layers: tuple[Layer, ...]) -> Array:
    """For each layer the inner products of the updates after their coordinate-wise median was taken away.

    Where everybody's update has a large part in common (weight decay on an embedding), only the rest says who is alike.
    """
    result = np.zeros((len(layers), len(updates), len(updates)))
    for index, layer in enumerate(layers):
        for start in range(layer.columns.start, layer.columns.stop, _COLUMNS):
            part = updates[:, start : min(start + _COLUMNS, layer.columns.stop)].double()
            ordered = part.sort(dim=0).values
            middle = (ordered[(len(part) - 1) // 2] + ordered[len(part) // 2]) / 2
            part = part - middle
            result[index] += (part @ part.T).cpu().numpy()
    return result
