"""Evaluation of a run: ACC, ASR, the defence score, detection of malicious clients, and the summary."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..aggregators.base import ClientId


def defense_score(acc: float, asr: float) -> float:
    """DS = 2 ACC (1 - ASR) / (ACC + 1 - ASR): the harmonic mean of accuracy and resistance.

    >>> round(defense_score(0.9397, 0.9330), 4)
    0.1251
    """
    resistance = 1.0 - asr
    return 2 * acc * resistance / (acc + resistance) if acc + resistance > 0 else 0.0


@dataclass
class Detection:
    """The confusion matrix of flagged clients against attacking clients, summed over rounds.

    "invalid" messages are not counted. A malicious client that does not attack in a round (the randomized attack) is
    not counted either: flagging it is no false positive, and accepting it is no false negative.
    """

    true_positives: int = 0
    false_positives: int = 0
    false_negatives: int = 0
    true_negatives: int = 0

    def add(
        self,
        flagged: Collection[ClientId],
        attacking: Collection[ClientId],
        judged: Collection[ClientId],
        behaving: Collection[ClientId] = (),
    ) -> None:
        """Add one round.

        Parameters
        ----------
        flagged
            The clients that the defence flagged.
        attacking
            The clients that attacked.
        judged
            All clients with a verdict other than "invalid".
        behaving
            The malicious clients that did not attack (default: none).
        """
        for client in judged:
            if client in behaving:
                continue
            if client in flagged:
                if client in attacking:
                    self.true_positives += 1
                else:
                    self.false_positives += 1
            elif client in attacking:
                self.false_negatives += 1
            else:
                self.true_negatives += 1

    @property
    def precision(self) -> float | None:
        """The fraction of flagged clients that attacked; None if no client was flagged."""
        return _ratio(self.true_positives, self.true_positives + self.false_positives)

    @property
    def recall(self) -> float | None:
        """The fraction of attacking clients that were flagged; None if no client attacked."""
        return _ratio(self.true_positives, self.true_positives + self.false_negatives)

    @property
    def f1(self) -> float | None:
        """2 TP / (2 TP + FP + FN), the harmonic mean of both; None if no client attacked or was flagged."""
        return _ratio(2 * self.true_positives, 2 * self.true_positives + self.false_positives + self.false_negatives)

    @property
    def benign_refused(self) -> float | None:
        """The false positive rate: the fraction of honest submissions that were rejected; None if there were none."""
        return _ratio(self.false_positives, self.false_positives + self.true_negatives)

    def as_dict(self) -> dict[str, float | None]:
        """The rates, as in `summary.json`."""
        return {
            "precision": self.precision,
            "recall": self.recall,
            "f1": self.f1,
            "benign_refused": self.benign_refused,
        }


class DetectionRates:
    """The detection rates of the rounds so far, from the records in `rounds.jsonl`.

    A client is flagged if its decision is "malicious" or "held_out"; under `malicious_only`, if it is "malicious".
    `rounds_to_detection` counts from the first round with an attack, that round included, to the first in which an
    attacking client is flagged; None if none is.
    """

    def __init__(self) -> None:
        self.refused, self.malicious = Detection(), Detection()
        self._first_attack: int | None = None
        self._first_detection: int | None = None

    def add(self, record: Mapping[str, Any]) -> None:
        """Add one round."""
        attacking = {str(client) for client in record.get("attacking", record["malicious"])}
        behaving = {str(client) for client in record["malicious"]} - attacking
        decisions = {client: verdict["decision"] for client, verdict in record["verdicts"].items()}
        judged = [client for client, decision in decisions.items() if decision != "invalid"]
        flagged = {client for client in judged if decisions[client] != "accepted"}
        self.refused.add(flagged, attacking, judged, behaving)
        convicted = [client for client in judged if decisions[client] == "malicious"]
        self.malicious.add(convicted, attacking, judged, behaving)
        if attacking and self._first_attack is None:
            self._first_attack = record["round"]
        if attacking & flagged and self._first_detection is None:
            self._first_detection = record["round"]

    def as_dict(self) -> dict[str, Any]:
        """The rates, as in `summary.json`, and `rounds_to_detection`."""
        waited = None
        if self._first_attack is not None and self._first_detection is not None:
            waited = self._first_detection - self._first_attack + 1
        rates = {**self.refused.as_dict(), "malicious_only": self.malicious.as_dict()}
        return {**rates, "rounds_to_detection": waited}


def detection_of(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The detection rates of a run, from the records in `rounds.jsonl`."""
    rates = DetectionRates()
    for record in records:
        rates.add(record)
    return rates.as_dict()


def summarise(records: Sequence[Mapping[str, Any]], defend_from: int) -> dict[str, Any]:
    """The scores, detection rates and times in `summary.json`, from the records of all rounds so far.

    Parameters
    ----------
    records
        The records in `rounds.jsonl`. Scores are None if no round was evaluated.
    defend_from
        The first round that counts for detection.
    """
    evaluated = [record for record in records if record["acc"] is not None]
    acc, asr = (evaluated[-1]["acc"], evaluated[-1]["asr"]) if evaluated else (None, None)
    tail = [record for record in records[-max(1, len(records) // 10) :] if record["acc"] is not None] or evaluated[-1:]
    seconds = sum(sum(record["seconds"].values()) for record in records)
    detection = detection_of(records[defend_from - 1 :])
    return {
        "acc": acc,
        "asr": asr,
        "ds": None if acc is None or asr is None else defense_score(acc, asr),
        "acc_tail_mean": _mean([record["acc"] for record in tail]),
        "asr_tail_mean": _mean([record["asr"] for record in tail]),
        "asr_max": max((record["asr"] for record in evaluated), default=None),
        "benign_refused": detection["benign_refused"],
        "rounds_to_detection": detection.pop("rounds_to_detection"),
        "detection": detection,
        "rounds": len(records),
        "rounds_per_second": _ratio(len(records), seconds),
        "defend_seconds_median": statistics.median(record["seconds"]["defend"] for record in records)
        if records
        else None,
    }


FIGURES = {
    "ACC %": "acc",
    "ACC %, mean of the last tenth": "acc_tail_mean",
    "ASR %": "asr",
    "ASR %, mean of the last tenth": "asr_tail_mean",
    "ASR %, peak": "asr_max",
    "DS %": "ds",
    "precision %": "precision",
    "recall %": "recall",
    "F1 %": "f1",
    "false positive rate %": "benign_refused",
    "rounds to detection": "rounds_to_detection",
}
"""The figures of a run in tables: heading -> name in `summary.json` or in its `detection`. Those with % are shares."""


def figures(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """The `FIGURES` of a summary by heading, shares in percent; None where a rate is not defined.

    >>> figures({"acc": 0.5, "detection": {"recall": None}})["ACC %"]
    50.0
    """
    values = {**summary, **summary["detection"]}
    found = {heading: values.get(name) for heading, name in FIGURES.items()}
    return {heading: 100 * value if "%" in heading and value is not None else value for heading, value in found.items()}


def shown(value: float | None) -> str:
    """A figure as text; "-" where it is not defined.

    >>> shown(12.345), shown(3), shown(None)
    ('12.35', '3', '-')
    """
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.2f}"


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
