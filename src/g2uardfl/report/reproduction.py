"""A reproduced table of the paper as a page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from ..experiments.paper.rendering import SMOKE, blocks, conclusion, drawing, legend
from ..experiments.paper.results import Results
from ..experiments.paper.theorem import Check
from .page import document
from .parts import table


def write_table_page(results: Results, path: Path, command: str, checks: Sequence[Check] = ()) -> Path:
    """Write the page of a table to `path`; it has no external parts."""
    title = results.table.title
    parts = [f"<h1>{html.escape(title)}</h1>"]
    if any(run.scale == "smoke" for run in results.runs):
        parts.append(f"<p class='malicious'><strong>{SMOKE}.</strong></p>")
    parts.append(f"<p>{html.escape(conclusion(results))}</p>")
    stated = [f"{name} {results.stated(name)}" for name in ("scale", "local", "rounds", "seed", "commit")]
    parts.append(f"<p><code>{html.escape(command)}</code>: {html.escape(', '.join(stated))}</p>")
    for block in blocks(results):
        parts += [f"<h2>{html.escape(block.task)}</h2>"] if block.task else []
        parts.append(table(block.headings, block.rows))
    parts += ["<h2>ASR</h2>", f"<div class='scroll'>{drawing(results)}</div>"]
    if checks:
        head = ("problem", "K", "E", "rounds", "learning rate", "mean squared gradient norm", "bound", "holds")
        rows = [
            [one.problem, str(one.selected), str(one.local_steps), str(one.rounds), f"{one.learning_rate:.4g}",
             f"{one.measured:.4g}", f"{one.bound:.4g}", "yes" if one.holds else "no"]
            for one in checks
        ]  # fmt: skip
        parts += ["<h2>Theorem 1</h2>", table(head, rows)]
    notes = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in (*legend(results), *results.table.notes))
    path.write_text(document(title, [*parts, f"<ul>{notes}</ul>"]), encoding="utf-8")
    return path
