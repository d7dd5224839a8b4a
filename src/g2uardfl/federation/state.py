"""The state of a federation across restarts of its server, in one file that is written atomically.

Rounds done, the rule's state and the global model belong together: the reputations of one round do not fit the model
of another.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..aggregators.base import Aggregator
from ..core.errors import StateError
from ..core.files import delete_unfinished, real_path
from ..core.state_files import SavedState, read_state, write_state
from .lock import WriterLock

_KIND = "federation"


@dataclass(frozen=True)
class FederationState:
    """The state of a federation after a round."""

    rounds_done: int
    rounds_kept: int
    """The rounds among them that kept the model because too few replies were usable."""
    rule: str
    """The name of the rule."""
    configuration: Mapping[str, Any]
    """The settings of the rule by name, as JSON values."""
    memory: SavedState
    """The state of the rule."""
    model: SavedState
    """The global model, in the form that the framework's part of this package writes and reads."""
    audit: str | None = None
    """The hash of the last line of the audit (default: None, there is no audit)."""

    @classmethod
    def of(
        cls, rule: Aggregator, model: SavedState, rounds_done: int, rounds_kept: int, audit: str | None = None
    ) -> FederationState:
        """The state after `rounds_done` rounds of `rule`."""
        return cls(rounds_done, rounds_kept, rule.name, _as_json(rule.configuration()), rule.state(), model, audit)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Replace the file at `path`; a crash leaves the old file or the new one."""
        values = {
            "rounds_done": self.rounds_done,
            "rounds_kept": self.rounds_kept,
            "rule": self.rule,
            "configuration": self.configuration,
            "audit": self.audit,
        }
        write_state(path, _KIND, SavedState.joined({"memory": self.memory, "model": self.model}, values))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FederationState | None:
        """The saved state, or None where there is none yet."""
        target = Path(path)
        if not target.exists():
            return None
        state = read_state(target, _KIND)
        values = state.values
        try:
            return cls(
                int(values["rounds_done"]),
                int(values["rounds_kept"]),
                str(values["rule"]),
                dict(values["configuration"]),
                state.part("memory"),
                state.part("model"),
                None if values["audit"] is None else str(values["audit"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise StateError(f"{target} is incomplete ({error}): restore it from a copy or start over") from error

    def restore(self, rule: Aggregator, path: str | os.PathLike[str] | None) -> list[str]:
        """Restore the saved state into a new `rule`; returns its settings that differ from the saved ones.

        The settings of `rule` stay as they are. `path` is where this state was loaded from, for the error message.
        """
        if rule.name != self.rule:
            raise StateError(
                f"{path} was written by {self.rule!r}, not by {rule.name!r}: choose another state_path or rule"
            )
        rule.restore(self.memory)
        before, now = self.configuration, _as_json(rule.configuration())
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        return [f"{name} {before.get(name)} -> {now.get(name)}" for name in changed]


class StateFile:
    """The file at `state_path` of the one server that writes it; a second server is rejected."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not real_path(path).parent.is_dir():
            raise StateError(f"the folder of state_path={path} does not exist: create it first")
        self.lock = WriterLock(path, "state_path")
        delete_unfinished(self.path)

    def load(self) -> FederationState | None:
        """The saved state, or None where there is none yet."""
        return FederationState.load(self.path)

    def save(self, state: FederationState) -> None:
        """Replace the saved state; a crash leaves the old one or the new one."""
        self.lock.require()
        state.save(self.path)


def _as_json(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as they are after saving and loading, so that they can be compared."""
    settings: dict[str, Any] = json.loads(json.dumps(configuration, default=str))
    return settings
