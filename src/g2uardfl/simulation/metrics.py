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
    def precision(self) -> float:
        """The fraction of flagged clients that attacked; 0 if no client was flagged."""
        return _ratio(self.true_positives, self.true_positives + self.false_positives)

    @property
    def recall(self) -> float:
        """The fraction of attacking clients that were flagged; 0 if no client attacked."""
        return _ratio(self.true_positives, self.true_positives + self.false_negatives)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall; 0 if both are 0."""
        return _ratio(2 * self.precision * self.recall, self.precision + self.recall)

    @property
    def benign_flagged(self) -> float:
        """The false positive rate: the fraction of benign clients that were flagged."""
        return _ratio(self.false_positives, self.false_positives + self.true_negatives)

    def as_dict(self) -> dict[str, float]:
        """The rates, as in `summary.json`."""
        return {
            "precision": self.precision,
            "recall": self.recall,
            "f1": self.f1,
            "benign_flagged": self.benign_flagged,
        }


def detection_of(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The detection rates of a run, from the records in `rounds.jsonl`.

    A client is flagged if its decision is "malicious" or "held_out"; under `malicious_only`, if it is "malicious".
    """
    refused, malicious = Detection(), Detection()
    for record in records:
        attacking = {str(client) for client in record.get("attacking", record["malicious"])}
        behaving = {str(client) for client in record["malicious"]} - attacking
        decisions = {client: verdict["decision"] for client, verdict in record["verdicts"].items()}
        judged = [client for client, decision in decisions.items() if decision != "invalid"]
        refused.add([client for client in judged if decisions[client] != "accepted"], attacking, judged, behaving)
        malicious.add([client for client in judged if decisions[client] == "malicious"], attacking, judged, behaving)
    return {**refused.as_dict(), "malicious_only": malicious.as_dict()}


def summarise(records: Sequence[Mapping[str, Any]], defend_from: int) -> dict[str, Any]:
    """The scores, detection rates and times in `summary.json`, from the records of all rounds.

    Parameters
    ----------
    records
        The records in `rounds.jsonl`; the last round was evaluated.
    defend_from
        The first round that counts for detection.
    """
    last = records[-1]
    tail = [record for record in records[-max(1, len(records) // 10) :] if record["acc"] is not None]
    seconds = sum(sum(record["seconds"].values()) for record in records)
    return {
        "acc": last["acc"],
        "asr": last["asr"],
        "ds": defense_score(last["acc"], last["asr"]),
        "acc_tail_mean": statistics.fmean(record["acc"] for record in tail),
        "asr_tail_mean": statistics.fmean(record["asr"] for record in tail),
        "asr_max": max(record["asr"] for record in records if record["asr"] is not None),
        "detection": detection_of(records[defend_from - 1 :]),
        "rounds": len(records),
        "rounds_per_second": len(records) / seconds,
        "defend_seconds_median": statistics.median(record["seconds"]["defend"] for record in records),
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
