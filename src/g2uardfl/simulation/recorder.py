"""`run --record`: what the defence saw of each round, and who attacked, in one small file of the run directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import ConfigError
from ..defense.recording import Recording
from .run import Callback

if TYPE_CHECKING:
    from .run import Simulation

RECORD_FILE = "record.npz"


class Recorder(Callback):
    """Notes the defended rounds of a run and writes them with the truth when the run ends."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_start(self, simulation: Simulation) -> None:
        """Wrap the defence."""
        if simulation.records:
            raise ConfigError("--record notes a run from its first round on: it cannot begin with a resumed one")
        # Whatever this needs is found missing now, and not when a long run ends.
        self._config = simulation.config.to_toml()
        self._recording = Recording(simulation.defense)
        simulation.defense = self._recording

    def on_end(self, simulation: Simulation, summary: dict[str, Any]) -> None:
        """Add the truth and write the file."""
        record, first = self._recording.record, simulation.config.defend_from
        rounds = [one for one in simulation.records if one["round"] >= first]
        record.tell({one["round"] - first + 1: one["attacking"] for one in rounds})
        record.notes = {
            "malicious": sorted({client for one in rounds for client in one["malicious"]}),
            "config": self._config,
            "asr": [one["asr"] for one in rounds],
        }
        record.save(self.path / RECORD_FILE)
