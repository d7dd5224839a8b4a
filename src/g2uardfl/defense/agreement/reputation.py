"""Benign scores: a client's reputation, from -1 to +1, which falls with each conviction and recovers slowly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from ...aggregators.base import ClientId
from ...core.numerics import Array
from ...core.state_files import SavedState
from ..stages import Mask

_MIN_PROBABILITY = 1e-6
"""Suspicions are kept this far from 0 and 1, so that their log-odds are finite."""


class Reputation:
    """The benign score of every client that took part in the last rounds; 0 for all others."""

    def __init__(self) -> None:
        self.scores: dict[ClientId, float] = {}
        self.last_rounds: dict[ClientId, int] = {}
        """The last round in which each client took part, in this order."""

    def read(self, clients: Sequence[ClientId]) -> Array:
        """The scores of `clients`."""
        return np.array([self.scores.get(client, 0.0) for client in clients])

    def write(self, clients: Sequence[ClientId], scores: Array, number: int, forget_after: int) -> None:
        """Replace the scores of the clients of round `number`; forget those who were absent from so many rounds."""
        for client, score in zip(clients, scores, strict=True):
            self.scores[client] = float(score)
            self.last_rounds.pop(client, None)
            self.last_rounds[client] = number
        absent = list(takewhile(lambda client: self.last_rounds[client] < number - forget_after, self.last_rounds))
        for client in absent:
            del self.scores[client], self.last_rounds[client]

    def state(self) -> SavedState:
        """All scores."""
        return SavedState({"scores": [[one, self.scores[one], number] for one, number in self.last_rounds.items()]})

    def restore(self, state: SavedState) -> None:
        """Continue with saved scores."""
        saved = state.values["scores"]
        self.scores = {client: float(score) for client, score, _ in saved}
        self.last_rounds = {client: int(number) for client, _, number in saved}


def flagged(suspicion: Array, scores: Array, weight: float) -> Mask:
    """Who is flagged as malicious: the probability exceeds one half, with a bad reputation as prior.

    A score below 0 adds `weight` times its distance from 0 to the log-odds of the suspicion.
    """
    bounded = np.clip(suspicion, _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
    result: Mask = np.log(bounded / (1 - bounded)) - weight * np.minimum(scores, 0) > 0
    return result


def updated_scores(scores: Array, suspicion: Array, fall: float, rise: float) -> Array:
    """Scores move towards 1 - 2 suspicion: down by the share `fall` of the distance, up by the share `rise`.

    The worse a score, the more slowly it recovers: a client convicted often needs more clean rounds.
    """
    aim = 1 - 2 * suspicion
    result: Array = scores + np.where(aim < scores, fall, rise * np.minimum(1, 1 + scores)) * (aim - scores)
    return result
