"""Figures as files for papers, SVG or PDF, and in notebooks."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError, StateError
from ..simulation.config import RunConfig
from .charts import Figure
from .curves import rates, series_of
from .page import svg
from .subjects import Record

FORMATS = ("svg", "pdf")
"""The endings of files."""


@dataclass(frozen=True)
class Drawing:
    """A figure that notebooks show and that can be saved."""

    figure: Figure

    def _repr_svg_(self) -> str:
        return svg(self.figure)

    def save(self, path: str | Path) -> Path:
        """Write the figure as SVG or, with the extra `pdf`, as PDF; the name's ending says which."""
        target = Path(path)
        kind = target.suffix.removeprefix(".")
        if kind not in FORMATS:
            raise ConfigError(f"format {kind!r} of {target} is not known: choose {' or '.join(FORMATS)}")
        content = _pdf(svg(self.figure)) if kind == "pdf" else svg(self.figure).encode()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        except OSError as error:
            raise StateError(f"cannot write {target}: {error.strerror or error}; choose another folder") from error
        return target


@dataclass(frozen=True)
class _RunInMemory:
    """What curves are drawn from."""

    config: RunConfig
    rounds: Sequence[Record]
    summary: Mapping[str, Any]


def draw_rates(config: RunConfig, records: Sequence[Record], summary: Mapping[str, Any]) -> Drawing:
    """ASR and ACC of one run over the rounds.

    Parameters
    ----------
    config, records, summary
        The run's settings, the records of its rounds and its summary.
    """
    asr, acc = rates(series_of([_RunInMemory(config, records, summary)]))
    for figure, name in ((asr, "ASR"), (acc, "ACC")):
        figure.panels[0].title = f"{name} (%)"
    return Drawing(Figure("rates", "ASR and ACC", [*asr.panels, *acc.panels], asr.legend))


def write_figures(figures: Sequence[Figure], folder: str | Path, kind: str = "svg") -> list[Path]:
    """Write each figure, of one with frames the last, to a file of its name in `folder`; return the files."""
    return [Drawing(figure).save(Path(folder) / f"{figure.name}.{kind}") for figure in figures]


def _pdf(document: str) -> bytes:
    try:
        from reportlab.graphics import renderPDF
        from svglib.svglib import svg2rlg
    except ImportError as error:
        raise ConfigError("PDF files need svglib: pip install 'g2uardfl[pdf]', or choose svg") from error
    buffer = io.BytesIO()
    renderPDF.drawToFile(svg2rlg(io.BytesIO(document.encode())), buffer)
    return buffer.getvalue()
