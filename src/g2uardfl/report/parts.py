"""Pieces that pages are made of."""

from __future__ import annotations

import html
from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]], note: str) -> str:
    """A table whose first column is text and whose others are numbers, with a sentence below."""
    lines = [_row(head, "th"), *(_row(cells, "td") for cells in rows)]
    return f"<div class='scroll'><table>{''.join(lines)}</table></div><p>{note}</p>"


def _row(cells: Sequence[str], tag: str) -> str:
    first, *others = (html.escape(cell) for cell in cells)
    return f"<tr><{tag}>{first}</{tag}>" + "".join(f"<{tag} class='number'>{cell}</{tag}>" for cell in others) + "</tr>"
