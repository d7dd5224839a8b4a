"""Reproduced tables as text: Markdown, LaTeX, terminal and page share the rows."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from .conclusions import conclusion
from .results import FIGURES, Measured, Results, notable, tasks_of
from .table import PROFILES, TABLES, Cell

NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "sentiment140": "Sentiment-140", "reddit": "Reddit"}
"""Tasks as the paper writes them."""
SMOKE = "SMOKE RUN: too few clients, rounds and samples to mean anything"
"""The warning on every result of `--scale smoke`."""
_COLUMNS = {"": "measured", **{profile: f"`{profile}` profile" for profile in PROFILES}}
"""The headings of measured values: of rules without profiles, and of the profiles of the guard."""
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
    """For each task one row per cell: each figure in the paper, as measured, and with each profile of the guard.

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
    columns: dict[str, list[str]] = {f"{name}, paper": [_printed(cell, figure) for cell in cells]}
    for variant in ("", *PROFILES):
        column = columns[f"{name}, {_COLUMNS[variant]}"] = []
        for cell in cells:
            printed = None if results.is_smoke else cell.printed[figure]
            measured = results.measured(cell, variant)
            column.append(_measured(measured, figure, printed) if variant in cell.variants else "")
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
    has_printed = any(value is not None for cell in results.rows for value in cell.printed.values())
    sentences = []
    if has_printed:
        sentences.append(
            'Columns "paper" have the numbers that the paper prints; all others were measured with this code.'
        )
    spread = ", ± the standard deviation over the seeds" if len({run.seed for run in results.runs}) > 1 else ""
    sentences.append(f"ASR and ACC are means over the last tenth of the rounds{spread}.")
    if "benign_refused" in results.table.figures:
        sentences.append("The false positive rate is the share of honest submissions that are rejected.")
    if has_printed and not results.is_smoke:
        sentences.append("▲ and ▼ mark differences of at least 5 points from the paper's number.")
    if any(cell.recomputed for cell in results.cells):
        sentences.append("Recomputed: the paper's number does not follow from the others that it prints.")
    return sentences


def missing(results: Results) -> str:
    """A sentence that counts the cells without a run; empty if there are none."""
    count = len(results.missing)
    return f"{count} of {results.expected} cells are missing; the command runs them." if count else ""


def to_markdown(results: Results, explanation: str = "") -> str:
    """The page of a table: conclusion, table, drawing, and how it was made.

    Parameters
    ----------
    results
        What was measured.
    explanation
        Text below the table that explains differences from the paper, in Markdown (default: none).
    """
    table = results.table
    lines = [f"# {table.title}", ""]
    if results.is_smoke:
        lines += [f"**{SMOKE}.**", ""]
    lines += [f"**{conclusion(results)}**", ""] if not results.is_smoke else [conclusion(results), ""]
    lines += [f"`{command(results)}`: {' '.join(filter(None, [f'{origin(results)}.', missing(results)]))}", ""]
    for block in blocks(results):
        lines += [f"## {block.task}", ""] if block.task else []
        rule = ["---"] * block.labels + ["---:"] * (len(block.headings) - block.labels)
        lines += [f"| {' | '.join(row)} |" for row in (block.headings, rule, *block.rows)]
        lines += [""]
    lines += [explanation.strip(), ""] if explanation else []
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
        options += ["--rounds", str(max((run.rounds for run in results.runs), default=0))]
    return shlex.join(["g2uardfl", "reproduce", table.name if table.name in TABLES else f"{table.name}.toml", *options])


def origin(results: Results) -> str:
    """Local training, rounds, seeds, commit and device of the runs."""
    local = {"steps": "2 local steps", "epochs": "2 local epochs"}.get(results.stated("local"), results.stated("local"))
    seeds = results.stated("seed")
    parts = [
        local,
        f"{results.stated('rounds').replace(', ', ' and ')} rounds",
        f"{'seeds' if ',' in seeds else 'seed'} {seeds}",
    ]
    parts.append(f"commit {results.stated('commit')}")
    devices = results.devices()
    return ", ".join([*parts, f"on {devices}"] if devices else parts)
