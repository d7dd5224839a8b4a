"""Figures as files for papers: SVG, or PDF with the extra `pdf`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from ..core.errors import ConfigError, StateError
from .charts import Figure
from .page import svg

FORMATS = ("svg", "pdf")


def write_figures(figures: Sequence[Figure], folder: str | Path, kind: str = "svg") -> list[Path]:
    """Write each figure to a file of its name in `folder`; return the files.

    Parameters
    ----------
    figures
        What to write; of a figure with frames the last one.
    folder
        Is made where it is missing.
    kind
        One of `FORMATS` (default: svg).
    """
    if kind not in FORMATS:
        raise ConfigError(f"format {kind!r} is not known: choose {' or '.join(FORMATS)}")
    encode = _pdf if kind == "pdf" else str.encode
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        written = []
        for figure in figures:
            written.append(place / f"{figure.name}.{kind}")
            written[-1].write_bytes(encode(svg(figure)))
    except OSError as error:
        raise StateError(f"cannot write to {place}: {error.strerror or error}; choose another folder") from error
    return written


def _pdf(document: str) -> bytes:
    try:
        from reportlab.graphics import renderPDF
        from svglib.svglib import svg2rlg
    except ImportError as error:
        raise ConfigError("PDF files need svglib: pip install 'g2uardfl[pdf]', or choose svg") from error
    buffer = io.BytesIO()
    renderPDF.drawToFile(svg2rlg(io.BytesIO(document.encode())), buffer)
    return buffer.getvalue()
