"""One run of a sweep, from its start or its latest checkpoint to its summary."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import StateError
from ..simulation.config import RunConfig
from ..simulation.directory import RunDirectory, resumed
from ..simulation.recorder import Recorder
from ..simulation.run import Callback, Record, Simulation
from .trackers import create_all


@dataclass(frozen=True)
class Job:
    """A run and its directory."""

    config: RunConfig
    """All settings, as resolved."""
    path: Path
    """The run directory."""
    record: bool = False
    """Whether to record the input of the defence (`record.npz`)."""
    time_limit: float = math.inf
    """The run ends after the first evaluated round that ends later than this, in seconds."""
    logs: tuple[str, ...] = ()
    """Trackers and callbacks, as in `g2uardfl run --log`."""

    @property
    def is_finished(self) -> bool:
        """Whether the run has a summary."""
        return (self.path / "summary.json").exists()

    def execute(self, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
        """Run the remaining rounds and return the summary. `Interrupted` if a callback has stopped the run."""
        simulation, directory = self._restored()
        callbacks = [directory, _TimeLimit(self.time_limit), *create_all(self.logs), *callbacks]
        if self.record:
            callbacks.append(Recorder(self.path))
        return simulation.run(callbacks)

    def _restored(self) -> tuple[Simulation, RunDirectory]:
        """The simulation at its latest checkpoint; a new one where there is none, or none that can be read."""
        if not self.record:  # a record needs all rounds
            try:
                return resumed(self.path), RunDirectory(self.path, resume=True)
            except StateError:
                pass
        return Simulation(self.config), RunDirectory(self.path, overwrite=True)


class EachRound(Callback):
    """Calls a function after each round; the run stops, and can be resumed, once it returns True."""

    def __init__(self, function: Callable[[Record], bool]) -> None:
        self._function = function

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """Call the function."""
        if self._function(record):
            simulation.stop_asked = True


class _TimeLimit(Callback):
    """Ends a run early when its time limit has expired."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = time.perf_counter()

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """Look at the clock."""
        if time.perf_counter() - self._began > self._seconds:
            simulation.finish_early("the time limit has expired")
