"""The log line of a round: how many clients got each decision and why, and what the rule did to the model."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ..aggregators.base import ClientId, RoundReport, Verdict
from ..core.text import escaped, shortened
from .audit import DECISIONS

_NAMED_CLIENTS = 2
"""Clients that a line names for each decision; the audit has them all."""
_LONGEST_REASON = 110
"""Characters of a reason in the line, so that a line with all decisions stays below a thousand."""


def level(report: RoundReport) -> int:
    """The highest level of the round's events; INFO without events."""
    return max((event.level for event in report.events), default=logging.INFO)


def line(rule: str, round_number: int, report: RoundReport, seconds: float) -> str:
    """One line about a round.

    >>> from g2uardfl.aggregators.base import Event, Verdict
    >>> kept = Event("model_kept", "Every client was rejected: the global model was kept.")
    >>> report = RoundReport({7: Verdict("malicious", "Too similar to 8.")}, kept.message, (kept,))
    >>> print(line("g2uardfl", 3, report, 0.5).replace(" [", chr(10) + "["))
    g2uardfl round 3: 0 accepted, 0 held out, 1 malicious (7: Too similar to 8), 0 invalid
    [0.50 s] model_kept: Every client was rejected: the global model was kept.
    """
    parts = []
    for decision in DECISIONS:
        about = {client: verdict for client, verdict in report.verdicts.items() if verdict.decision == decision}
        reasons = "" if decision == "accepted" or not about else f" ({_reasons(about)})"
        parts.append(f"{len(about)} {decision.replace('_', ' ')}{reasons}")
    kinds = ", ".join(event.kind for event in report.events)
    remark = ": ".join(text for text in (kinds, report.note) if text)
    return escaped(f"{rule} round {round_number}: {', '.join(parts)} [{seconds:.2f} s] {remark}").rstrip()


def _reasons(verdicts: Mapping[ClientId, Verdict]) -> str:
    named = list(verdicts.items())[:_NAMED_CLIENTS]
    shown = [f"{client}: {shortened(verdict.reason.rstrip('.'), _LONGEST_REASON)}" for client, verdict in named]
    rest = len(verdicts) - len(named)
    return "; ".join(shown) + (f"; and {rest} more" if rest else "")
