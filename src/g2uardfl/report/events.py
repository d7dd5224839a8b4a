"""What a server did to the model on its own: a table of events, and their marks in curves over the rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .parts import table

_MARKED = {"rolled_back": "#7b3fa0", "eliminated": "#c98a1b"}
"""Events that explain a jump in a curve, with the colours of their marks."""

Record = Mapping[str, Any]
"""A round of a simulated run or of an audit; those of older runs have no `events`."""


def has_events(rounds: Sequence[Record]) -> bool:
    """Whether there is anything to show."""
    return any(record.get("events") for record in rounds)


def event_table(rounds: Sequence[Record]) -> str:
    """One row for each event, in the order in which they happened."""
    rows = [
        (str(record["round"]), str(event["kind"]).replace("_", " "), str(event["message"]))
        for record in rounds
        for event in record.get("events", ())
    ]
    return table(("round", "event", "message"), rows, numbers=False)


def mark_events(figure: Any, rounds: Sequence[Record], low: float, high: float, run: str = "") -> None:
    """Add a vertical line from `low` to `high` at each round with a marked event: one trace for each kind.

    `run` goes into the legend of a plot with several runs.
    """
    for kind, colour in _MARKED.items():
        marked = [r["round"] for r in rounds if any(event["kind"] == kind for event in r.get("events", ()))]
        if marked:
            figure.add_scatter(
                x=[x for number in marked for x in (number, number, None)],
                y=[low, high, None] * len(marked),
                mode="lines",
                name=kind.replace("_", " ") + (f", {run}" if run else ""),
                line={"color": colour, "width": 1, "dash": "dash"},
                hoverinfo="x+name",
            )
