"""Reputation over the rounds: one line for each client, or the range of all where there are many."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from .charts import Axis, Figure, Key, Panel
from .subjects import Subject

_MAX_LINES = 40
"""With more clients than this the figure shows quantiles."""


def reputation(subject: Subject) -> Figure:
    """The benign scores of all clients."""
    histories = _histories(subject)
    scores = [score for history in histories.values() for score in history.values()]
    first, last = subject.first_round, subject.last_round
    panel = Panel(Axis.of_rounds(first, last), Axis.over(scores, least=0.1), "benign score", 720, role="scores")
    groups: dict[str, list[str]] = {"honest": [], "malicious": []} if subject.is_simulated else {"all": []}
    for client in histories:
        groups[_group(subject, client)].append(client)
    legend = []
    for name, members in groups.items():
        style = "of-malicious" if name == "malicious" else "of-honest"
        label = {"honest": "honest clients", "malicious": "malicious clients", "all": "clients"}[name]
        if not members:
            continue
        legend.append(Key(label, style))
        if len(histories) <= _MAX_LINES:
            for client in members:
                panel.line(sorted(histories[client].items()), f"thin {style}", f"client {client}")
        else:
            _quantiles(panel, [histories[client] for client in members], first, last, style)
    caption = "Choose a client in the table to highlight its curve."
    if len(histories) > _MAX_LINES:
        caption = (
            "Median (line), the middle half (dark) and 90 % (light) of the clients' latest scores in each round. "
            + caption
        )
    # The script draws the curve of a chosen client.
    panel.readout = {
        "x": [panel.px(first), panel.px(last), first, last],
        "y": [panel.py(panel.y.low), panel.py(panel.y.high), panel.y.low, panel.y.high],
    }
    return Figure("reputation", "Reputation", [panel], legend, caption, 1, "wide")


def _group(subject: Subject, client: str) -> str:
    if not subject.is_simulated:
        return "all"
    return "malicious" if client in subject.attackers else "honest"


def _histories(subject: Subject) -> dict[str, dict[int, float]]:
    histories: dict[str, dict[int, float]] = defaultdict(dict)
    for record in subject.rounds:
        for client, verdict in record["verdicts"].items():
            if "benign_score" in verdict:
                histories[client][record["round"]] = verdict["benign_score"]
    return histories


def _quantiles(panel: Panel, histories: list[dict[int, float]], first: int, last: int, style: str) -> None:
    """The quantiles of the latest scores in each round, of the clients that have one."""
    every = sorted({number for history in histories for number in history})
    latest = np.full(len(histories), np.nan)
    rows = []
    for number in every:
        for place, history in enumerate(histories):
            latest[place] = history.get(number, latest[place])
        rows.append(np.nanquantile(latest, (0.05, 0.25, 0.5, 0.75, 0.95)))
    table = np.array(rows)
    for low, high in ((0, 4), (1, 3)):
        panel.band(every, table[:, low].tolist(), table[:, high].tolist(), style)
    panel.line(list(zip(every, table[:, 2].tolist(), strict=True)), style)
