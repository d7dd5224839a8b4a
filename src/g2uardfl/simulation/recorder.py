"""`run --record`: what the first three stages of a guard see of each round, and who attacked, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import ConfigError
from ..defense.recording import RoundRecorder
from .run import Callback

if TYPE_CHECKING:
    from .run import Simulation

RECORD_FILE = "record.npz"


class Recorder(Callback):
    """Records the rounds that the defence decides, and writes them with the ground truth when the run ends.

    Parameters
    ----------
    path
        The folder of `RECORD_FILE`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_start(self, simulation: Simulation) -> None:
        """Start recording. ConfigError for a resumed run."""
        if simulation.records:
            raise ConfigError("--record needs the whole run: leave it out when resuming, or start a new run")
        # A config that cannot be written fails now, not when a long run ends.
        self._config = simulation.config.to_toml()
        self._recorder = RoundRecorder(seed=simulation.config.seed)
        simulation.observers.append(self._recorder)

    def on_end(self, simulation: Simulation, summary: dict[str, Any]) -> None:
        """Add the ground truth and write the file."""
        record = self._recorder.record
        rounds = {one["round"]: one for one in simulation.records}
        record.add_truth({number: one["attacking"] for number, one in rounds.items()})
        decided = [rounds[number] for number in record.numbers]
        record.notes = {
            "malicious": sorted({client for one in decided for client in one["malicious"]}),
            "defense": simulation.defense.configuration(),
            "config": self._config,
            "asr": [one["asr"] for one in decided],
        }
        record.save(self.path / RECORD_FILE)
