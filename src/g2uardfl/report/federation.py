"""The part of a page about a real federation, from its audit: who attacked, and how successfully, is unknown there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..federation.audit import DECISIONS, Audit
from .events import mark_events
from .parts import table

_COLOURS = {"accepted": "#1b6e3c", "held_out": "#c98a1b", "malicious": "#b3261e", "invalid": "#8a8f98"}


def summary_table(audits: Sequence[Audit]) -> str:
    """The share of each decision in all verdicts."""
    head = ("federation", "rounds", "clients", *(f"{decision.replace('_', ' ')} %" for decision in DECISIONS))
    rows = []
    for audit in audits:
        counts = audit.counts()
        shares = [f"{100 * counts[decision] / counts.total():.1f}" for decision in DECISIONS]
        rows.append([audit.name, f"{len(audit.rounds)}", f"{len(audit.clients)}", *shares])
    damaged = sum(audit.damaged for audit in audits)
    note = "Shares of all verdicts."
    note += f" {damaged} damaged lines of the audit were ignored." if damaged else ""
    return table(head, rows, " ".join([note, *(f"{audit.path.name}: {audit.chain}." for audit in audits)]))


def decisions(audit: Audit) -> Any:
    """The number of clients with each decision, by round."""
    import plotly.graph_objects as go

    figure = go.Figure()
    rounds = [record["round"] for record in audit.rounds]
    for decision in DECISIONS:
        figure.add_bar(
            x=rounds,
            y=[sum(verdict["decision"] == decision for verdict in r["verdicts"].values()) for r in audit.rounds],
            name=decision.replace("_", " "),
            marker={"color": _COLOURS[decision]},
        )
    mark_events(figure, audit.rounds, 0, max(len(record["verdicts"]) for record in audit.rounds))
    figure.update_layout(
        barmode="stack", xaxis_title="round", yaxis_title="clients", legend={"orientation": "h", "y": -0.2}
    )
    return figure
