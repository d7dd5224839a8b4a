"""How long the server's part of a round took: one row for each stage."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from .events import Record
from .parts import table


def has_seconds(rounds: Sequence[Record]) -> bool:
    """Whether any round says how long its stages took."""
    return any(record.get("stage_seconds") for record in rounds)


def seconds_table(rounds: Sequence[Record]) -> str:
    """Median and maximum of each stage and of their sum, over the rounds that have them."""
    timed = [(record["round"], record["stage_seconds"]) for record in rounds if record.get("stage_seconds")]
    stages: dict[str, list[tuple[float, int]]] = {}
    for number, seconds in timed:
        for stage, value in {**seconds, "all stages": sum(seconds.values())}.items():
            stages.setdefault(stage, []).append((value, number))
    # A rule that is not asked in a round has other stages there.
    stages["all stages"] = stages.pop("all stages")
    rows = []
    for stage, values in stages.items():
        largest, number = max(values)
        median = statistics.median(value for value, _ in values)
        rows.append((stage, f"{median:.4f}", f"{largest:.4f}", str(number), str(len(values))))
    return table(("stage", "median s", "largest s", "in round", "rounds"), rows)
