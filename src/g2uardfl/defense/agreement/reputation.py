"""Reputations: how many of a client's last submissions were malicious, and how many benign."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from ...aggregators.base import ClientId
from ...core.numerics import Array
from ...core.state_files import SavedState

_DECAY = 0.9
"""The weight of a submission relative to the client's next one: about the last ten count."""
PRIOR = 2.0
"""The weight of the prior for a new client, in submissions."""


class Reputation:
    """Counts of malicious and benign submissions of every client that took part in the last rounds."""

    def __init__(self) -> None:
        self.counts: dict[ClientId, tuple[float, float]] = {}
        """The decayed counts of malicious and benign submissions."""
        self.last_rounds: dict[ClientId, int] = {}
        """The last round in which each client took part, in this order."""

    def read(self, clients: Sequence[ClientId]) -> Array:
        """(clients x 2): the counts, 0 for newcomers."""
        return np.array([self.counts.get(client, (0.0, 0.0)) for client in clients]).reshape(-1, 2)

    def add(self, clients: Sequence[ClientId], suspicion: Array, number: int, forget_after: int) -> None:
        """Count the submissions of round `number`, and forget clients that were absent for `forget_after` rounds."""
        for client, share in zip(clients, suspicion, strict=True):
            malicious, benign = self.counts.get(client, (0.0, 0.0))
            self.counts[client] = (_DECAY * malicious + float(share), _DECAY * benign + 1 - float(share))
            self.last_rounds.pop(client, None)
            self.last_rounds[client] = number
        absent = list(takewhile(lambda client: self.last_rounds[client] < number - forget_after, self.last_rounds))
        for client in absent:
            del self.counts[client], self.last_rounds[client]

    def state(self) -> SavedState:
        """All counts."""
        return SavedState({"counts": [[one, *self.counts[one], number] for one, number in self.last_rounds.items()]})

    def restore(self, state: SavedState) -> None:
        """Continue with saved counts."""
        saved = state.values["counts"]
        self.counts = {client: (float(malicious), float(benign)) for client, malicious, benign, _ in saved}
        self.last_rounds = {client: int(number) for client, _, _, number in saved}


def benign_scores(counts: Array) -> Array:
    """From -1 (all of a client's last submissions were malicious) to +1; 0 for a newcomer.

    >>> benign_scores(np.array([[0.0, 0.0], [3.0, 1.0]]))
    array([ 0.        , -0.33333333])
    """
    result: Array = (counts[:, 1] - counts[:, 0]) / (counts.sum(axis=1) + PRIOR)
    return result
