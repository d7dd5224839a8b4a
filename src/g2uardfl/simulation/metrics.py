"""What a run is judged by: ACC, ASR, the defence score, and how well malicious clients were told apart."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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
    """Counts over rounds of who was flagged and who should have been; "invalid" messages count for neither side.

    A malicious client that behaves for once (the randomized attack) is no mistake either way: flagging it is not a
    false alarm, and letting it pass misses nothing.
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
        """Count one round; `behaving` are malicious clients that did not attack in it."""
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
        """The share of the flagged that were malicious; 0 when nobody was flagged."""
        return _ratio(self.true_positives, self.true_positives + self.false_positives)

    @property
    def recall(self) -> float:
        """The share of the malicious that were flagged."""
        return _ratio(self.true_positives, self.true_positives + self.false_negatives)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return _ratio(2 * self.precision * self.recall, self.precision + self.recall)

    @property
    def benign_flagged(self) -> float:
        """The share of benign clients that were flagged."""
        return _ratio(self.false_positives, self.false_positives + self.true_negatives)

    def as_dict(self) -> dict[str, float]:
        """For `summary.json`."""
        return {
            "precision": self.precision,
            "recall": self.recall,
            "f1": self.f1,
            "benign_flagged": self.benign_flagged,
        }


def detection_of(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Detection over the rounds of a run, in both readings of "flagged", from the objects of `rounds.jsonl`.

    The figures count everybody who was refused (malicious or held out); under `malicious_only` those called malicious.
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


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
