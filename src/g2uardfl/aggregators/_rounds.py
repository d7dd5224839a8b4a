"""The state of rules that draw random numbers: a secret and the number of the round."""

from __future__ import annotations

from typing import Any

from ..core.errors import StateError
from ..core.randomness import secret_of
from ..core.state_files import SavedState
from .base import Aggregator


class CountsRounds(Aggregator):
    """A rule whose `combine` increments `round`.

    Its random numbers depend on that count and on a secret: the setting `seed`, or a random number if `seed` is None.
    Both are part of the saved state.
    """

    round: int = 0
    """The number of rounds decided so far."""

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self._secret = secret_of(getattr(self.settings, "seed", 0))

    def state(self) -> SavedState:
        """The number of rounds decided so far, and the secret."""
        return SavedState({"round": self.round, "secret": self._secret})

    def restore(self, state: SavedState) -> None:
        """Continue with the next round."""
        try:
            self.round, self._secret = int(state.values["round"]), int(state.values["secret"])
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"this state of {self.name} lacks the number of rounds or the secret: "
                "restore it from a copy or start over"
            ) from error
