"""Accuracy and attack success over the rounds: one panel for each attack, one colour for each defence."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ..experiments.results import NAMED, shown_settings
from ..simulation.config import RunConfig
from ..simulation.naming import attack_name, defense_name, task_name
from .charts import PERCENT, SERIES_COLOURS, Axis, Figure, Key, Panel, series_style
from .subjects import Record, rounds_with, words

_PREFERRED = {"g2uardfl": 0, "fedavg": 5}
"""Series that have the same colour on every page."""
_SYMBOLS = {"rolled_back": "down", "eliminated": "diamond"}
"""Events that explain a jump in a curve."""
_EVENT_ROW = 8.0
"""The height of a row of events above a panel."""


class Curves(Protocol):
    """What curves are drawn from, such as a `FinishedRun`."""

    @property
    def config(self) -> RunConfig:
        """All settings."""

    @property
    def rounds(self) -> Sequence[Record]:
        """The records of the rounds."""

    @property
    def summary(self) -> Mapping[str, Any]:
        """The content of `summary.json`; only `start` is used."""


R = TypeVar("R", bound=Curves)


@dataclass
class Series(Generic[R]):
    """One curve: runs that differ in nothing but their seed."""

    panel: str
    """Attack, task and all other settings except those of the defence."""
    name: str
    """The defence, with those of its settings in which runs differ."""
    runs: list[R] = field(default_factory=list)
    style: str = ""


def series_of(runs: Sequence[R]) -> list[Series[R]]:
    """The series of some runs: panel by panel, and in the order of their first runs."""
    configs = [run.config for run in runs]
    settings = [
        {key: value for key, value in one.items() if key not in NAMED and value is not None}
        for one in shown_settings(configs)
    ]
    attacks = ["no attack" if config.attack == "none" else attack_name(config) for config in configs]
    if len({config.task for config in configs}) > 1:
        attacks = [f"{name} on {task_name(config)}" for name, config in zip(attacks, configs, strict=True)]
    panels = _labels(attacks, settings, lambda key: not key.startswith("defense."))
    names = _labels([defense_name(config) for config in configs], settings, lambda key: key.startswith("defense."))
    found: dict[tuple[str, str], Series[R]] = {}
    for key, run in zip(zip(panels, names, strict=True), runs, strict=True):
        found.setdefault(key, Series(*key)).runs.append(run)
    _give_colours(list(found.values()))
    return sorted(found.values(), key=lambda one: panels.index(one.panel))


def _labels(names: Sequence[str], settings: Sequence[Mapping[str, Any]], wanted: Callable[[str], bool]) -> list[str]:
    """Each name with the wanted settings; settings of a defence, attack or task only if they differ for this name."""
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name, one in zip(names, settings, strict=True):
        for key, value in one.items():
            values[name, key].add(repr(value))
    return [
        ", ".join(
            [name]
            + [
                f"{key.partition('.')[2] or key}={value}"
                for key, value in one.items()
                if wanted(key) and ("." not in key or len(values[name, key]) > 1)
            ]
        )
        for name, one in zip(names, settings, strict=True)
    ]


def _give_colours(series: Sequence[Series[Any]]) -> None:
    """One colour for each defence, on all panels."""
    names = sorted({one.name for one in series})
    numbers = {name: number for name, number in _PREFERRED.items() if name in names}
    free = [number for number in range(SERIES_COLOURS + len(names)) if number not in numbers.values()]
    for name in names:
        if name not in numbers:
            numbers[name] = free.pop(0)
    for one in series:
        one.style = series_style(numbers[one.name])


@dataclass(frozen=True)
class _Curve:
    """Mean and standard deviation over the runs of a series, in percent."""

    rounds: list[int]
    means: list[float]
    deviations: list[float]


def _curve(runs: Sequence[Curves], metric: str) -> _Curve:
    values: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        start = run.summary.get("start", {}).get(metric)
        if start is not None:
            values[0].append(100 * start)
        for record in run.rounds:
            if record[metric] is not None:
                values[record["round"]].append(100 * record[metric])
    rounds = sorted(values)
    return _Curve(
        rounds,
        [statistics.fmean(values[number]) for number in rounds],
        [statistics.stdev(values[number]) if len(values[number]) > 1 else 0.0 for number in rounds],
    )


def rates(series: Sequence[Series[Any]]) -> list[Figure]:
    """The figures of the attack success rate and of the accuracy."""
    legend = [Key(name, style) for name, style in {one.name: one.style for one in series}.items()]
    legend += [
        Key(words(kind), "event", shape)
        for kind, shape in _SYMBOLS.items()
        if any(_events(one, kind) for one in series)
    ]
    repeated = max(len(one.runs) for one in series)
    bands = f" Bands: mean ± standard deviation over up to {repeated} seeds." if repeated > 1 else ""
    titles = {
        "asr": (
            "Attack success rate (ASR)",
            "Samples with the trigger that get the attacker's label; lower is better.",
        ),
        "acc": ("Accuracy (ACC)", "On the test data of the task; the axis does not begin at 0."),
    }
    figures = []
    for metric, (title, caption) in titles.items():
        curves = [(one, _curve(one.runs, metric)) for one in series]
        values = [mean for _, curve in curves for mean in curve.means]
        axis = PERCENT if metric == "asr" else _accuracy_axis(values)
        panels = [
            _panel(name, [(one, curve) for one, curve in curves if one.panel == name], axis)
            for name in dict.fromkeys(one.panel for one in series)
        ]
        figures.append(Figure(metric, title, panels, legend, caption + bands, can_isolate=len(series) > 1))
    return figures


def _accuracy_axis(values: Sequence[float]) -> Axis:
    axis = Axis.over(values, least=4.0)
    return Axis(max(-2.0, axis.low), min(101.0, axis.high), "", tuple(t for t in axis.ticks if 0 <= t <= 100))


def _panel(name: str, curves: Sequence[tuple[Series[Any], _Curve]], axis: Axis) -> Panel:
    config = curves[0][0].runs[0].config
    last = max(max(curve.rounds, default=1) for _, curve in curves)
    events = [(one, kind, rounds) for one, _ in curves for kind in _SYMBOLS if (rounds := _events(one, kind))]
    rows = list(dict.fromkeys(one.name for one, _, _ in events))
    panel = Panel(Axis.of_rounds(0, last), axis, f"{name} (%)", role="readout")
    panel.add_room(12.0 * (len(panel.title_lines) - 1))
    first_row = panel.top - 4.0
    panel.add_room(_EVENT_ROW * len(rows))
    for one, kind, rounds in events:
        y = first_row + _EVENT_ROW * rows.index(one.name)
        places = [(panel.px(number), y) for number in rounds]
        panel.symbols(places, _SYMBOLS[kind], one.style, f"{words(kind)}: {one.name}")
    _mark_schedule(panel, config, last)
    for one, curve in curves:
        lows = [max(axis.low, mean - sd) for mean, sd in zip(curve.means, curve.deviations, strict=True)]
        highs = [min(axis.high, mean + sd) for mean, sd in zip(curve.means, curve.deviations, strict=True)]
        if any(curve.deviations):
            panel.band(curve.rounds, lows, highs, one.style)
        panel.line(list(zip(curve.rounds, curve.means, strict=True)), one.style)
    every = sorted({number for _, curve in curves for number in curve.rounds})
    series = []
    for one, curve in curves:
        at = {number: (mean, sd) for number, mean, sd in zip(curve.rounds, curve.means, curve.deviations, strict=True)}
        shown = [[round(value, 2) for value in at[number]] if number in at else None for number in every]
        series.append({"name": one.name, "style": one.style, "y": shown})
    panel.readout = {
        "x": every,
        "series": series,
        "left": panel.px(every[0]) if every else 0,
        "right": panel.px(every[-1]) if every else 0,
        "top": panel.top,
        "bottom": panel.height - panel.bottom,
    }
    return panel


def _events(one: Series[Any], kind: str) -> list[int]:
    """The rounds in which a run of the series has an event of this kind."""
    return sorted({number for run in one.runs for number in rounds_with(kind, run.rounds)})


def _mark_schedule(panel: Panel, config: Any, last: int) -> None:
    """Where attack and defence begin and end."""
    marks: dict[int, list[str]] = defaultdict(list)
    if config.attack != "none":
        marks[config.attack_from].append("attack begins")
        if config.attack_until and config.attack_until < last:
            marks[config.attack_until].append("attack ends")
    if config.defend_from > 1:
        marks[config.defend_from].append("defence begins")
    for number, labels in marks.items():
        if number <= last and (number > 1 or len(marks) > 1):
            panel.vertical(number, ", ".join(labels))
