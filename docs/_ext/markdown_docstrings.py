"""Docstrings use single backticks for code, as Markdown does: translate them for Sphinx."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")


def translate(app: Sphinx, what: str, name: str, found: object, options: dict[str, bool], lines: list[str]) -> None:
    """Write code as reStructuredText does, and escape what would be markup there."""
    text = "\n".join(lines)
    examples = text.find("\nExamples\n---")
    prose, rest = (text, "") if examples < 0 else (text[:examples], text[examples:])
    parts = _CODE.split(prose)
    parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
    parts[1::2] = [f"``{' '.join(part.split())}``" for part in parts[1::2]]
    lines[:] = ("".join(parts) + rest).split("\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension; it runs before napoleon, which reads the sections."""
    app.connect("autodoc-process-docstring", translate, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
