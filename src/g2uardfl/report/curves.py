"""Accuracy and attack success over the rounds: one panel for each attack, one colour for each defence."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ..simulation.config import RunConfig
from ..simulation.naming import attack_name, defense_name, differing, task_name
from .charts import PERCENT, SERIES_COLOURS, Axis, Figure, Key, Panel, series_style
from .subjects import Record, rounds_with, words

IGNORED = (
    "seed", "defense.seed", "data_dir", "device", "engine", "workers", "evaluate_every", "checkpoint_every",
)  # fmt: skip
"""Settings in which repetitions of one experiment may differ."""
_NAMED = ("defense", "attack", "task", "rounds")
"""Settings that have names of their own on the page."""
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
class Group(Generic[R]):
    """Runs that differ in nothing but their seed."""

    panel: str
    """Attack, task and all else that is no matter of the defence."""
    series: str
    """The defence, with those of its settings in which runs differ."""
    runs: list[R] = field(default_factory=list)
    style: str = ""


def grouped(runs: Sequence[R]) -> list[Group[R]]:
    """The groups of repetitions: panel by panel, and in the order of their first runs."""
    configs = [run.config for run in runs]
    attacks = [attack_name(config) if config.attack != "none" else "no attack" for config in configs]
    if len({config.task for config in configs}) > 1:
        attacks = [f"{name} on {task_name(config)}" for name, config in zip(attacks, configs, strict=True)]
    others = _differences(configs, lambda name: name not in _NAMED and "." not in name)
    panels = _labels(attacks, configs, ("attack.", "task."), others)
    series = _labels([defense_name(config) for config in configs], configs, ("defense.",))
    groups: dict[tuple[str, str], Group[R]] = {}
    for key, run in zip(zip(panels, series, strict=True), runs, strict=True):
        groups.setdefault(key, Group(*key)).runs.append(run)
    _give_colours(list(groups.values()))
    panels = list(dict.fromkeys(group.panel for group in groups.values()))
    return sorted(groups.values(), key=lambda group: panels.index(group.panel))


def _differences(configs: Sequence[RunConfig], wanted: Callable[[str], bool]) -> list[dict[str, Any]]:
    """The settings in which the configs differ, by config."""
    found = {name: values for name, values in differing(configs, IGNORED).items() if wanted(name)}
    return [{name: values[index] for name, values in found.items()} for index in range(len(configs))]


def _labels(
    names: Sequence[str],
    configs: Sequence[RunConfig],
    prefixes: tuple[str, ...],
    others: Sequence[Mapping[str, Any]] | None = None,
) -> list[str]:
    """Each name with those of its settings in which runs of the same name differ, and with `others`."""
    labels = list(names)
    for name in dict.fromkeys(names):
        places = [place for place, one in enumerate(names) if one == name]
        own = _differences([configs[place] for place in places], lambda key: key.startswith(prefixes))
        for place, values in zip(places, own, strict=True):
            given = {**values, **(others[place] if others else {})}
            shown = [f"{key.partition('.')[2] or key}={value}" for key, value in given.items() if value is not None]
            labels[place] = ", ".join([name, *shown])
    return labels


def _give_colours(groups: Iterable[Group[Any]]) -> None:
    """One colour for each series, on all panels."""
    groups = list(groups)
    names = sorted({group.series for group in groups})
    numbers = {name: number for name, number in _PREFERRED.items() if name in names}
    free = [number for number in range(SERIES_COLOURS + len(names)) if number not in numbers.values()]
    for name in names:
        if name not in numbers:
            numbers[name] = free.pop(0)
    for group in groups:
        group.style = series_style(numbers[group.series])


@dataclass(frozen=True)
class _Curve:
    """Mean and standard deviation over the runs of a group, in percent."""

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


def rates(groups: Sequence[Group[Any]]) -> list[Figure]:
    """The figures of the attack success rate and of the accuracy."""
    legend = [Key(name, style) for name, style in {group.series: group.style for group in groups}.items()]
    legend += [
        Key(words(kind), "event", shape)
        for kind, shape in _SYMBOLS.items()
        if any(_events(group, kind) for group in groups)
    ]
    repeated = max(len(group.runs) for group in groups)
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
        curves = [(group, _curve(group.runs, metric)) for group in groups]
        values = [mean for _, curve in curves for mean in curve.means]
        axis = PERCENT if metric == "asr" else _accuracy_axis(values)
        panels = [
            _panel(name, [(group, curve) for group, curve in curves if group.panel == name], axis)
            for name in dict.fromkeys(group.panel for group in groups)
        ]
        figures.append(Figure(metric, title, panels, legend, caption + bands, can_isolate=len(groups) > 1))
    return figures


def _accuracy_axis(values: Sequence[float]) -> Axis:
    axis = Axis.over(values, least=4.0)
    return Axis(max(-2.0, axis.low), min(101.0, axis.high), "", tuple(t for t in axis.ticks if 0 <= t <= 100))


def _panel(name: str, curves: Sequence[tuple[Group[Any], _Curve]], axis: Axis) -> Panel:
    config = curves[0][0].runs[0].config
    last = max(max(curve.rounds, default=1) for _, curve in curves)
    events = [(group, kind, rounds) for group, _ in curves for kind in _SYMBOLS if (rounds := _events(group, kind))]
    rows = list(dict.fromkeys(group.series for group, _, _ in events))
    panel = Panel(Axis.of_rounds(0, last), axis, f"{name} (%)", role="readout")
    panel.top += _EVENT_ROW * len(rows)
    panel.height += _EVENT_ROW * len(rows)
    for group, kind, rounds in events:
        y = 20.0 + _EVENT_ROW * rows.index(group.series)
        places = [(panel.px(number), y) for number in rounds]
        panel.symbols(places, _SYMBOLS[kind], group.style, f"{words(kind)}: {group.series}")
    _mark_schedule(panel, config, last)
    for group, curve in curves:
        lows = [max(axis.low, mean - sd) for mean, sd in zip(curve.means, curve.deviations, strict=True)]
        highs = [min(axis.high, mean + sd) for mean, sd in zip(curve.means, curve.deviations, strict=True)]
        if any(curve.deviations):
            panel.band(curve.rounds, lows, highs, group.style)
        panel.line(list(zip(curve.rounds, curve.means, strict=True)), group.style)
    every = sorted({number for _, curve in curves for number in curve.rounds})
    series = []
    for group, curve in curves:
        at = {number: (mean, sd) for number, mean, sd in zip(curve.rounds, curve.means, curve.deviations, strict=True)}
        shown = [[round(value, 2) for value in at[number]] if number in at else None for number in every]
        series.append({"name": group.series, "style": group.style, "y": shown})
    panel.readout = {
        "x": every,
        "series": series,
        "left": panel.px(every[0]) if every else 0,
        "right": panel.px(every[-1]) if every else 0,
        "top": panel.top,
        "bottom": panel.height - panel.bottom,
    }
    return panel


def _events(group: Group[Any], kind: str) -> list[int]:
    """The rounds in which a run of the group has an event of this kind."""
    return sorted({number for run in group.runs for number in rounds_with(kind, run.rounds)})


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
