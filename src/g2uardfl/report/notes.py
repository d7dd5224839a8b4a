"""Events in which a server changed the model, and its remarks on rounds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from .subjects import Record, words


def event_rows(rounds: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Round, kind and message of each event, in the order in which they happened."""
    return [
        (str(record["round"]), words(str(event["kind"])), str(event["message"]))
        for record in rounds
        for event in record.get("events", ())
    ]


def remark(record: Record) -> str:
    """The note of a round without the messages of its events, which it begins with.

    >>> remark({"note": "Rolled back. Client 3 lies.", "events": [{"kind": "rolled_back", "message": "Rolled back."}]})
    'Client 3 lies.'
    """
    messages = " ".join(str(event["message"]) for event in record.get("events", ()))
    return str(record.get("note", "")).removeprefix(messages).strip()


def note_rows(rounds: Sequence[Record]) -> list[tuple[str, str]]:
    """Rounds and their remark; consecutive rounds with the same remark share a row."""
    rows = []
    for text, group in groupby(rounds, remark):
        numbers = [record["round"] for record in group]
        if text:
            rows.append((str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}", text))
    return rows
