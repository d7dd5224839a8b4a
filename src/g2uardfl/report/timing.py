"""How long the stages of a round took."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .charts import Axis, Figure, Key, Panel, series_style
from .subjects import Record, Subject

_MAX_BARS = 120
_ALL = "all stages"


@dataclass(frozen=True)
class StageTime:
    """The seconds of one stage over the rounds."""

    stage: str
    median: float
    largest: float
    in_round: int
    """The round of the largest."""
    rounds: int
    """In how many rounds the stage ran."""


def stage_times(rounds: Sequence[Record]) -> list[StageTime]:
    """Median and maximum of each stage of the server and of their sum; empty where nothing was measured."""
    stages: dict[str, list[tuple[float, int]]] = {}
    for record in rounds:
        seconds: Mapping[str, float] = record.get("stage_seconds") or {}
        total = {_ALL: sum(seconds.values())} if seconds else {}
        for stage, value in {**seconds, **total}.items():
            stages.setdefault(stage, []).append((value, record["round"]))
    # A round in which the rule is not called has other stages; the sum is last nevertheless.
    if _ALL in stages:
        stages[_ALL] = stages.pop(_ALL)
    return [
        StageTime(stage, statistics.median(value for value, _ in values), *max(values), len(values))
        for stage, values in stages.items()
    ]


def timing(subject: Subject) -> Figure:
    """The seconds of each stage by round, stacked."""
    names = [time.stage for time in stage_times(subject.rounds) if time.stage != _ALL]
    per_bar = max(1, -(-len(subject.rounds) // _MAX_BARS))
    groups = [subject.rounds[start : start + per_bar] for start in range(0, len(subject.rounds), per_bar)]
    means = {
        name: [sum((one.get("stage_seconds") or {}).get(name, 0.0) for one in group) / len(group) for group in groups]
        for name in names
    }
    totals = [sum(column) for column in zip(*means.values(), strict=True)]
    highest = max(totals, default=0.0) or 1e-9
    panel = Panel(Axis.of_columns(subject.first_round, subject.last_round), Axis.of_bars(highest), "seconds", 720)
    floor = [0.0] * len(groups)
    legend = []
    for number, name in enumerate(names):
        bars = []
        for index, group in enumerate(groups):
            top = floor[index] + means[name][index]
            bars.append((group[0]["round"] - 0.5, group[-1]["round"] + 0.5, floor[index], top))
            floor[index] = top
        style = series_style(number)
        panel.bars(bars, style, name)
        legend.append(Key(name, style, "box"))
    caption = "Seconds that the server needed for each stage of the rule."
    if per_bar > 1:
        caption += f" Each bar is the mean of {per_bar} rounds."
    return Figure("timing", "Time by stage", [panel], legend, caption, 1, "wide")
