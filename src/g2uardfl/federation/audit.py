"""The audit file: one line of JSON a verdict, only ever appended to, and read back as a record of the federation.

A line has `time`, `session`, `rule`, `round`, `client`, `node`, `decision`, `reason` and, where the rule gives them,
`benign_score`, `cluster`, `distance` and `weight`. Node ids go beyond what many JSON readers keep exactly, so client
and node are strings.

A server that is killed may leave a round that it did not finish; the next one writes that round again under another
`session`. A reader therefore forgets, at the first line of a new session, every round from that line's on.
"""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..aggregators.base import ClientId, Verdict
from ..core.errors import StateError

DECISIONS = ("accepted", "held_out", "malicious", "invalid")


class AuditWriter:
    """Appends the verdicts of each round to a file."""

    def __init__(self, path: str | os.PathLike[str], rule: str) -> None:
        self.path = Path(path)
        self._rule = rule
        self._session = uuid.uuid4().hex[:12]
        try:
            with self.path.open("ab+") as file:
                file.seek(max(0, file.tell() - 1))
                if file.read() not in (b"", b"\n"):
                    # The last writer was killed in the middle of a line.
                    file.write(b"\n")
        except OSError as error:
            raise StateError(f"cannot write {self.path}: {error.strerror or error}; choose another file") from error

    def write(self, round_number: int, verdicts: Mapping[ClientId, Verdict], nodes: Mapping[ClientId, int]) -> None:
        """Append the verdicts of one round and wait until they are on the disk."""
        time = datetime.now(timezone.utc).isoformat(timespec="seconds")
        lines = []
        for client, verdict in verdicts.items():
            line = {
                "time": time,
                "session": self._session,
                "rule": self._rule,
                "round": round_number,
                "client": str(client),
                "node": str(nodes.get(client, client)),
                **{name: value for name, value in asdict(verdict).items() if value is not None},
            }
            lines.append(json.dumps(line) + "\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(lines))
            file.flush()
            os.fsync(file.fileno())


class Audit:
    """An audit file, read back: the federation's rounds in the shape of a simulated run's."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.rule = "the server's rule"
        self.damaged = 0
        """How many lines could not be read."""
        self.rounds: list[dict[str, Any]] = []
        """For each round `round`, `time` and `verdicts` by client."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise StateError(f"cannot read {self.path}: {error.strerror or error}") from error
        session = None
        for line in text.splitlines():
            verdict = _parsed(line)
            if verdict is None:
                self.damaged += bool(line.strip())
                continue
            if verdict["session"] != session:
                session = verdict["session"]
                self.rounds = [record for record in self.rounds if record["round"] < verdict["round"]]
            self._add(verdict)
        if not self.rounds:
            raise StateError(f"{self.path} holds no verdicts: is it an audit file of g2uardfl.flower?")

    def _add(self, verdict: dict[str, Any]) -> None:
        self.rule = verdict["rule"]
        if not self.rounds or self.rounds[-1]["round"] != verdict["round"]:
            self.rounds.append({"round": verdict["round"], "time": verdict["time"], "verdicts": {}})
        self.rounds[-1]["verdicts"][verdict["client"]] = verdict

    @property
    def name(self) -> str:
        """What the federation is called on a page."""
        return f"{self.rule} in {self.path.name}"

    @property
    def clients(self) -> set[str]:
        """Everybody a verdict was passed on."""
        return {client for record in self.rounds for client in record["verdicts"]}

    def counts(self) -> Counter[str]:
        """How often each decision was taken."""
        return Counter(verdict["decision"] for record in self.rounds for verdict in record["verdicts"].values())


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        verdict = json.loads(line)
        sound = isinstance(verdict["round"], int) and verdict["decision"] in DECISIONS
        texts = all(isinstance(verdict[name], str) for name in ("time", "session", "rule", "client", "node", "reason"))
    except (ValueError, KeyError, TypeError):
        return None
    return verdict if sound and texts else None
