"""A round counter, for rules whose random numbers depend on the round."""

from __future__ import annotations

from ..core.errors import StateError
from ..core.state_files import SavedState
from .base import Aggregator


class CountsRounds(Aggregator):
    """A rule whose `combine` increments `round`. Its random numbers depend on that count, also after a restart."""

    round: int = 0
    """The number of rounds decided so far."""

    def state(self) -> SavedState:
        """The number of rounds decided so far."""
        return SavedState({"round": self.round})

    def restore(self, state: SavedState) -> None:
        """Continue with the next round."""
        try:
            self.round = int(state.values["round"])
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"this state of {self.name} holds no number of rounds: restore it from a copy or start anew"
            ) from error
