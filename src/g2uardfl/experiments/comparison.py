"""A comparison of runs as text: CSV and JSON for programs, Markdown and LaTeX for documents.

Shares are fractions in CSV and JSON, and percentages in documents.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from ..core.errors import ConfigError
from ..simulation.metrics import FIGURES
from .results import Group

_LATEX = str.maketrans({character: f"\\{character}" for character in "&%$#_{}"})


def chosen_figures(names: Sequence[str]) -> dict[str, str]:
    """The `FIGURES` with the given names in `summary.json`, in that order; all of them if `names` is empty.

    >>> chosen_figures(["asr", "acc"])
    {'ASR %': 'asr', 'ACC %': 'acc'}
    """
    headings = {figure: heading for heading, figure in FIGURES.items()}
    for name in names:
        if name not in headings:
            raise ConfigError(f"there is no figure {name!r}: choose from {', '.join(headings)}")
    return {headings[name]: name for name in names} or dict(FIGURES)


def text_table(groups: Sequence[Group], figures: dict[str, str]) -> tuple[list[str], list[list[str]]]:
    """The headings and rows of a table: settings, the number of runs, and each figure as mean and deviation."""
    headings = [*groups[0].settings, "runs", *figures]
    rows = []
    for group in groups:
        settings = ["-" if value is None else str(value) for value in group.settings.values()]
        shown = [shown_figure(group, heading, figure) for heading, figure in figures.items()]
        rows.append([*settings, str(len(group.runs)), *shown])
    return headings, rows


def shown_figure(group: Group, heading: str, figure: str) -> str:
    """The mean of a figure, with its standard deviation where there are several runs; "-" where it is not defined."""
    mean, deviation = group.mean(figure), group.deviation(figure)
    if mean is None:
        return "-"
    scale = 100 if heading.split(",")[0].endswith("%") else 1
    digits = 2 if scale == 100 or not mean.is_integer() else 0
    return f"{scale * mean:.{digits}f}" + ("" if deviation is None else f" ± {scale * deviation:.2f}")


def to_csv(groups: Sequence[Group], figures: dict[str, str]) -> str:
    """One row for each group; the columns of a figure are its mean and its standard deviation."""
    names = [f"{figure}_{kind}" for figure in figures.values() for kind in ("mean", "std")]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*groups[0].settings, "runs", "seeds", *names])
    for group in groups:
        values = [value for figure in figures.values() for value in (group.mean(figure), group.deviation(figure))]
        writer.writerow([*group.settings.values(), len(group.runs), _seeds(group), *values])
    return file.getvalue()


def to_json(groups: Sequence[Group], figures: dict[str, str]) -> str:
    """One object for each group, with the run directories and the value of each run."""
    rows: list[dict[str, Any]] = [
        {
            "settings": group.settings,
            "seeds": [run.config.seed for run in group.runs],
            "paths": [str(run.path) for run in group.runs],
            "figures": {
                figure: {
                    "mean": group.mean(figure),
                    "std": group.deviation(figure),
                    "values": group.values(figure),
                }
                for figure in figures.values()
            },
        }
        for group in groups
    ]
    return json.dumps(rows, indent=2, default=str) + "\n"


def to_markdown(groups: Sequence[Group], figures: dict[str, str]) -> str:
    """A table for Markdown documents."""
    headings, rows = text_table(groups, figures)
    words = len(groups[0].settings)
    rule = ["---"] * words + ["---:"] * (len(headings) - words)
    lines = [headings, rule, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def to_latex(groups: Sequence[Group], figures: dict[str, str]) -> str:
    """A `tabular` for papers; it needs the package booktabs."""
    headings, rows = text_table(groups, figures)
    words = len(groups[0].settings)

    def line(cells: Sequence[str]) -> str:
        escaped = [cell.translate(_LATEX).replace(" ± ", " $\\pm$ ") for cell in cells]
        return f"{' & '.join(escaped)} \\\\\n"

    return (
        f"\\begin{{tabular}}{{{'l' * words}{'r' * (len(headings) - words)}}}\n\\toprule\n{line(headings)}\\midrule\n"
        f"{''.join(map(line, rows))}\\bottomrule\n\\end{{tabular}}\n"
    )


WRITERS = {"csv": to_csv, "json": to_json, "md": to_markdown, "latex": to_latex}
"""Name of a format -> the function that writes it."""


def _seeds(group: Group) -> str:
    return " ".join(str(run.config.seed) for run in group.runs)
