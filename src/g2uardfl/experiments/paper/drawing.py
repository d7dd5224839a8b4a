"""Drawings as SVG: one row of dots for each cell of a table, and lines over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_COLOURS = {"printed": "#8a5a00", "measured": "#5f6368", "paper": "#1f5fbf", "default": "#1b6e3c"}
_LEGEND = {
    "printed": "printed in the paper", "measured": "measured", "paper": "measured, profile=paper",
    "default": "measured, profile=default",
}  # fmt: skip
_LINES = ("#1f5fbf", "#1b6e3c", "#b3261e", "#7b3fa0", "#8a5a00", "#00797a")
_LEFT, _RIGHT, _ROW, _TOP = 330, 40, 18, 60
_WIDTH = 900

Row = tuple[str, Mapping[str, float | None]]


def dots(rows: Sequence[Row], heading: str, banner: str = "") -> str:
    """One row for each cell, with a dot at each percentage.

    Parameters
    ----------
    rows
        Label and percentages; keys are "printed", "measured", "paper" and "default". Labels are escaped already.
    heading
        What the percentages are.
    banner
        A warning above the drawing (default: none).
    """
    height = _TOP + _ROW * len(rows) + 30
    parts = _frame(height, heading, banner)
    used = [kind for kind in _COLOURS if any(values.get(kind) is not None for _, values in rows)]
    parts += _legend([(_LEGEND[kind], _COLOURS[kind]) for kind in used])
    for index, (label, values) in enumerate(rows):
        y = _TOP + _ROW * index + _ROW / 2
        parts.append(f'<text x="{_LEFT - 12}" y="{y + 4}" text-anchor="end">{label}</text>')
        parts.append(f'<line x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}" stroke="#eef1f5"/>')
        for kind, value in values.items():
            if value is None:
                continue
            x = _across(value)
            if kind == "printed":
                parts.append(f'<path d="M{x - 4} {y - 4}l8 8m0 -8l-8 8" stroke="{_COLOURS[kind]}" stroke-width="2"/>')
            else:
                parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{_COLOURS[kind]}" fill-opacity="0.8"/>')
    return "".join([*parts, "</svg>\n"])


def curves(lines: Mapping[str, str], banner: str = "") -> str:
    """ASR over the rounds; each line is `round:percent` separated by spaces, under a name that is escaped already."""
    points = {name: [tuple(map(float, point.split(":"))) for point in line.split()] for name, line in lines.items()}
    last = max((point[0] for line in points.values() for point in line), default=1.0)
    height = _TOP + 360
    parts = _frame(height, "round", banner, percent=False)
    colours = [_LINES[index % len(_LINES)] for index in range(len(points))]
    parts += _legend(list(zip(points, colours, strict=True)), column=True)
    for tick in range(0, 101, 20):
        y = _TOP + 330 * (1 - tick / 100)
        parts.append(f'<line x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}" stroke="#dde2ea"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{tick} %</text>')
    for colour, line in zip(colours, points.values(), strict=True):
        places = [f"{_across(100 * at / last):.1f},{_TOP + 330 * (1 - value / 100):.1f}" for at, value in line]
        parts.append(f'<polyline points="{" ".join(places)}" fill="none" stroke="{colour}" stroke-width="2"/>')
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{_TOP + 350}" text-anchor="end">{last:.0f}</text>')
    return "".join([*parts, "</svg>\n"])


def _frame(height: int, heading: str, banner: str, *, percent: bool = True) -> list[str]:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#1c2330">'
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>'
    ]
    if banner:
        parts.append(f'<text x="12" y="16" fill="#b3261e" font-weight="bold">{banner}</text>')
    parts.append(f'<text x="{_LEFT}" y="{height - 6}">{heading}</text>')
    if percent:
        for tick in range(0, 101, 20):
            x = _across(tick)
            parts.append(f'<line x1="{x}" y1="{_TOP}" x2="{x}" y2="{height - 32}" stroke="#dde2ea"/>')
            parts.append(f'<text x="{x}" y="{height - 20}" text-anchor="middle">{tick}</text>')
    return parts


def _legend(entries: Sequence[tuple[str, str]], *, column: bool = False) -> list[str]:
    parts = []
    for index, (text, colour) in enumerate(entries):
        x, y = (12, _TOP + 20 + 22 * index) if column else (_LEFT + 135 * index, 40)
        parts.append(f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{colour}"/><text x="{x + 8}" y="{y}">{text}</text>')
    return parts


def _across(percent: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * percent / 100
