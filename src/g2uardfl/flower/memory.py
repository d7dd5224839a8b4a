"""What a strategy keeps over restarts, in one file: rounds done, the rule's memory and the global model.

All three belong together: scores of one round beside the model of another would be neither.
"""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord

from ..aggregators.base import Aggregator
from ..core.errors import StateError
from ..core.state_files import SavedState, read_state, write_state

_KIND = "federation"
_RULE, _MODEL = "rule.", "model."


@dataclass(frozen=True)
class Memory:
    """The state of a federation after a round."""

    rounds_done: int
    rounds_kept: int
    """How many of them left the model as it was for want of replies."""
    rule: str
    rule_state: SavedState
    model: ArrayRecord

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything whole or not at all."""
        values = {
            "rounds_done": self.rounds_done,
            "rounds_kept": self.rounds_kept,
            "rule": self.rule,
            "rule_values": self.rule_state.values,
            "model": [[name, array.dtype, list(array.shape), array.stype] for name, array in self.model.items()],
        }
        arrays = {f"{_RULE}{name}": array for name, array in self.rule_state.arrays.items()}
        for index, array in enumerate(self.model.values()):
            arrays[f"{_MODEL}{index}"] = np.frombuffer(array.data, np.uint8)
        write_state(path, _KIND, SavedState(values, arrays))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Memory | None:
        """What was saved, or None where nothing was yet; what a killed server had half written is cleared away."""
        target = Path(path)
        if not target.absolute().parent.is_dir():
            raise StateError(f"state_path={target} is in a folder that does not exist: make it first")
        for half_written in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
            half_written.unlink(missing_ok=True)
        if not target.exists():
            return None
        state = read_state(target, _KIND)
        values, arrays = state.values, state.arrays
        try:
            model = ArrayRecord()
            for index, (name, dtype, shape, stype) in enumerate(values["model"]):
                model[name] = Array(dtype, tuple(shape), stype, arrays[f"{_MODEL}{index}"].tobytes())
            own = {name[len(_RULE) :]: array for name, array in arrays.items() if name.startswith(_RULE)}
            rule_state = SavedState(values["rule_values"], own)
            return Memory(values["rounds_done"], values["rounds_kept"], values["rule"], rule_state, model)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"{target} is incomplete ({error}): restore it from a copy or start anew") from error

    def give_back(self, rule: Aggregator, path: str | os.PathLike[str]) -> list[str]:
        """Put the rule's memory into a fresh `rule` and say which settings are others than before.

        Settings are the operator's, memory is the file's: what was set anew holds from now on.
        """
        if rule.name != self.rule:
            raise StateError(
                f"{path} was written by {self.rule!r}, not by {rule.name!r}: choose another state_path or rule"
            )
        before, now = self.rule_state.values.get("config", {}), rule.state().values.get("config", {})
        values = {**self.rule_state.values, "config": now} if now else self.rule_state.values
        rule.restore(SavedState(values, self.rule_state.arrays))
        return [f"{name} {before.get(name)} -> {value}" for name, value in now.items() if before.get(name) != value]
