"""What a reproduced table shows, in sentences that can be cited."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from .results import FIGURES, Results, notable
from .table import PROFILES, Cell

_UNDEFENDED = "No defense"
"""The label of rows without a defence."""
_WHERE = {"": "without a defence", **{profile: f"with the `{profile}` profile" for profile in PROFILES}}

Setting = frozenset[tuple[str, str]]
"""Axis and label of a cell without its defence: what has to be equal in a comparison."""


def conclusion(results: Results) -> str:
    """What was measured without a defence and with each profile, and how far it agrees with the paper."""
    if results.is_smoke:
        return f"{results.expected} cells, {len(results.missing)} of them missing."
    figure = "asr" if "asr" in results.table.figures else results.table.figures[-1]
    shown = _means(results, figure) or _range(results, figure)
    return " ".join(sentence for sentence in (*shown, _agreement(results, figure)) if sentence)


def _means(results: Results, figure: str) -> list[str]:
    """Means over the settings that have results in every column; none if there is no such setting."""
    columns: dict[str, dict[Setting, Cell]] = {"": {}, **{profile: {} for profile in PROFILES}}
    for cell in results.cells:
        for variant in cell.variants:
            is_compared = bool(variant) or _UNDEFENDED in cell.labels
            if is_compared and results.measured(cell, variant).mean(figure) is not None:
                columns[variant][_setting(results, cell)] = cell
    columns = {variant: cells for variant, cells in columns.items() if cells}
    common = set.intersection(*(set(cells) for cells in columns.values())) if columns else set()
    if not common or "" not in columns or len(columns) < 2:
        return []
    chosen = {
        variant: [cell for setting, cell in cells.items() if setting in common] for variant, cells in columns.items()
    }
    where = f"mean over {len(common)} {_kind(common)}" if len(common) > 1 else "in the setting that was run"
    parts = [
        f"{_mean(results, cells, variant, figure):.1f} % {_WHERE[variant]}{_in_paper(cells, variant, figure)}"
        for variant, cells in chosen.items()
    ]
    sentences = [f"{_name(figure)}, {where}: {', '.join(parts)}."]
    others = [name for name in ("acc", "benign_refused") if name != figure]
    for name in others:
        values = [_mean(results, cells, variant, name) for variant, cells in chosen.items()]
        known = [f"{value:.1f}" for value in values if value is not None]
        if len(known) == len(values):
            sentences.append(f"{_name(name)}, in the same order: {', '.join(known)} %.")
    return sentences + _others(results, common, figure)


def _kind(settings: set[Setting]) -> str:
    """What settings differ in, as a plural."""
    differ = {axis for axis, _ in frozenset.union(*settings) - frozenset.intersection(*settings)}
    return f"{differ.pop()}s" if differ in ({"attack"}, {"task"}) else "settings"


def _others(results: Results, settings: set[Setting], figure: str) -> list[str]:
    """The means of all other rules that have results in the same settings."""
    found = []
    index = list(results.table.axes).index("defense")
    for label in results.table.axes["defense"]:
        cells = [cell for cell in results.cells if cell.labels[index] == label and _setting(results, cell) in settings]
        measured = [cell for cell in cells if results.measured(cell, "").mean(figure) is not None]
        if label != _UNDEFENDED and len(measured) == len(settings):
            found.append(f"{label} {_mean(results, measured, '', figure):.1f}")
    return [f"Other rules in the same settings: {', '.join(found)} %."] if found else []


def _in_paper(cells: Sequence[Cell], variant: str, figure: str) -> str:
    """The mean of the numbers that the paper prints for the same cells; it has no default profile."""
    printed = [value for cell in cells if isinstance(value := cell.printed[figure], float)]
    is_complete = variant != "default" and len(printed) == len(cells)
    return f" (paper: {statistics.fmean(printed):.1f})" if is_complete else ""


def _range(results: Results, figure: str) -> list[str]:
    """The lowest and the highest mean of each column, and where it was measured."""
    sentences = []
    for variant, where in _WHERE.items():
        found = [
            (mean, _labels(results, cell))
            for cell in results.cells
            if variant in cell.variants and (mean := results.measured(cell, variant).mean(figure)) is not None
        ]
        if not found:
            continue
        low, high = min(found), max(found)
        place = f" {where}" if variant else ""
        if len(found) == 1:
            sentences.append(f"{_name(figure)}{place}: {low[0]:.1f} % ({low[1]}).")
        else:
            between = f"from {low[0]:.1f} % ({low[1]}) to {high[0]:.1f} % ({high[1]})"
            sentences.append(f"{_name(figure)}{place} ranges {between} over {len(found)} cells.")
    return sentences


def _agreement(results: Results, figure: str) -> str:
    """In how many cells each profile is at least 5 points worse than the paper."""
    parts = []
    for variant in PROFILES:
        cells = [cell for cell in results.cells if variant in cell.variants]
        found = [(cell.printed[figure], results.measured(cell, variant).mean(figure)) for cell in cells]
        compared = [(printed, mean) for printed, mean in found if isinstance(printed, float) and mean is not None]
        worse = sum(notable(*pair) == (1 if figure == "asr" else -1) for pair in compared)
        if compared:
            parts.append(f"the `{variant}` profile is at least 5 points worse in {worse} of {len(compared)} cells")
    return f"Compared with the paper, {' and '.join(parts)}." if parts else ""


def _mean(results: Results, cells: Sequence[Cell], variant: str, figure: str) -> float | None:
    means = [results.measured(cell, variant).mean(figure) for cell in cells]
    known = [mean for mean in means if mean is not None]
    return statistics.fmean(known) if known else None


def _setting(results: Results, cell: Cell) -> Setting:
    return frozenset(pair for pair in zip(results.table.axes, cell.labels, strict=True) if pair[0] != "defense")


def _labels(results: Results, cell: Cell) -> str:
    tasks = set(results.table.axes.get("task", ()))
    return ", ".join(label for label in cell.labels if label not in tasks)


def _name(figure: str) -> str:
    return FIGURES[figure].removesuffix(" %").capitalize() if figure == "benign_refused" else FIGURES[figure][:-2]
