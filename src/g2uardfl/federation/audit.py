"""The audit file: verdicts and rounds as lines of JSON, only ever appended to, and read back as a federation's rounds.

Each verdict is a line with `time`, `session`, `rule`, `round`, `client`, `node`, `decision`, `reason` and, where the
rule gives them, `benign_score`, `cluster`, `distance` and `weight`. The verdicts of a round are followed by one line
without `client`, with `time`, `session`, `rule`, `round`, `note`, `events` and `stage_seconds`. Many JSON readers
do not keep integers as large as node ids exactly, so client and node are strings.

A server that is killed may leave an unfinished round, and the next one writes that round again under another `session`.
At the first line of a new session a reader therefore drops every round from that line's on.
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
from typing import Any, get_args

from ..aggregators.base import ClientId, Decision, RoundReport
from ..core.errors import StateError

DECISIONS: tuple[str, ...] = get_args(Decision)


class AuditWriter:
    """Appends the report of each round to a file."""

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

    def write(self, round_number: int, report: RoundReport, nodes: Mapping[ClientId, int]) -> None:
        """Append the verdicts and the line of one round, and wait until they are on the disk."""
        head = {
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "session": self._session,
            "rule": self._rule,
            "round": round_number,
        }
        lines: list[dict[str, Any]] = []
        for client, verdict in report.verdicts.items():
            given = {name: value for name, value in asdict(verdict).items() if value is not None}
            lines.append({**head, "client": str(client), "node": str(nodes.get(client, client)), **given})
        lines.append({**head, **report.as_dict()})
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line, default=str) + "\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())


class Audit:
    """An audit file, read back: the federation's rounds in the form of a simulated run's.

    Files without a line for each round can be read, too: their rounds have no note and no events.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.rule = "the server's rule"
        self.damaged = 0
        """Lines that could not be read."""
        self.rounds: list[dict[str, Any]] = []
        """For each round `round`, `time`, `verdicts` by client, `note` and `events`."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise StateError(f"cannot read {self.path}: {error.strerror or error}") from error
        session = None
        for line in text.splitlines():
            entry = _parsed(line)
            if entry is None:
                self.damaged += bool(line.strip())
                continue
            if entry["session"] != session:
                session = entry["session"]
                self.rounds = [record for record in self.rounds if record["round"] < entry["round"]]
            self._add(entry)
        if not self.clients:
            raise StateError(f"{self.path} holds no verdicts: is it an audit file of g2uardfl.flower?")

    def _add(self, entry: dict[str, Any]) -> None:
        self.rule = entry["rule"]
        if not self.rounds or self.rounds[-1]["round"] != entry["round"]:
            record = {"round": entry["round"], "time": entry["time"], "verdicts": {}, "note": "", "events": []}
            self.rounds.append(record)
        if "client" in entry:
            self.rounds[-1]["verdicts"][entry["client"]] = entry
        else:
            self.rounds[-1].update(note=entry["note"], events=entry["events"])

    @property
    def name(self) -> str:
        """The name of the federation on a page."""
        return f"{self.rule} in {self.path.name}"

    @property
    def clients(self) -> set[str]:
        """All clients with a verdict."""
        return {client for record in self.rounds for client in record["verdicts"]}

    def counts(self) -> Counter[str]:
        """How often each decision was made."""
        return Counter(verdict["decision"] for record in self.rounds for verdict in record["verdicts"].values())


def _parsed(line: str) -> dict[str, Any] | None:
    """The line of a verdict or of a round; None for anything else."""
    try:
        entry = json.loads(line)
        sound = isinstance(entry["round"], int) and _are_texts(entry, "time", "session", "rule")
        if "client" in entry:
            sound &= _are_texts(entry, "client", "node", "reason") and entry["decision"] in DECISIONS
        else:
            sound &= _are_texts(entry, "note") and all(
                _are_texts(event, "kind", "message") for event in entry["events"]
            )
        return entry if sound else None
    except (ValueError, KeyError, TypeError):
        return None


def _are_texts(values: Mapping[str, Any], *names: str) -> bool:
    return all(isinstance(values[name], str) for name in names)
