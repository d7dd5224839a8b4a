"""Audits, written and read back in short."""

from __future__ import annotations

import os

from g2uardfl.aggregators.base import RoundReport
from g2uardfl.federation.audit import Audit, AuditWriter


def write_audit(path: str | os.PathLike[str], *reports: RoundReport) -> Audit:
    """Write the rounds of one server, counted from 1, and read them back."""
    writer = AuditWriter(path, "g2uardfl")
    for number, report in enumerate(reports, start=1):
        writer.write(number, report, {})
    return Audit(path)


def audited_rounds(path: str | os.PathLike[str]) -> list[tuple[int, list[str]]]:
    """The number of each round of an audit, and its clients."""
    return [(record["round"], sorted(record["verdicts"])) for record in Audit(path).rounds]
