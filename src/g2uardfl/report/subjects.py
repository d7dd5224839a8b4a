"""What a page is about: a simulated run, whose attackers are known, or the audit of a real federation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from ..federation.audit import Audit
from ..simulation.directory import FinishedRun
from ..simulation.naming import run_name

Record = Mapping[str, Any]
"""A round of a simulated run or of an audit; those of older runs lack `events`, `note`, `stage_seconds` and `edges`."""
Run = FinishedRun | Audit
REFUSED = ("malicious", "held_out")
"""The decisions that reject an update because of its content."""


class Subject:
    """The rounds of a run or an audit, and the clients in them.

    Attributes
    ----------
    name
        What it is called on the page.
    key
        Unique on the page.
    is_simulated
        Whether the attackers are known.
    """

    def __init__(self, run: Run, key: str, name: str = "") -> None:
        self.run, self.key = run, key
        self.rounds: list[dict[str, Any]] = run.rounds
        self.is_simulated = isinstance(run, FinishedRun)
        self.name = name or (run.name if isinstance(run, Audit) else run_name(run.config))

    @cached_property
    def attackers(self) -> set[str]:
        """The clients that are known to be malicious in at least one round."""
        return self.run.attackers if isinstance(self.run, FinishedRun) else set()

    @cached_property
    def clients(self) -> list[str]:
        """All clients with a verdict: attackers first, then by number or name."""
        found = {client for record in self.rounds for client in record["verdicts"]}
        return sorted(found, key=lambda client: (client not in self.attackers, _natural(client)))

    @cached_property
    def has_scores(self) -> bool:
        """Whether the rule keeps a reputation of clients."""
        return any("benign_score" in verdict for record in self.rounds for verdict in record["verdicts"].values())

    @property
    def first_round(self) -> int:
        """The number of the first round."""
        return int(self.rounds[0]["round"]) if self.rounds else 1

    @property
    def last_round(self) -> int:
        """The number of the last round."""
        return int(self.rounds[-1]["round"]) if self.rounds else 1


def rounds_with(kind: str, rounds: Sequence[Record]) -> list[int]:
    """The rounds with an event of this kind."""
    return [record["round"] for record in rounds if any(event["kind"] == kind for event in record.get("events", ()))]


def attacking(record: Record) -> set[str]:
    """The clients that attacked in a round of a simulated run; nobody where that is unknown."""
    return {str(client) for client in record.get("attacking", record.get("malicious", ()))}


def words(name: str) -> str:
    """A name of a decision, event or setting as words.

    >>> words("held_out")
    'held out'
    """
    return name.replace("_", " ")


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Orders numbers in texts by their value."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.findall(r"\d+|\D+", text)]
