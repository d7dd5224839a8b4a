"""Fails the build if a page would load anything from another host: scripts, styles, fonts or images."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

_REMOTE = re.compile(
    r"""<(?:script|img|iframe|source|link(?![^>]*rel="canonical"))\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|(?:@import\s+|url\()["']?((?:https?:)?//[^"')\s]+)"""
)


def remote(text: str) -> list[str]:
    """The addresses on other hosts that a page or style sheet loads; links that a reader may follow do not count."""
    return [one or other for one, other in _REMOTE.findall(text)]


def check(app: Sphinx, exception: Exception | None) -> None:
    """Look at all files that have been built."""
    if exception or app.builder.format != "html":
        return
    for path in Path(app.outdir).rglob("*"):
        if path.suffix in (".html", ".css") and (found := remote(path.read_text(encoding="utf-8"))):
            raise ExtensionError(f"{path.relative_to(app.outdir)} loads {', '.join(sorted(set(found)))}")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
