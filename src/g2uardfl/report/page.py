"""`report.html`: the results of one or more runs and the verdicts on their clients, in one file without external parts.

A run is a simulated one, where the attackers are known, or the audit of a real federation, where they are not.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..federation.audit import Audit
from ..simulation.directory import FinishedRun
from ..simulation.metrics import FIGURES, shown
from ..simulation.naming import run_name
from . import federation
from .events import event_table, has_events, has_notes, mark_events, note_table
from .parts import table
from .timing import has_seconds, seconds_table

Run = FinishedRun | Audit
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1c2330; background: #fff; max-width: 1100px; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
table { border-collapse: collapse; width: 100%; } .scroll { overflow-x: auto; }
th, td { padding: .35rem .7rem; text-align: left; border-bottom: 1px solid #dde2ea; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.malicious { color: #b3261e; } .held_out { color: #8a5a00; } .accepted { color: #1b6e3c; } .invalid { color: #5f6368; }
"""
_PERCENT_RANGE = (-2, 102)
"""The axis of a rate, so that lines at 0 and 100 % are visible."""
_COLOURS = ("#b3261e", "#1f5fbf", "#1b6e3c", "#7b3fa0", "#8a5a00", "#00797a")


def write_report(runs: Sequence[Run], path: str | Path, title: str = "g2uardfl report") -> Path:
    """Write a page about `runs` to `path`."""
    target = Path(path)
    target.write_text(render(runs, title), encoding="utf-8")
    return target


def render(runs: Sequence[Run], title: str) -> str:
    """The page as HTML, with scripts and styles inside."""
    from plotly.offline import get_plotlyjs

    simulated = [run for run in runs if isinstance(run, FinishedRun)]
    audits = [run for run in runs if isinstance(run, Audit)]
    parts = [f"<h1>{html.escape(title)}</h1>"]
    if simulated:
        parts += [_summary_table(simulated), "<h2>Accuracy and attack success</h2>", _figure(_curves(simulated))]
    if audits:
        parts.append(federation.summary_table(audits))
        for audit in audits:
            parts += [f"<h2>Verdicts: {html.escape(audit.name)}</h2>", _figure(federation.decisions(audit))]
    for run in runs:
        if has_events(run.rounds):
            heading = f"What the server did on its own: {html.escape(name_of(run))}"
            parts += [f"<h2>{heading}</h2>", event_table(run.rounds)]
        if has_notes(run.rounds):
            parts += [f"<h2>Notes on rounds: {html.escape(name_of(run))}</h2>", note_table(run.rounds)]
        scored = any("benign_score" in verdict for record in run.rounds for verdict in record["verdicts"].values())
        if scored:
            legend = "One line for each client" + (", red for attackers." if isinstance(run, FinishedRun) else ".")
            parts += [
                f"<h2>Benign scores: {html.escape(name_of(run))}</h2>",
                f"<p>{legend}</p>",
                _figure(_scores(run)),
            ]
        if scored or isinstance(run, Audit):
            parts += [f"<h2>Last verdict on each client: {html.escape(name_of(run))}</h2>", _verdict_table(run)]
        if has_seconds(run.rounds):
            parts += [f"<h2>Seconds of the server: {html.escape(name_of(run))}</h2>", seconds_table(run.rounds)]
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style><script>{get_plotlyjs()}</script></head>"
        f"<body>{''.join(parts)}</body></html>"
    )


def name_of(run: Run) -> str:
    """The name of a run in tables and legends: its defence, attack and task, or its rule and file."""
    if isinstance(run, Audit):
        return run.name
    return run_name(run.config)


def _summary_table(runs: Sequence[FinishedRun]) -> str:
    head = ("run", *FIGURES, "rounds", "seed")
    rows = [
        [name_of(run), *map(shown, run.figures.values()), str(run.summary["rounds"]), str(run.summary["seed"])]
        for run in runs
    ]
    return table(head, rows, "Precision, recall and F1 count every rejected client (malicious or held out) as flagged.")


def _curves(runs: Sequence[FinishedRun]) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, run in enumerate(runs):
        start = run.summary["start"]
        points = [(0, start["acc"], start["asr"])]
        points += [
            (record["round"], record["acc"], record["asr"]) for record in run.rounds if record["acc"] is not None
        ]
        rounds, accuracies, successes = zip(*points, strict=True)
        colour = _COLOURS[index % len(_COLOURS)]
        for label, values, dash in (("ACC", accuracies, "dot"), ("ASR", successes, "solid")):
            figure.add_scatter(
                x=rounds,
                y=[100 * value for value in values],
                mode="lines",
                name=f"{label}, {_trace_name(name_of(run))}",
                line={"color": colour, "dash": dash},
            )
        mark_events(figure, run.rounds, *_PERCENT_RANGE, _trace_name(name_of(run)) if len(runs) > 1 else "")
    figure.update_layout(
        xaxis_title="round", yaxis={"title": "%", "range": _PERCENT_RANGE}, legend={"orientation": "h", "y": -0.2}
    )
    return figure


def _scores(run: Run) -> Any:
    import plotly.graph_objects as go

    history: dict[str, list[tuple[int, float]]] = {}
    attackers = _attackers(run)
    for record in run.rounds:
        for client, verdict in record["verdicts"].items():
            if "benign_score" in verdict:
                history.setdefault(client, []).append((record["round"], verdict["benign_score"]))
    figure = go.Figure()
    for client, points in sorted(history.items(), key=lambda item: item[0] in attackers):
        malicious = client in attackers
        rounds, scores = zip(*points, strict=True)
        figure.add_scatter(
            x=rounds,
            y=scores,
            mode="lines+markers",
            marker={"size": 4},
            name=f"client {_trace_name(client)}{' (malicious)' if malicious else ''}",
            line={"color": "#b3261e" if malicious else "#1f5fbf", "width": 1},
            opacity=0.7,
            showlegend=False,
        )
    figure.update_layout(xaxis_title="round", yaxis_title="benign score")
    return figure


def _trace_name(text: str) -> str:
    """A name in a plot, where plotly would read some HTML tags and entities."""
    return html.escape(text, quote=False)


def _attackers(run: Run) -> set[str]:
    return run.attackers if isinstance(run, FinishedRun) else set()


def _verdict_table(run: Run) -> str:
    attackers, known = _attackers(run), isinstance(run, FinishedRun)
    last: dict[str, tuple[int, dict[str, Any]]] = {}
    rejections: dict[str, int] = {}
    for record in run.rounds:
        for client, verdict in record["verdicts"].items():
            last[client] = (record["round"], verdict)
            rejections[client] = rejections.get(client, 0) + (verdict["decision"] in ("malicious", "held_out"))
    head = ("client", *(["truth"] if known else []), "round", "decision", "rejected so far", "reason")
    rows = [f"<tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>"]
    for client in sorted(last, key=lambda name: (name not in attackers, name.zfill(12))):
        number, verdict = last[client]
        decision = html.escape(verdict["decision"])
        truth = f"<td>{'malicious' if client in attackers else 'benign'}</td>" if known else ""
        rows.append(
            f"<tr><td>{html.escape(client)}</td>{truth}<td>{number}</td>"
            f"<td class='{decision}'>{decision.replace('_', ' ')}</td><td>{rejections[client]}</td>"
            f"<td>{html.escape(verdict['reason'])}</td></tr>"
        )
    return f"<div class='scroll'><table>{''.join(rows)}</table></div>"


def _figure(figure: Any) -> str:
    figure.update_layout(template="plotly_white", height=440, margin={"l": 50, "r": 20, "t": 20, "b": 50})
    return str(
        figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False, "responsive": True})
    )
