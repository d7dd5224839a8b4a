"""A reproduced table of the paper: its page, its figure, and its files for documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..core.files import atomic_write
from ..experiments.paper import theorem
from ..experiments.paper.conclusions import conclusion
from ..experiments.paper.rendering import (
    NAMES,
    SMOKE,
    blocks,
    command,
    legend,
    missing,
    origin,
    to_latex,
    to_markdown,
)
from ..experiments.paper.results import FIGURES, Results, tasks_of
from ..experiments.paper.table import Cell
from .charts import PERCENT, Axis, Figure, Key, Mark, Panel, box, circle, series_style
from .page import page_parts, svg

_KINDS = {
    "printed": ("number in the paper", "s1"),
    "": ("measured", "s5"),
    "paper": ("measured, paper profile", "s0"),
    "default": ("measured, default profile", "s2"),
}
"""What a symbol stands for, and its style."""
_CAPTION = "One row for each cell; means over the seeds."
_ROW, _LABEL = 15.0, 250.0
"""The height of a row, and the width of its label."""
_SHIFT = 2.5
"""Half the distance between the symbols of two profiles, so that equal values are both visible."""


def write_pages(results: Results, folder: Path, checks: Sequence[theorem.Check] = ()) -> list[Path]:
    """Write a table as Markdown, CSV, LaTeX, SVG and HTML; returns the files.

    The text of `notes/TABLE.md` in the folder, if there is such a file, is put below the table on the Markdown page.

    Parameters
    ----------
    results
        What was measured.
    folder
        Where to write.
    checks
        The checks of Theorem 1 that belong to the table (default: none).
    """
    drawn = figure(results)
    theorem_section = "\n" + theorem.to_markdown(checks) if checks else ""
    contents = {
        "csv": results.to_csv(),
        "md": to_markdown(results, _explanation(results, folder)) + theorem_section,
        "tex": to_latex(results),
        "svg": svg(drawn, is_themed=True),
        "html": _page(results, drawn, checks),
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix, content in contents.items():
        written.append(folder / f"{results.table.name}.{suffix}")
        with atomic_write(written[-1]) as file:
            file.write(content.encode())
    return written


def _explanation(results: Results, folder: Path) -> str:
    """The text that was written by hand for the page: `notes/TABLE.md` in its folder, if there is such a file."""
    path = folder / "notes" / f"{results.table.name}.md"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def figure(results: Results) -> Figure:
    """The first figure of each cell as printed and as measured; ASR over the rounds if the table has curves."""
    drawn = _curves(results) if results.table.has_curves else _dots(results)
    if results.is_smoke:
        drawn.panels[0].marks.append(Mark("small of-malicious", text=SMOKE, at=(8.0, drawn.panels[0].height - 4.0)))
    return drawn


def _dots(results: Results) -> Figure:
    name = results.table.figures[0]
    panels = [_panel(results, NAMES.get(task, task), cells, name) for task, cells in tasks_of(results)]
    used = [
        kind
        for kind in _KINDS
        if any(cell.printed[name] is not None if kind == "printed" else kind in cell.variants for cell in results.rows)
    ]
    keys = [Key(_KINDS[kind][0], _KINDS[kind][1], "box") for kind in used]
    title = f"{results.table.title}: {FIGURES[name]}"
    return Figure(results.table.name, title, panels, keys, _CAPTION, columns=1)


def _panel(results: Results, title: str, cells: Sequence[Cell], figure_name: str) -> Panel:
    """A row for each cell, with a symbol at each percentage."""
    height = 24.0 + _ROW * len(cells) + 36.0
    panel = Panel(PERCENT, Axis(0.0, 1.0), title, width=720.0, height=height, left=_LABEL)
    bottom = panel.height - panel.bottom
    for tick in PERCENT.ticks:
        place = panel.px(tick)
        panel.marks.append(Mark("grid", f"M{place:.1f} {panel.top}V{bottom}"))
        panel.marks.append(Mark("small middle", text=f"{tick:g}", at=(place, bottom + 14.0)))
    panel.marks.append(Mark("small", text=FIGURES[figure_name], at=(_LABEL, bottom + 29.0)))
    for index, cell in enumerate(cells):
        y = panel.top + _ROW * (index + 0.5)
        labels = [label for axis, label in zip(results.table.axes, cell.labels, strict=True) if axis != "task"]
        panel.marks.append(Mark("small end", text=", ".join(labels), at=(_LABEL - 8.0, y + 3.5)))
        printed = cell.printed[figure_name]
        if isinstance(printed, float):
            panel.marks.append(
                Mark(f"bar {_KINDS['printed'][1]}", box(panel.px(printed) - 2.0, y - 5.0, 4.0, 10.0),
                     title=f"paper: {printed:.2f} %")
            )  # fmt: skip
        for number, variant in enumerate(cell.variants):
            mean = results.measured(cell, variant).mean(figure_name)
            if mean is not None:
                path = circle(panel.px(mean), y + _SHIFT * (2 * number - len(cell.variants) + 1), 3.5)
                panel.marks.append(
                    Mark(f"symbol {_KINDS[variant][1]}", path, title=f"{_KINDS[variant][0]}: {mean:.2f} %")
                )
    return panel


def _curves(results: Results) -> Figure:
    lines = {
        ", ".join([*cell.labels, *([f"profile={variant}"] if variant else [])]): run.curve
        for cell in results.cells
        for variant in cell.variants
        for run in results.measured(cell, variant).runs[:1]
    }
    points = {
        name: [(float(at), float(value)) for at, value in (point.split(":") for point in curve.split())]
        for name, curve in lines.items()
    }
    last = max((at for line in points.values() for at, _ in line), default=1.0)
    panel = Panel(Axis.of_rounds(0, round(last)), PERCENT, "ASR %", width=720.0, height=300.0)
    for index, line in enumerate(points.values()):
        panel.line(line, series_style(index))
    keys = [Key(name, series_style(index)) for index, name in enumerate(points)]
    return Figure(results.table.name, results.table.title, [panel], keys, "The first seed of each cell.", columns=1)


def _page(results: Results, drawn: Figure, checks: Sequence[theorem.Check]) -> str:
    """The page as self-contained HTML."""
    return page_parts(
        "table.html",
        title=results.table.title,
        warning=f"{SMOKE}." if results.is_smoke else "",
        sentences=[conclusion(results)],
        command=command(results),
        origin=". ".join(filter(None, [origin(results), missing(results)])),
        blocks=blocks(results),
        figure=drawn,
        notes=[*legend(results), *results.table.notes],
        theorem=theorem.rows(checks) if checks else None,
    )
