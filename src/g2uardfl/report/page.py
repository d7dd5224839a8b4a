"""`report.html`: the results of one or more runs and the verdicts on their clients, in one self-contained file.

A run is a simulated one, where the attackers are known, or the audit of a real federation, where they are not. The page
is rendered from `templates/`; what comes from clients and configs is escaped there.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..core.errors import StateError
from ..experiments.comparison import shown_figure
from ..experiments.results import Group
from ..federation.audit import DECISIONS, Audit
from ..simulation.directory import FinishedRun
from ..simulation.metrics import FIGURES
from . import headline
from .charts import SERIES_COLOURS, Figure
from .clients import client_rows
from .curves import Series, rates, series_of
from .graphs import graph, has_graph
from .notes import event_rows, note_rows
from .palette import DARK, LIGHT
from .reputation import reputation
from .subjects import Run, Subject, attacking
from .timing import stage_times, timing
from .verdicts import outcomes, timeline


def write_report(runs: Sequence[Run], path: str | Path, title: str = "g2uardfl report") -> Path:
    """Write a page about `runs` to `path`."""
    target, page = Path(path), render(runs, title)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page, encoding="utf-8")
    except OSError as error:
        raise StateError(f"cannot write {target}: {error.strerror or error}; choose another --out") from error
    return target


def render(runs: Sequence[Run], title: str) -> str:
    """The page as HTML, with scripts, styles and figures inside."""
    simulated = [run for run in runs if isinstance(run, FinishedRun)]
    series = series_of(simulated)
    subjects = _subjects(runs, series)
    script = _source("page.js")
    return str(
        _environment()
        .get_template("page.html")
        .render(
            title=title,
            sentences=headline.of_series(series) if len(runs) > 1 else [],
            results=_results(series),
            curves=rates(series) if series else [],
            details=[_detail(subject) for subject in subjects],
            light=LIGHT,
            dark=DARK,
            exported_style=figure_style(),
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


def page_parts(template: str, **values: Any) -> str:
    """A page of its own template, with the colours and styles of all pages."""
    return str(_environment().get_template(template).render(light=LIGHT, dark=DARK, **values))


def figures_of(runs: Sequence[Run]) -> list[Figure]:
    """All figures of the page, with names that are unique."""
    simulated = [run for run in runs if isinstance(run, FinishedRun)]
    series = series_of(simulated)
    found = rates(series) if series else []
    for subject in _subjects(runs, series):
        for figure in _figures(subject):
            name = f"{figure.name}-{subject.key}" if len(runs) > 1 else figure.name
            found.append(dataclasses.replace(figure, name=name))
    return found


def _subjects(runs: Sequence[Run], series: Sequence[Series[FinishedRun]]) -> list[Subject]:
    with_seed = len({run.config.seed for one in series for run in one.runs}) > 1
    names = {
        id(run): f"{one.name} against {one.panel}" + (f", seed {run.config.seed}" if with_seed else "")
        for one in series
        for run in one.runs
    }
    return [Subject(run, str(number), names.get(id(run), "")) for number, run in enumerate(runs, start=1)]


def _figures(subject: Subject) -> list[Figure]:
    if not subject.rounds:
        return []
    return [
        outcomes(subject),
        timeline(subject),
        *([reputation(subject)] if subject.has_scores else []),
        *([graph(subject)] if has_graph(subject) else []),
        *([timing(subject)] if stage_times(subject.rounds) else []),
    ]


def _detail(subject: Subject) -> dict[str, Any]:
    """What the page says about one run."""
    run = subject.run
    about: dict[str, Any]
    if isinstance(run, Audit):
        warning = "" if run.broken_at is None else f"{run.path.name}: {run.chain}."
        about = {"sentences": headline.of_audit(run), "warning": warning}
    else:
        about = {
            "sentences": headline.of_run(run),
            "facts": headline.facts(run),
            "settings": _settings(run),
            "environment": run.summary.get("environment", {}),
        }
    return {
        "warning": "",
        "facts": "",
        "settings": [],
        "environment": {},
        **about,
        "subject": subject,
        "figures": {figure.name: figure for figure in _figures(subject)},
        "clients": client_rows(subject),
        "events": event_rows(subject.rounds),
        "notes": note_rows(subject.rounds),
        "stages": stage_times(subject.rounds),
        "data": _data(subject),
    }


def _settings(run: FinishedRun) -> list[tuple[str, dict[str, Any]]]:
    """The settings in groups: the run's own, and those of task, attack and defence."""
    values = dataclasses.asdict(run.config)
    parts = {part: values.pop(f"{part}_settings") for part in ("task", "attack", "defense")}
    return [
        ("run", values),
        *((f"{part} {values[part]}", settings) for part, settings in parts.items() if settings),
    ]


