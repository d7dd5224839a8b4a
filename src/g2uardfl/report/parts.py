"""Pieces of a page. All of them escape the text that they are given."""

from __future__ import annotations

import html
from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]], note: str = "", *, numbers: bool = True) -> str:
    """A table with a sentence below; all columns but the first hold numbers, or text without `numbers`."""
    lines = [_row(head, "th", numbers), *(_row(cells, "td", numbers) for cells in rows)]
    below = f"<p>{html.escape(note)}</p>" if note else ""
    return f"<div class='scroll'><table>{''.join(lines)}</table></div>{below}"


def _row(cells: Sequence[str], tag: str, numbers: bool) -> str:
    first, *others = (html.escape(cell) for cell in cells)
    aligned = " class='number'" if numbers else ""
    return f"<tr><{tag}>{first}</{tag}>" + "".join(f"<{tag}{aligned}>{cell}</{tag}>" for cell in others) + "</tr>"
