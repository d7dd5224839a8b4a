"""The results as sentences."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ..federation.audit import Audit
from ..simulation.directory import FinishedRun
from ..simulation.naming import attack_name, defense_name, task_name
from .curves import Series
from .subjects import Record, rounds_with

_KEPT_OUT, _SUCCEEDED = 0.1, 0.5
"""The attack is called prevented below the first attack success rate, and successful at or above the second."""


def percent(share: float | None) -> str:
    """A share as a percentage; "-" where it is not defined.

    >>> percent(0.1234), percent(None)
    ('12.3 %', '-')
    """
    return "-" if share is None else f"{100 * share:.1f} %"


def of_run(run: FinishedRun) -> list[str]:
    """What happened in one simulated run: a headline and further sentences."""
    summary = run.summary
    asr, acc = summary["asr_tail_mean"], summary["acc_tail_mean"]
    if asr is None or acc is None:
        return [f"Round {len(run.rounds)} of {run.config.rounds}: nothing was evaluated yet."]
    start = summary.get("start", {})
    before = f" ({percent(start['acc'])} at the start)" if start.get("acc") is not None else ""
    if not any(record["malicious"] for record in run.rounds):
        first = f"Nobody attacked: the accuracy is {percent(acc)}{before}."
    else:
        kept = "The attack was prevented" if asr < _KEPT_OUT else "The attack partly succeeded"
        outcome = "The attack succeeded" if asr >= _SUCCEEDED else kept
        first = f"{outcome}: attack success rate {percent(asr)}, accuracy {percent(acc)}{before}."
    sentences = [first]
    if len(run.rounds) < run.config.rounds:
        sentences.append(f"The run is not finished: {len(run.rounds)} of {run.config.rounds} rounds are done.")
    if summary["asr_max"] is not None and summary["asr_max"] >= asr + 0.05:
        peak = next(record["round"] for record in run.rounds if record["asr"] == summary["asr_max"])
        sentences.append(f"The highest attack success rate was {percent(summary['asr_max'])} (round {peak}).")
    return sentences + _detection(run) + _events(run.rounds)


def facts(run: FinishedRun) -> str:
    """The settings that matter most, and the version, in a line."""
    config, environment = run.config, run.summary.get("environment", {})
    parts = [
        f"{defense_name(config)} against {attack_name(config)} on {task_name(config)}",
        f"{config.per_round} of {config.clients} clients in each round",
        f"{100 * config.pmr:g} % of the clients malicious",
        f"alpha {config.alpha:g}",
        f"seed {config.seed}",
    ]
    versions = [f"{name} {environment[name]}" for name in ("g2uardfl", "commit") if name in environment]
    return "; ".join([", ".join(parts), *versions]) + "."


def _detection(run: FinishedRun) -> list[str]:
    summary, detection = run.summary, run.summary["detection"]
    refused = any(
        verdict["decision"] in ("malicious", "held_out") for one in run.rounds for verdict in one["verdicts"].values()
    )
    if not refused:
        return ["No submission was rejected."]
    parts = []
    if detection["recall"] is not None:
        parts.append(f"{percent(detection['recall'])} of the attacks")
    if summary.get("benign_refused") is not None:
        parts.append(f"{percent(summary['benign_refused'])} of the honest submissions")
    sentences = [f"The server rejected {' and '.join(parts)}."] if parts else []
    waited = summary.get("rounds_to_detection")
    if waited is not None:
        sentences.append(f"The first attack was detected {_in_rounds(waited)}.")
    return sentences


def _in_rounds(waited: int) -> str:
    return "in the first round of the attack" if waited == 1 else f"in round {waited} of the attack"


def _events(rounds: Sequence[Record]) -> list[str]:
    sentences = []
    for kind, verb in (("rolled_back", "rolled the model back"), ("eliminated", "removed something from the model")):
        count = len(rounds_with(kind, rounds))
        if count:
            sentences.append(f"The server {verb} in {count} round{'s' * (count > 1)}.")
    return sentences


def of_series(series: Sequence[Series[FinishedRun]]) -> list[str]:
    """Which defence did best against each attack, in the mean of the last tenth of the rounds."""
    sentences = []
    for panel in dict.fromkeys(one.panel for one in series):
        scores = []
        for one in series:
            values = [run.summary["asr_tail_mean"] for run in one.runs if one.panel == panel]
            known = [value for value in values if value is not None]
            if known:
                scores.append((statistics.fmean(known), one.name))
        scores.sort()
        if len(scores) > 1:
            (low, best), (high, worst) = scores[0], scores[-1]
            also = [name for score, name in scores[1:-1] if score <= low + 0.02]
            names = f"{best} and {len(also)} other{'s' * (len(also) > 1)}" if also else best
            sentences.append(
                f"{panel}: the attack success rate is lowest with {names} ({percent(low)}) "
                f"and highest with {worst} ({percent(high)})."
            )
    return sentences


def of_audit(audit: Audit) -> list[str]:
    """What happened in a real federation."""
    counts, total = audit.counts(), audit.counts().total()
    ever = {
        client
        for record in audit.rounds
        for client, verdict in record["verdicts"].items()
        if verdict["decision"] in ("malicious", "held_out")
    }
    sentences = [
        f"{len(ever)} of {len(audit.clients)} clients were rejected at least once in {len(audit.rounds)} rounds.",
        f"Of {total} submissions {percent(counts['malicious'] / total)} were flagged as malicious and "
        f"{percent(counts['held_out'] / total)} held out.",
    ]
    if counts["invalid"]:
        sentences.append(f"{counts['invalid']} messages were unusable.")
    sentences += _events(audit.rounds)
    if audit.damaged:
        sentences.append(f"{audit.damaged} damaged lines of the audit were ignored.")
    return sentences if audit.broken_at else [*sentences, f"{audit.path.name}: {audit.chain}."]
