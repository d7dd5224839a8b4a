"""The submissions of the last rounds. A submission is one client's update in one round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ...aggregators.base import ClientId
from ...core.state_files import SavedState
from ..stages import Mask
from .sketches import Sketches


@dataclass
class Window:
    """The submissions of the last rounds, oldest first; those of the current round come last.

    Rounds are kept as a whole: as many of the last as fit into `limit` submissions, and always the current one.
    """

    limit: int
    clients: list[ClientId] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    sketches: Sketches = field(default_factory=lambda: np.zeros((0, 0, 0), dtype=np.float32))
    accepted: Mask = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """Which submissions were accepted."""

    def add(self, number: int, clients: Sequence[ClientId], sketches: Sketches) -> None:
        """Add round `number`, and drop the oldest rounds that no longer fit."""
        self.clients += clients
        self.rounds += [number] * len(clients)
        self.sketches = np.concatenate([self.sketches, sketches]) if len(self.sketches) else sketches.copy()
        self.accepted = np.concatenate([self.accepted, np.zeros(len(clients), dtype=bool)])
        surplus = len(self.clients) - max(self.limit, len(clients))
        if surplus > 0:
            oldest_kept = self.rounds[surplus - 1] + 1
            self.keep(np.array(self.rounds) >= oldest_kept)

    def note_accepted(self, accepted: Mask) -> None:
        """Note which of the last submissions were accepted."""
        self.accepted[-len(accepted) :] = accepted

    def keep(self, kept: Mask) -> None:
        """Drop all other submissions."""
        if kept.all():
            return
        rows = np.flatnonzero(kept)
        self.clients, self.rounds = [self.clients[row] for row in rows], [self.rounds[row] for row in rows]
        self.sketches, self.accepted = self.sketches[rows], self.accepted[rows]

    def client_numbers(self) -> npt.NDArray[np.int64]:
        """For each submission the number of its client, counted from 0."""
        numbers: dict[ClientId, int] = {}
        return np.array([numbers.setdefault(client, len(numbers)) for client in self.clients], dtype=np.int64)

    def state(self) -> SavedState:
        """All submissions."""
        clients = list(self.clients)
        values = {"clients": clients, "rounds": list(self.rounds), "accepted": self.accepted.tolist()}
        return SavedState(values, {"sketches": self.sketches})

    def restore(self, state: SavedState) -> None:
        """Continue with saved submissions."""
        self.clients, self.rounds = list(state.values["clients"]), list(state.values["rounds"])
        self.accepted = np.array(state.values["accepted"], dtype=bool)
        self.sketches = state.arrays["sketches"]
        if not len(self.clients) == len(self.rounds) == len(self.accepted) == len(self.sketches):
            raise ValueError("the submissions of the window differ in number")
