"""What a server did to the model on its own: a table of events, their marks in curves over the rounds, and notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from .parts import table

_MARKED = {"rolled_back": "#7b3fa0", "eliminated": "#c98a1b"}
"""Events that explain a jump in a curve, with the colours of their marks."""

Record = Mapping[str, Any]
"""A round of a simulated run or of an audit; those of older runs have no `events` and no `note`."""


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


def remark(record: Record) -> str:
    """The note of a round without the messages of its events, which it begins with.

    >>> remark({"note": "Rolled back. Client 3 lies.", "events": [{"kind": "rolled_back", "message": "Rolled back."}]})
    'Client 3 lies.'
    """
    messages = " ".join(str(event["message"]) for event in record.get("events", ()))
    return str(record.get("note", "")).removeprefix(messages).strip()


def has_notes(rounds: Sequence[Record]) -> bool:
    """Whether there is anything to say about a round that is not the message of an event."""
    return any(remark(record) for record in rounds)


def note_table(rounds: Sequence[Record]) -> str:
    """One row for each remark; one for all consecutive rounds with the same."""
    rows = []
    for text, group in groupby(rounds, remark):
        numbers = [record["round"] for record in group]
        if text:
            rows.append((str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}", text))
    return table(("round", "note"), rows, numbers=False)


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
