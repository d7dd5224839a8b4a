"""Geometry of figures: panels with axes, and marks as SVG paths. `templates/figure.html` turns them into SVG.

Marks have no colours of their own but style classes, which `templates/figure.css` explains: the page shows them in
light and dark, and an exported file in the colours for paper.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SERIES_COLOURS = 8
"""How many colours there are for series; further series repeat them with another dash pattern."""
_STEPS = (1, 2, 2.5, 5, 10)
"""Distances of ticks, times a power of ten."""

Point = tuple[float, float]


def series_style(index: int) -> str:
    """The style classes of the series with this number: a colour, and a dash pattern where colours repeat.

    >>> series_style(0), series_style(9)
    ('s0', 's1 d1')
    """
    dashes = index // SERIES_COLOURS % 3
    return f"s{index % SERIES_COLOURS}" + (f" d{dashes}" if dashes else "")


def ticks(low: float, high: float, count: int = 6, *, whole: bool = False) -> tuple[float, ...]:
    """At most about `count` round numbers, or `whole` ones, from `low` to `high`.

    >>> ticks(0, 100)
    (0.0, 20.0, 40.0, 60.0, 80.0, 100.0)
    >>> ticks(0.97, 1.0, 4)
    (0.97, 0.98, 0.99, 1.0)
    """
    distance = (high - low) / max(1, count - 1)
    if not distance > 0:
        return (low,)
    power = 10.0 ** math.floor(math.log10(distance))
    step = next(factor * power for factor in _STEPS if factor * power >= distance * (1 - 1e-9))
    step = math.ceil(step) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(round(number * step, 10) for number in range(first, last + 1))


@dataclass(frozen=True)
class Axis:
    """The range of one direction of a panel."""

    low: float
    high: float
    label: str = ""
    ticks: tuple[float, ...] = ()

    @staticmethod
    def over(values: Iterable[float], label: str = "", pad: float = 0.06, least: float = 1e-9) -> Axis:
        """An axis that covers `values`, at least `least` wide, with a margin of the share `pad`."""
        found = list(values) or [0.0]
        low, high = min(found), max(found)
        missing = max(0.0, least - (high - low)) / 2
        margin = pad * max(high - low, least)
        low, high = low - missing - margin, high + missing + margin
        return Axis(low, high, label, ticks(low, high))

    @staticmethod
    def of_rounds(first: int, last: int) -> Axis:
        """The axis of rounds."""
        last = max(last, first + 1)
        return Axis(first, last, "round", ticks(first, last, whole=True))

    @staticmethod
    def of_bars(highest: float, *, whole: bool = False) -> Axis:
        """The vertical axis of bars that begin at 0."""
        return Axis(0.0, highest * 1.04, "", ticks(0.0, highest, whole=whole))

    @staticmethod
    def of_columns(first: int, last: int) -> Axis:
        """The axis of rounds below bars, which are one round wide."""
        rounds = Axis.of_rounds(first, last)
        return Axis(first - 0.5, max(last, first) + 0.5, rounds.label, rounds.ticks)


PERCENT = Axis(-2.0, 102.0, "", (0.0, 25.0, 50.0, 75.0, 100.0))
"""The axis of a rate, on which lines at 0 and 100 % are visible."""


@dataclass(frozen=True)
class Mark:
    """One SVG element: a path, or a text if there is one."""

    style: str
    path: str = ""
    text: str = ""
    at: Point = (0.0, 0.0)
    title: str = ""
    """What is shown on hovering."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Attributes `data-NAME`."""


@dataclass(frozen=True)
class Frame:
    """One of several states of a panel, which a slider chooses."""

    label: str
    marks: tuple[Mark, ...]