def _data(subject: Subject) -> dict[str, Any]:
    """What the script needs to explain a submission: clients, reasons and, for each round, its verdicts."""
    places = {client: place for place, client in enumerate(subject.clients)}
    reasons: dict[str, int] = {}
    rounds = []
    for record in subject.rounds:
        attacked = attacking(record)
        verdicts = []
        for client, verdict in record["verdicts"].items():
            reason = reasons.setdefault(verdict["reason"], len(reasons))
            score = verdict.get("benign_score")
            verdicts.append([
                places[client], DECISIONS.index(verdict["decision"]), int(client in attacked), reason,
                *([] if score is None else [round(score, 4)]),
            ])  # fmt: skip
        rounds.append([record["round"], verdicts])
    return {
        "clients": subject.clients,
        "reasons": list(reasons),
        "decisions": list(DECISIONS),
        "known": subject.is_simulated,
        "rounds": rounds,
    }


def _results(series: Sequence[Series[FinishedRun]]) -> dict[str, Any]:
    """The table of results: one row for each series, mean and standard deviation over its seeds."""
    rows = []
    for one in series:
        cells = [shown_figure(Group({}, tuple(one.runs)), heading, figure) for heading, figure in FIGURES.items()]
        seeds = ", ".join(str(run.config.seed) for run in one.runs)
        rounds = ", ".join(dict.fromkeys(str(len(run.rounds)) for run in one.runs))
        rows.append({"series": one, "cells": [*cells, rounds, seeds]})
    return {"head": [*FIGURES, "rounds", "seeds"], "rows": rows}


@cache
def _environment() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("g2uardfl.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals["colours"] = range(SERIES_COLOURS)
    environment.filters["words"] = lambda text: str(text).replace("_", " ")
    return environment


def _source(name: str) -> str:
    """A file of the templates as it is."""
    environment = _environment()
    return str(environment.loader.get_source(environment, name)[0])


def figure_style(palette: Mapping[str, str] = LIGHT) -> str:
    """The style sheet of figures with the colours of a palette in place of its variables."""
    text: str = _environment().get_template("figure.css").render()
    for name, colour in palette.items():
        text = text.replace(f"var(--{name})", colour)
    return text


def _themed_style(body: str) -> str:
    """The styles that `body` uses: light and dark, as the system prefers or as the theme of the site says."""
    text: str = _environment().get_template("figure.css").render()
    used = {name for names in re.findall(r'class="([^"]*)"', body) for name in names.split()}
    rules = [
        (selector.strip(), style)
        for selectors, style in re.findall(r"([^{}]+)\{([^{}]*)\}", text)
        for selector in selectors.split(",")
        if set(re.findall(r"\.([\w-]+)", selector)) <= used
    ]

    def scoped(place: str, palette: Mapping[str, str]) -> str:
        found = "\n".join(f"{place} .plot {selector} {{{style}}}".lstrip() for selector, style in rules)
        return re.sub(r"var\(--([\w-]+)\)", lambda match: palette[match[1]], found)

    by_system = f"{scoped('', LIGHT)}\n@media (prefers-color-scheme: dark) {{\n{scoped('', DARK)}\n}}"
    by_site = [scoped(f'body[data-theme="{name}"]', palette) for name, palette in (("light", LIGHT), ("dark", DARK))]
    return "\n".join([by_system, *by_site])


def svg(figure: Figure, frame: int = -1, *, is_themed: bool = False) -> str:
    """A figure as an SVG document; of one with frames the one with this index.

    Parameters
    ----------
    figure
        The figure.
    frame
        The index of the frame (default: -1, the last one).
    is_themed
        Follow the light or dark theme of the reader, without a background; otherwise the figure is on white, for
        papers (default: False).
    """
    panels = []
    columns = min(figure.columns, len(figure.panels))
    width = max(panel.width for panel in figure.panels) * columns
    legend, x, y = [], 0.0, 12.0
    for key in figure.legend:
        needed = 34.0 + 6.2 * len(key.label)
        if x and x + needed > width - 10:
            x, y = 0.0, y + 18.0
        legend.append((key, x, y))
        x += needed
    top = y + 14.0 if legend else 4.0
    for row in range(0, len(figure.panels), columns):
        beside = figure.panels[row : row + columns]
        for column, panel in enumerate(beside):
            panels.append((panel, column * width / columns, top))
        top += max(panel.height for panel in beside)
    template = _environment().get_template("figure.svg")
    values = {"figure": figure, "panels": panels, "legend": legend, "width": width, "height": top, "frame": frame,
              "is_themed": is_themed}  # fmt: skip
    if not is_themed:
        return str(template.render(style=figure_style(), **values))
    return str(template.render(style=_themed_style(template.render(style="", **values)), **values))
