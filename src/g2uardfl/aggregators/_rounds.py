"""A count of rounds, for rules that draw something new in each."""

from __future__ import annotations

from ..core.errors import StateError
from ..core.state_files import SavedState
from .base import Aggregator


class CountsRounds(Aggregator):
    """A rule whose `combine` adds 1 to `round`: what it draws follows from that number, also after a restart."""

    round: int = 0
    """Rounds decided so far."""

    def state(self) -> SavedState:
        """The number of rounds."""
        return SavedState({"round": self.round})

    def restore(self, state: SavedState) -> None:
        """Go on with the next round."""
        try:
            self.round = int(state.values["round"])
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"this state of {self.name} does not count its rounds: restore it or start anew"
            ) from error
