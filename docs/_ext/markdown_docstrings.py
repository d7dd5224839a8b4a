"""Docstrings use single backticks for code, as Markdown does: translate them for Sphinx."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_COLON = "\ue000"
"""Stands for a colon while napoleon reads the docstring of an attribute: it takes what precedes a colon for a type."""


def translate(app: Sphinx, what: str, name: str, found: object, options: dict[str, bool], lines: list[str]) -> None:
    """Write code as reStructuredText does, and escape what would be markup there; of modules keep one paragraph."""
    text = "\n".join(lines)
    if what == "module":
        text = text.partition("\n\n")[0]
    examples = text.find("\nExamples\n---")
    prose, rest = (text, "") if examples < 0 else (text[:examples], text[examples:])
    parts = _CODE.split(prose)
    parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
    parts[1::2] = [f"``{' '.join(part.split())}``" for part in parts[1::2]]
    text = "".join(parts) + rest
    if what in ("attribute", "property", "data"):
        text = text.replace(":", _COLON)
    lines[:] = text.split("\n")


def restore(app: Sphinx, what: str, name: str, found: object, options: dict[str, bool], lines: list[str]) -> None:
    """Put the colons back."""
    lines[:] = [line.replace(_COLON, ":") for line in lines]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension: before and after napoleon, which reads the sections of docstrings."""
    app.connect("autodoc-process-docstring", translate, priority=100)
    app.connect("autodoc-process-docstring", restore, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
