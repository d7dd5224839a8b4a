"""Puts SVG images into the HTML page itself, so that their colours follow the light or dark theme of the site.

A linked image knows the preference of the system only, not the theme that the reader has chosen. Code hosts show the
same files as images, with the colours of their `prefers-color-scheme` rule.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


def inline(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Replace each local SVG image of a page by its markup."""
    if app.builder.format != "html":
        return
    for image in list(doctree.findall(nodes.image)):
        path = Path(app.srcdir) / image["uri"]
        if path.suffix == ".svg" and path.is_file():
            markup = re.sub(r"<\?xml.*?\?>\s*", "", path.read_text(encoding="utf-8"))
            image.replace_self(nodes.raw("", f'<div class="figure">{markup}</div>', format="html"))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("doctree-resolved", inline)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
