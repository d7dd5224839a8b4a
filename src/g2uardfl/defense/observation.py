"""What the stages see of a round: numbers about the updates, never the updates themselves.

The first three stages decide on an `Observation` alone. A recorded round can therefore be decided again by the same
objects, without training (`recording.py`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy.typing as npt

from ..aggregators.base import ClientId, Round
from ..core.errors import StateError
from .stages import Evidence, Stage


@dataclass(frozen=True)
class Observation:
    """One round in numbers; clients and layers are in the order of the round."""

    clients: tuple[ClientId, ...]
    layers: tuple[str, ...]
    measured: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """Named measurements; a profile's observer says which."""
    client_axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """For each measurement its axes that run over clients (`Observer.client_axes`)."""

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """One measurement."""
        if name not in self.measured:
            raise StateError(
                f"this observation has no {name!r}: record the rounds with a profile that measures it "
                f"(it has {', '.join(sorted(self.measured)) or 'nothing'})"
            )
        return self.measured[name]

    def only(self, rows: npt.NDArray[Any]) -> Observation:
        """The same round with the clients in `rows` alone."""
        measured = dict(self.measured)
        for name in measured:
            if name not in self.client_axes:
                raise StateError(
                    f"this observation does not say which axes of {name!r} run over clients: record the rounds again"
                )
            for axis in self.client_axes[name]:
                measured[name] = measured[name].take(rows, axis=axis)
        return Observation(tuple(self.clients[row] for row in rows), self.layers, measured, self.client_axes)


class Observer(Stage):
    """Turns rounds into observations. It is the only part of a guard before elimination that sees updates."""

    client_axes: ClassVar[Mapping[str, tuple[int, ...]]]
    """The measurements this observer makes, each with its axes that run over clients."""

    def observe(self, round_: Round) -> Observation:
        """The round in numbers."""
        layers = tuple(layer.name for layer in round_.layout.layers)
        return Observation(round_.clients, layers, self.measure(round_), self.client_axes)

    def learn(self, evidence: Evidence) -> None:
        """Called with the graph that was built from the observation, once the round is decided; not in replays."""

    @abstractmethod
    def measure(self, round_: Round) -> dict[str, npt.NDArray[Any]]:
        """The measurements of `client_axes`."""
