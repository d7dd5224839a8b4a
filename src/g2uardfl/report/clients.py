"""The clients of a run or a federation, ordered by wrong decisions and rejections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .subjects import REFUSED, Subject, attacking


@dataclass
class ClientRow:
    """One client over all rounds."""

    client: str
    malicious: bool
    decisions: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    """Attacks that were accepted and honest submissions that were rejected."""
    attacks: int = 0
    round: int = 0
    """The last round with a verdict."""
    last: Mapping[str, Any] = field(default_factory=dict)
    """The last verdict."""

    @property
    def submissions(self) -> int:
        """How often the client took part."""
        return self.decisions.total()

    @property
    def rejected(self) -> int:
        """How often it was rejected."""
        return sum(self.decisions[decision] for decision in REFUSED)

    @property
    def trouble(self) -> tuple[int, int, int]:
        """What orders the rows: wrong decisions, then rejections, then unusable messages."""
        return (self.wrong, self.rejected, self.decisions["invalid"])


def client_rows(subject: Subject) -> list[ClientRow]:
    """The rows of the table; among equals, attackers and small numbers come first."""
    rows = {client: ClientRow(client, client in subject.attackers) for client in subject.clients}
    for record in subject.rounds:
        attacked = attacking(record)
        for client, verdict in record["verdicts"].items():
            row, decision = rows[client], verdict["decision"]
            row.decisions[decision] += 1
            row.round, row.last = record["round"], verdict
            row.attacks += client in attacked
            if subject.is_simulated and decision != "invalid":
                row.wrong += (client in attacked) != (decision in REFUSED)
    return sorted(rows.values(), key=lambda row: row.trouble, reverse=True)
