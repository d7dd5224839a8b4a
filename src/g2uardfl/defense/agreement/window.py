"""The submissions of the last rounds and the edges between them. A submission is one client's update in one round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ...aggregators.base import ClientId
from ...core.numerics import Array
from ...core.state_files import SavedState
from ..stages import Edges, Mask
from .similarity import new_edges
from .sketches import Sketches

HISTORY = 5
"""The number of rounds over which usual values are measured: attackers may be a majority of a single round."""
_SMALL = 2048
"""The edges of more submissions than this are kept in single precision, since they take most of the memory."""
_NONE: Sketches = np.zeros((0, 0, 0), dtype=np.float32)


@dataclass
class Window:
    """The submissions of the last rounds, oldest first; those of the current round come last.

    Rounds are kept as a whole: as many of the last as fit into `limit` submissions, and always the current one. An edge
    is computed once, when the later of its two submissions arrives.
    """

    limit: int
    clients: list[ClientId] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    sketches: Sketches = field(default_factory=lambda: _NONE)
    edges: Edges = field(default_factory=lambda: np.zeros((0, 0)))
    """(submissions x submissions): see `similarity.new_edges`."""
    repetition: Array = field(default_factory=lambda: np.zeros((0, 2)))
    """(submissions x 2): see `similarity.new_edges`."""
    accepted: Mask = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """Which submissions were accepted."""
    renewed: Sketches = field(default_factory=lambda: _NONE)
    """Sketches of the last submissions under the next secret; empty unless a renewal is under way."""
    renewals: int = 0
    """The number of the secret of `sketches`."""

    def add(
        self,
        number: int,
        clients: Sequence[ClientId],
        sketches: Sketches,
        renewed: Sketches | None = None,
        renewals: int = 0,
    ) -> None:
        """Add round `number`, and drop the oldest rounds that no longer fit.

        Sketches of different secrets cannot be compared. If this round's are the first under the next secret, earlier
        submissions continue with their renewed sketches, and those without are dropped.
        """
        if renewals != self.renewals:
            kept = len(self.renewed) if renewals == self.renewals + 1 else 0
            self.keep(np.arange(len(self.clients)) >= len(self.clients) - kept)
            self.sketches, self.renewed, self.renewals = self.renewed, _NONE, renewals
        surplus = len(self.clients) + len(clients) - max(self.limit, len(clients))
        if surplus > 0:
            self.keep(np.array(self.rounds) > self.rounds[surplus - 1])
        if renewed is None or not renewed.size:
            self.renewed = _NONE
        else:
            self.renewed = np.concatenate([self.renewed, renewed]) if len(self.renewed) else renewed.copy()
        self.clients += clients
        self.rounds += [number] * len(clients)
        self.sketches = np.concatenate([self.sketches, sketches]) if len(self.sketches) else sketches.copy()
        self.accepted = np.concatenate([self.accepted, np.zeros(len(clients), dtype=bool)])
        before, count = len(self.edges), len(clients)
        edges, repetition = new_edges(self.sketches, self.client_numbers(), self.rounds)
        size = before + count
        grown: Edges = np.empty((size, size), dtype=np.float64 if size <= _SMALL else np.float32)
        grown[:before, :before] = self.edges
        grown[before:], grown[:, before:] = edges, edges.T
        self.edges = grown
        self.repetition = np.concatenate([self.repetition, repetition])

    def note_accepted(self, accepted: Mask) -> None:
        """Note which of the last submissions were accepted."""
        self.accepted[-len(accepted) :] = accepted

    def keep(self, kept: Mask) -> None:
        """Drop all other submissions."""
        if kept.all():
            return
        rows = np.flatnonzero(kept)
        self.clients, self.rounds = [self.clients[row] for row in rows], [self.rounds[row] for row in rows]
        self.renewed = self.renewed[kept[len(kept) - len(self.renewed) :]]
        # The last ones are not copied, since there may be millions of edges.
        last = slice(len(kept) - len(rows), None)
        some, pairs = (last, (last, last)) if kept[last].all() else (rows, np.ix_(rows, rows))
        self.sketches, self.accepted, self.edges = self.sketches[some], self.accepted[some], self.edges[pairs]
        self.repetition = self.repetition[some]

    def client_numbers(self) -> npt.NDArray[np.int64]:
        """For each submission the number of its client, counted from 0."""
        numbers: dict[ClientId, int] = {}
        return np.array([numbers.setdefault(client, len(numbers)) for client in self.clients], dtype=np.int64)

    def state(self) -> SavedState:
        """All submissions."""
        values = {
            "clients": list(self.clients),
            "rounds": list(self.rounds),
            "accepted": self.accepted.tolist(),
            "renewals": self.renewals,
        }
        arrays = {"edges": self.edges, "repetition": self.repetition}
        # Half precision holds all sketches exactly, see `sketches.directions`.
        halves = {"sketches": self.sketches.astype(np.float16), "renewed": self.renewed.astype(np.float16)}
        return SavedState(values, arrays | halves)

    def restore(self, state: SavedState) -> None:
        """Continue with saved submissions."""
        self.clients, self.rounds = list(state.values["clients"]), list(state.values["rounds"])
        self.accepted = np.array(state.values["accepted"], dtype=bool)
        self.sketches, self.renewed = (state.arrays[name].astype(np.float32) for name in ("sketches", "renewed"))
        self.edges, self.repetition = state.arrays["edges"], state.arrays["repetition"]
        self.renewals = int(state.values["renewals"])
        parts = (self.clients, self.rounds, self.accepted, self.sketches, self.edges, self.repetition)
        lengths = {len(one) for one in parts}
        if len(self.renewed) > len(self.clients) or len(lengths) != 1:
            raise ValueError("the submissions of the window differ in number")
