"""The audit: verdicts and rounds as lines of JSON in a hash chain, written by one server, and read back as rounds.

Each verdict is a line with `schema`, `previous`, `time`, `session`, `rule`, `round`, `client`, `node`, `decision`,
`reason` and, where the rule gives them, `benign_score`, `cluster`, `distance`, `suspicion` and `weight`. The verdicts
of a round are followed by one line without `client`, with `note`, `events`, `stage_seconds` and, where the rule builds
a graph of the clients, its strongest `edges`. Many JSON readers do not keep integers as large as node ids exactly, so
client and node are strings.

`previous` is the hash of the line before, also across files and sessions (`audit_files.py`), so that a line that is
later changed, removed or moved is detected. Nothing that was written completely is ever deleted.

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
from ..core.errors import ConfigError, StateError
from ..core.files import real_path
from .audit_files import BEGINNING, Line, line_hash, lines_of, repair, rotate
from .lock import WriterLock

DECISIONS: tuple[str, ...] = get_args(Decision)
SCHEMA = 1
"""The version of the lines, `schema` in each of them."""
MAX_BYTES = 256 * 2**20
"""The size at which a file is rotated: about 600,000 verdicts, which most tools can open."""
_MAX_UNWRITTEN = 64 * 2**20
"""Bytes of lines that are kept in memory while the disk is full."""


class AuditWriter:
    """Appends the report of each round to a file, which no other process may write at the same time.

    Lines that cannot be written, because the disk is full, are written with those of the next round.

    Parameters
    ----------
    path
        The file. It is renamed to `path.1`, `path.2`, ... when it would become larger than `max_bytes`.
    rule
        The name of the rule.
    max_bytes
        The size of a file, unless a single round needs more (default: 256 MiB).
    follows
        The hash of the last line that the server is known to have written. If the file lacks that line, the chain
        continues from it, so that the gap is detected (default: None, not known).

    Attributes
    ----------
    head : str
        The hash of the last line.
    lacks_lines : bool
        Whether the line that `follows` names is missing.
    """

    def __init__(
        self, path: str | os.PathLike[str], rule: str, max_bytes: int = MAX_BYTES, follows: str | None = None
    ) -> None:
        if max_bytes < 1:
            raise ConfigError(f"audit_max_bytes={max_bytes!r} is not allowed: it must be at least 1")
        self.path = real_path(path)
        self.lock = WriterLock(path, "audit_path")
        self._rule, self._max_bytes = rule, max_bytes
        self._session = uuid.uuid4().hex[:12]
        self._unwritten = b""
        self._size_before: int | None = None
        """The size of the file before a write that failed."""
        try:
            self.head = repair(self.path)
            self.lacks_lines = follows not in (None, self.head) and all(
                line_hash(line.content) != follows for line in lines_of(self.path)
            )
        except OSError as error:
            raise StateError(f"cannot write {self.path}: {error.strerror or error}; choose another file") from error
        if self.lacks_lines:
            self.head = str(follows)

    def write(self, round_number: int, report: RoundReport, nodes: Mapping[ClientId, int]) -> None:
        """Append the verdicts and the line of one round, and wait until they are on the disk."""
        self.lock.require()
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
        if len(self._unwritten) > _MAX_UNWRITTEN:
            self._unwritten = b""  # The chain reveals the gap.
        for entry in lines:
            content = json.dumps({"schema": SCHEMA, "previous": self.head, **entry}, default=str).encode()
            self.head = line_hash(content)
            self._unwritten += content + b"\n"
        try:
            self._append()
        except OSError as error:
            raise StateError(f"cannot write {self.path}: {error.strerror or error}; free disk space") from error

    def _append(self) -> None:
        size = self.path.stat().st_size if self.path.exists() else 0
        if self._size_before is not None and size > self._size_before:
            os.truncate(self.path, self._size_before)
            size = self._size_before
        if size and size + len(self._unwritten) > self._max_bytes:
            rotate(self.path)
            size = 0
        self._size_before = size
        with self.path.open("ab") as file:
            file.write(self._unwritten)
            file.flush()
            os.fsync(file.fileno())
        self._size_before, self._unwritten = None, b""


class Audit:
    """An audit, read back from its files: the federation's rounds in the form of a simulated run's.

    Rounds without a line of their own can be read, too: they have no note, no events and no seconds.

    Attributes
    ----------
    rounds : list
        For each round `round`, `time`, `verdicts` by client, `note`, `events`, `stage_seconds` and `edges`.
    damaged : int
        Lines that could not be read.
    lines : int
        All lines.
    head : str
        The hash of the last line.
    broken_at : str or None
        Where the hash chain breaks first, and why; None if it is whole.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.rule = "the server's rule"
        self.damaged = self.lines = 0
        self.head = BEGINNING
        self.broken_at: str | None = None
        self.rounds: list[dict[str, Any]] = []
        session = None
        try:
            for line in lines_of(real_path(path)):
                content = _decoded(line.content)
                self._follow(line, content)
                entry = _checked(content)
                if entry is None:
                    self.damaged += bool(line.content.strip())
                    continue
                if entry["session"] != session:
                    session = entry["session"]
                    self.rounds = [record for record in self.rounds if record["round"] < entry["round"]]
                self._add(entry)
        except OSError as error:
            raise StateError(f"cannot read {self.path}: {error.strerror or error}") from error
        if not self.clients:
            raise StateError(f"{self.path} holds no verdicts: is it an audit file of g2uardfl.flower?")

    def _follow(self, line: Line, content: Any) -> None:
        """Check that a line follows the one before it."""
        values = content if isinstance(content, dict) else {}
        schema, previous = values.get("schema", SCHEMA), values.get("previous")
        if schema != SCHEMA:
            raise StateError(f"{line} was written by another version of g2uardfl (schema {schema!r})")
        if previous != self.head and self.broken_at is None:
            if previous is None:
                reason = "has no hash: it is damaged, or no audit line of this version"
            elif self.lines:
                reason = "does not follow the line before it: one of them was changed, or lines were removed or moved"
            else:
                reason = "is not the beginning: earlier lines or files are missing"
            self.broken_at = f"{line} {reason}"
        self.head = line_hash(line.content)
        self.lines += 1

    def _add(self, entry: dict[str, Any]) -> None:
        self.rule = entry["rule"]
        if not self.rounds or self.rounds[-1]["round"] != entry["round"]:
            empty = {"verdicts": {}, "note": "", "events": [], "stage_seconds": {}, "edges": []}
            self.rounds.append({"round": entry["round"], "time": entry["time"], **empty})
        if "client" in entry:
            self.rounds[-1]["verdicts"][entry["client"]] = entry
        else:
            later = {"stage_seconds": entry.get("stage_seconds", {}), "edges": entry.get("edges", [])}
            self.rounds[-1].update(note=entry["note"], events=entry["events"], **later)

    @property
    def chain(self) -> str:
        """Whether the hash chain is whole, in a sentence."""
        if self.broken_at is not None:
            return f"the hash chain is BROKEN: {self.broken_at}"
        return f"the hash chain of {self.lines} lines is whole; the last hash is {self.head}"

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


def _decoded(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _checked(entry: Any) -> dict[str, Any] | None:
    """The content of a verdict's or a round's line; None for anything else."""
    try:
        sound = isinstance(entry["round"], int) and _are_texts(entry, "time", "session", "rule")
        if "client" in entry:
            sound &= _are_texts(entry, "client", "node", "reason") and entry["decision"] in DECISIONS
        else:
            sound &= _are_texts(entry, "note") and all(
                _are_texts(event, "kind", "message") for event in entry["events"]
            )
            sound &= all(isinstance(value, int | float) for value in entry.get("stage_seconds", {}).values())
            sound &= all(_is_edge(*edge) for edge in entry.get("edges", []))
        return entry if sound else None
    except (AttributeError, KeyError, TypeError):
        return None


def _is_edge(first: Any, second: Any, weight: Any) -> bool:
    return isinstance(first, str) and isinstance(second, str) and isinstance(weight, int | float)


def _are_texts(values: Mapping[str, Any], *names: str) -> bool:
    return all(isinstance(values[name], str) for name in names)
