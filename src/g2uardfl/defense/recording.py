"""Record once, replay in seconds: the rounds of a federation in numbers, kept in one small file.

`Recording` wraps any rule and notes what it was given; a `Record` is read back and decided again by another rule or
with other settings. What is true (who attacked) is added where it is known, in a simulation.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..aggregators.base import AggregationResult, Aggregator, ClientId, Outcome, Round
from ..core.errors import StateError
from ..core.layout import ModelLayout, Weights
from ..core.numerics import InnerProducts
from ..core.state_files import SavedState, read_state, write_state
from .observation import Observation, Observer

_KIND = "record"
_LARGEST = float(np.finfo(np.float32).max)
_ARRAYS = ("attributes", "centred", "along_step", "step_squared", "shapes", "directions", "gg", "gu", "uu")


@dataclass
class Record:
    """Observations of consecutive rounds and, where known, which of their clients attacked."""

    rounds: list[Observation] = field(default_factory=list)
    attacking: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    """For each round and client; empty where the truth is not known."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Where the record comes from."""

    def tell(self, attackers: Mapping[int, Collection[Any]]) -> None:
        """Add the truth: round number, from 1, -> the clients that attacked in it."""
        self.attacking = [
            np.array([client in attackers[number] for client in observation.clients])
            for number, observation in enumerate(self.rounds, start=1)
        ]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file; measured numbers in single precision, directions in half."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        for number, observation in enumerate(self.rounds):
            for name in _ARRAYS:
                source = observation.products if name in ("gg", "gu", "uu") else observation
                values = getattr(source, name)
                kind = np.float16 if name == "directions" else np.float32
                arrays[f"{number}.{name}"] = np.clip(values, -_LARGEST, _LARGEST).astype(kind)
        document = {
            "clients": [list(observation.clients) for observation in self.rounds],
            "layers": list(self.rounds[0].layers) if self.rounds else [],
            "attacking": [[bool(one) for one in truth] for truth in self.attacking],
            "notes": self.notes,
        }
        write_state(path, _KIND, SavedState(document, arrays))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Record:
        """Read what `save` wrote."""
        state = read_state(path, _KIND)
        values = state.values
        try:
            rounds = []
            for number, clients in enumerate(values["clients"]):
                found = {name: state.arrays[f"{number}.{name}"].astype(np.float64) for name in _ARRAYS}
                products = InnerProducts(found.pop("gg"), found.pop("gu"), found.pop("uu"))
                sketches = found.pop("directions").astype(np.float32)
                rounds.append(
                    Observation(
                        tuple(clients), tuple(values["layers"]), products=products, directions=sketches, **found
                    )
                )
            truth = [np.array(one, dtype=bool) for one in values["attacking"]]
            return Record(rounds, truth, dict(values["notes"]))
        except (KeyError, TypeError) as error:
            raise StateError(f"{os.fspath(path)} is an incomplete record ({error}): record it anew") from error


class Recording(Aggregator):
    """Any rule, with its rounds written down; what it decides does not change."""

    name = "recording"
    summary = "notes what another rule sees"

    def __init__(self, inner: Aggregator, seed: int = 0) -> None:
        super().__init__()
        self.inner = inner
        self.record = Record()
        self._observer = Observer(seed)
        self._combine = inner.combine
        inner.combine = self.combine  # type: ignore[method-assign]

    def aggregate(
        self,
        global_weights: Weights,
        client_weights: Mapping[ClientId, Weights],
        num_examples: Mapping[ClientId, int] | None = None,
    ) -> AggregationResult:
        """As inside: sample counts and the server's own data included."""
        return self.inner.aggregate(global_weights, client_weights, num_examples)

    def combine(self, round_: Round) -> Outcome:
        """As inside."""
        # A copy: were the matrix of updates made here, the rule would sum it in another order, and round differently.
        self.record.rounds.append(self._observer.observe(replace(round_, sent=copy(round_.sent))))
        return self._combine(round_)

    def accept_layout(self, layout: ModelLayout) -> None:
        """As inside."""
        self.inner.accept_layout(layout)

    def state(self) -> SavedState:
        """As inside."""
        return self.inner.state()

    def restore(self, state: SavedState) -> None:
        """As inside."""
        self.inner.restore(state)
