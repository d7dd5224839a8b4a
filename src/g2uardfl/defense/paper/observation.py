"""What the paper's profile measures of a round: client attributes and inner products of updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy.typing as npt
import torch
from torch import Tensor

from ...aggregators.base import ClientId, Round
from ...core.numerics import inner_products
from ...core.state_files import SavedState
from ..observation import Observer
from .attributes import client_attributes


@dataclass
class LastRound:
    """The round before, with which a round's attributes are compared."""

    global_vector: Tensor | None = None
    updates: Tensor | None = None
    rows: dict[ClientId, int] = field(default_factory=dict)
    """Client -> its row in `updates`."""

    def updates_of(self, round_: Round) -> list[Tensor]:
        """Each client's update of the round before, or the last step of the global model where it was absent."""
        now = round_.global_vector
        step = torch.zeros_like(now) if self.global_vector is None else now - self.global_vector.to(now.device)
        if self.updates is None:
            return [step] * len(round_.clients)
        last = self.updates.to(step.device)
        return [last[self.rows[client]] if client in self.rows else step for client in round_.clients]

    def remember(self, round_: Round) -> None:
        """Replace the last round."""
        self.global_vector, self.updates = round_.global_vector, round_.updates
        self.rows = {client: row for row, client in enumerate(round_.clients)}


class PaperObserver(Observer):
    """Measures raw attributes and, for each layer, inner products; remembers the last round's updates."""

    client_axes: ClassVar[Mapping[str, tuple[int, ...]]] = {"attributes": (0,), "gg": (), "gu": (1,), "uu": (1, 2)}
    """`attributes` are (clients x features), raw; `gg`, `gu` and `uu` the fields of `InnerProducts`."""

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self._last = LastRound()

    def measure(self, round_: Round) -> dict[str, npt.NDArray[Any]]:
        """Attributes and inner products."""
        layers = round_.layout.layers
        products = inner_products(round_.updates, round_.global_vector, [layer.columns for layer in layers])
        previous = self._last.updates_of(round_)
        attributes = client_attributes(round_.updates, round_.global_vector, previous, layers, products)
        self._last.remember(round_)
        return {"attributes": attributes, "gg": products.gg, "gu": products.gu, "uu": products.uu}

    def state(self) -> SavedState:
        """The last round."""
        last = self._last
        if last.global_vector is None or last.updates is None:
            return SavedState({"clients": []})
        arrays = {"global": last.global_vector.cpu().numpy(), "updates": last.updates.cpu().numpy()}
        clients = list(last.rows)
        return SavedState({"clients": clients}, arrays)

    def restore(self, state: SavedState) -> None:
        """Continue from a saved last round."""
        self._last = LastRound(rows={client: row for row, client in enumerate(state.values["clients"])})
        if self._last.rows:
            self._last.global_vector = torch.from_numpy(state.arrays["global"])
            self._last.updates = torch.from_numpy(state.arrays["updates"])
