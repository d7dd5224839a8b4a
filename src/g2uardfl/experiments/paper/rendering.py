"""Reproduced tables as text: Markdown, LaTeX, terminal and page share the rows."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .results import FIGURES, Measured, Results, notable, tasks_of
from .table import GUARD, PROFILES, TABLES, Cell

NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "sentiment140": "Sentiment-140", "reddit": "Reddit"}
"""Tasks as the paper writes them."""
SMOKE = "SMOKE RUN: too few clients, rounds and samples to mean anything"
"""The warning on every result of `--scale smoke`."""
_MARKS = {1: " ▲", -1: " ▼", 0: ""}
_LATEX = {**{character: f"\\{character}" for character in "&%$#_{}"}, "²": "$^2$", "±": "$\\pm$", "—": "---",
          "▲": "$\\blacktriangle$", "▼": "$\\blacktriangledown$", "κ": "$\\kappa$", "λ": "$\\lambda$",
          "γ": "$\\gamma$", "`": ""}  # fmt: skip


@dataclass(frozen=True)
class Block:
    """The rows of one task."""

    task: str
    """Its name as the paper writes it; empty if the table has a single task."""
    headings: list[str]
    rows: list[list[str]]
    labels: int
    """How many columns at the left are labels."""


def blocks(results: Results, figures: Sequence[str] = ()) -> list[Block]:
    """For each task one row per cell: each figure as printed, as measured, and with `profile=default`.

    A column that would be empty is left out.

    Parameters
    ----------
    results
        What was measured.
    figures
        The figures that are shown (default: all).
    """
    axes = [axis for axis in results.table.axes if axis != "task"]
    found = []
    for task, cells in tasks_of(results):
        columns = {axis: _labels(results, cells, axis) for axis in axes}
        for figure in figures or results.table.figures:
            columns |= _columns(results, cells, figure)
        shown = {heading: values for heading, values in columns.items() if any(values)}
        rows = [list(row) for row in zip(*shown.values(), strict=True)]
        found.append(Block(NAMES.get(task, task), list(shown), rows, len(axes)))
    return found


def _labels(results: Results, cells: Sequence[Cell], axis: str) -> list[str]:
    index = list(results.table.axes).index(axis)
    return [cell.labels[index] for cell in cells]


def _columns(results: Results, cells: Sequence[Cell], figure: str) -> dict[str, list[str]]:
    """The columns of a figure; empty texts where a cell has no such value."""
    name = FIGURES[figure]
    columns: dict[str, list[str]] = {f"{name}, {kind}": [] for kind in ("printed", "measured", "default")}
    for cell in cells:
        printed = None if results.is_smoke else cell.printed[figure]
        values = [_measured(results.measured(cell, variant), figure, printed) for variant in cell.variants]
        for column, text in zip(columns.values(), [_printed(cell, figure), *values, ""], strict=False):
            column.append(text)
    return columns


def _printed(cell: Cell, figure: str) -> str:
    """The printed number, and what it should be where it contradicts the others of its cell."""
    value = cell.printed[figure]
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    correct = cell.recomputed.get(figure)
    return f"{value:.2f}" if correct is None else f"{value:.2f} (recomputed: {correct:.2f})"


def _measured(measured: Measured, figure: str, printed: float | str | None) -> str:
    """Mean and deviation, and a mark where they differ from the printed number."""
    if not measured.runs:
        return "missing"
    mean, deviation = measured.mean(figure), measured.deviation(figure)
    if mean is None:
        return "-"
    spread = "" if deviation is None else f" ± {deviation:.2f}"
    return f"{mean:.2f}{spread}{_MARKS[notable(printed, mean)]}"


def legend(results: Results) -> list[str]:
    """Sentences that say what the columns are."""
    sentences = []
    guarded = [cell for cell in results.cells if cell.settings["defense"] == GUARD]
    if guarded:
        sentences.append("In rows of G²uardFL, the measured column is `profile=paper`.")
    if any(len(cell.variants) > 1 for cell in guarded):
        sentences.append("The column default is `profile=default`.")
    sentences.append(
        "ASR and ACC are means over the last tenth of the rounds, ± the standard deviation over the seeds."
    )
    if not results.is_smoke:
        sentences.append("▲ and ▼ mark differences of at least 5 points to the printed number.")
    if any(cell.recomputed for cell in results.cells):
        sentences.append("Recomputed: the printed number does not follow from the others that the paper prints.")
    return sentences


def conclusion(results: Results) -> str:
    """The mean over all cells without and with the guard, and how far it agrees with the printed numbers."""
    if results.is_smoke:
        return f"{len(results.cells)} cells, {len(results.missing)} of them missing."
    figures = results.table.figures
    figure = "asr" if "asr" in figures else figures[-1]
    name = FIGURES[figure].removesuffix(" %")
    without = [results.measured(cell, "").mean(figure) for cell in results.cells if "No defense" in cell.labels]
    means = {"without a defence": _known(without)}
    agreements = []
    for variant in PROFILES:
        cells = [cell for cell in results.cells if variant in cell.variants]
        found = [(cell.printed[figure], results.measured(cell, variant).mean(figure)) for cell in cells]
        means[f"with `profile={variant}`"] = _known([mean for _, mean in found])
        compared = [(printed, mean) for printed, mean in found if isinstance(printed, float) and mean is not None]
        worse = sum(notable(*pair) == (1 if figure == "asr" else -1) for pair in compared)
        if compared:
            agreements.append(f"`profile={variant}` is at least 5 points worse in {worse} of {len(compared)} cells")
    shown = [f"{statistics.fmean(values):.1f} % {where}" for where, values in means.items() if values]
    sentences = [f"{name}, mean over the cells: {', '.join(shown)}."] if shown else []
    if agreements:
        sentences.append(f"Compared with the printed numbers, {', and '.join(agreements)}.")
    return " ".join(sentences)


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def to_markdown(results: Results) -> str:
    """The page of a table: conclusion, table, drawing, and how it was made."""
    table = results.table
    lines = [f"# {table.title}", ""]
    if results.is_smoke:
        lines += [f"**{SMOKE}.**", ""]
    lines += [conclusion(results), "", f"`{command(results)}`: {origin(results)}.", ""]
    for block in blocks(results):
        lines += [f"## {block.task}", ""] if block.task else []
        rule = ["---"] * block.labels + ["---:"] * (len(block.headings) - block.labels)
        lines += [f"| {' | '.join(row)} |" for row in (block.headings, rule, *block.rows)]
        lines += [""]
    lines += [f"![ASR]({table.name}.svg)", ""]
    lines += [f"- {sentence}" for sentence in (*legend(results), *table.notes)]
    return "\n".join([*lines, f"- One row for each run: [{table.name}.csv]({table.name}.csv)", ""])


def to_latex(results: Results) -> str:
    """A `tabular` for each task; needs the packages booktabs and amssymb."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join("".join(_LATEX.get(character, character) for character in cell) for cell in cells) + " \\\\\n"

    text = f"% {results.table.title}\n" + (f"% {SMOKE}\n" if results.is_smoke else "")
    for block in blocks(results):
        columns = "l" * block.labels + "r" * (len(block.headings) - block.labels)
        head = [f"% {block.task}\n" if block.task else "", f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n"]
        text += "".join([*head, line(block.headings), "\\midrule\n", *map(line, block.rows)])
        text += "\\bottomrule\n\\end{tabular}\n"
    return text


def command(results: Results) -> str:
    """The command that makes these results, whatever parts they were made in."""
    table = results.table
    options = ["--scale", results.stated("scale")]
    if results.stated("local") != "steps":
        options += ["--local", results.stated("local")]
    only = []
    for index, labels in enumerate(table.axes.values()):
        present = {cell.labels[index] for cell in results.cells}
        only += [label for label in labels if label in present and len(present) < len(labels)]
    if only:
        options += ["--only", *only]
    if not results.is_smoke:
        options += ["--seeds", str(1 + max((run.seed for run in results.runs), default=0))]
        options += ["--rounds", results.stated("rounds")]
    return shlex.join(["g2uardfl", "reproduce", table.name if table.name in TABLES else f"{table.name}.toml", *options])


def origin(results: Results) -> str:
    """Local training, rounds, seeds and commit of the runs."""
    local = {"steps": "2 local steps", "epochs": "2 local epochs"}.get(results.stated("local"), results.stated("local"))
    return (
        f"{local}, {results.stated('rounds')} rounds, seeds {results.stated('seed')}, commit {results.stated('commit')}"
    )