@dataclass
class Panel:
    """A drawing area with axes; marks are added to it in the units of the axes."""

    x: Axis
    y: Axis
    title: str = ""
    width: float = 360.0
    height: float = 220.0
    left: float = 42.0
    right: float = 12.0
    top: float = 24.0
    bottom: float = 36.0
    marks: list[Mark] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    """The last one is shown first."""
    readout: dict[str, Any] = field(default_factory=dict)
    """`x`, and `series` of {`name`, `style`, `y`}: the values that hovering shows."""
    role: str = ""
    """What the script of the page does with the panel."""

    @property
    def title_lines(self) -> list[str]:
        """The title in lines that fit above the panel."""
        return textwrap.wrap(self.title, int((self.width - self.left) / 5.8))

    def add_room(self, height: float) -> None:
        """Make the panel higher, with the room above the axes."""
        self.top += height
        self.height += height

    def px(self, value: float) -> float:
        """The horizontal place of a value."""
        return self.left + (self.width - self.left - self.right) * _share(self.x, value)

    def py(self, value: float) -> float:
        """The vertical place of a value."""
        return self.height - self.bottom - (self.height - self.top - self.bottom) * _share(self.y, value)

    def line(self, points: Sequence[Point], style: str, title: str = "") -> None:
        """A polyline."""
        path = "L".join(f"{_n(self.px(x))} {_n(self.py(y))}" for x, y in points)
        if points:
            self.marks.append(Mark(f"line {style}", f"M{path}", title=title))

    def band(self, xs: Sequence[float], lows: Sequence[float], highs: Sequence[float], style: str) -> None:
        """The area between two curves."""
        if xs:
            upper = [(x, y) for x, y in zip(xs, highs, strict=True)]
            lower = [(x, y) for x, y in zip(xs, lows, strict=True)][::-1]
            path = "L".join(f"{_n(self.px(x))} {_n(self.py(y))}" for x, y in upper + lower)
            self.marks.append(Mark(f"band {style}", f"M{path}Z"))

    def bars(self, bars: Iterable[tuple[float, float, float, float]], style: str, title: str = "") -> None:
        """Rectangles (left, right, bottom, top) as one path."""
        path = "".join(
            box(self.px(left), self.py(top), self.px(right) - self.px(left), self.py(bottom) - self.py(top))
            for left, right, bottom, top in bars
            if top > bottom
        )
        if path:
            self.marks.append(Mark(f"bar {style}", path, title=title))

    def vertical(self, x: float, label: str) -> None:
        """A line over the whole height, with a label at its top."""
        place = _n(self.px(x))
        self.marks.append(Mark("rule", f"M{place} {_n(self.top)}V{_n(self.height - self.bottom)}", title=label))
        style, shift = ("small end", -3.0) if self.px(x) > self.width * 0.6 else ("small", 3.0)
        self.marks.append(Mark(style, text=label, at=(self.px(x) + shift, self.top + 8.0)))

    def symbols(self, places: Iterable[Point], shape: str, style: str, title: str = "") -> None:
        """Small symbols of one kind; `places` are pixels."""
        path = "".join(SHAPES[shape].format(x=_n(x), y=_n(y)) for x, y in places)
        if path:
            self.marks.append(Mark(f"symbol {style}", path, title=title))


SHAPES = {
    "down": "M{x} {y}m-4 -3.5h8l-4 7Z",
    "diamond": "M{x} {y}m0 -4l4 4l-4 4l-4 -4Z",
    "dot": "M{x} {y}m-1.5 0a1.5 1.5 0 1 0 3 0a1.5 1.5 0 1 0 -3 0Z",
}
"""Paths of symbols around a place."""


@dataclass(frozen=True)
class Key:
    """One entry of a legend."""

    label: str
    style: str
    shape: str = "line"
    """line, box, low (a box of half the height), ring, or one of `SHAPES`."""


@dataclass
class Figure:
    """Panels with a common legend and a sentence about them."""

    name: str
    """Short and unique on its page; the name of an exported file."""
    title: str
    panels: list[Panel]
    legend: list[Key] = field(default_factory=list)
    caption: str = ""
    columns: int = 2
    """Panels beside each other in an exported file."""
    kind: str = ""
    """A style class of the figure on the page."""

    can_isolate: bool = False
    """Whether an entry of the legend, chosen on the page, fades all other series."""

    @property
    def frames(self) -> list[str]:
        """The labels of the frames of the first panel."""
        return [frame.label for frame in self.panels[0].frames]


def box(x: float, y: float, width: float, height: float) -> str:
    """The path of a rectangle.

    >>> box(1, 2, 3, 4)
    'M1 2h3v4h-3z'
    """
    return f"M{_n(x)} {_n(y)}h{_n(width)}v{_n(height)}h{_n(-width)}z"


def circle(x: float, y: float, radius: float) -> str:
    """The path of a circle.

    >>> circle(5, 5, 2)
    'M3 5a2 2 0 1 0 4 0a2 2 0 1 0 -4 0z'
    """
    r, d = _n(radius), _n(2 * radius)
    return f"M{_n(x - radius)} {_n(y)}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0z"


def _share(axis: Axis, value: float) -> float:
    return (value - axis.low) / (axis.high - axis.low)


def _n(value: float) -> str:
    """A number with one decimal, as short as possible."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
