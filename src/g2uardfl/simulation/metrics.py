"""What a run is judged by: ACC, ASR, the defence score, and how well malicious clients were told apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..aggregation import ClientId, Verdict


def defense_score(acc: float, asr: float) -> float:
    """DS = 2 ACC (1 - ASR) / (ACC + 1 - ASR): the harmonic mean of accuracy and resistance.

    >>> round(defense_score(0.9397, 0.9330), 4)
    0.1251
    """
    resistance = 1.0 - asr
    return 2 * acc * resistance / (acc + resistance) if acc + resistance > 0 else 0.0


@dataclass
class Detection:
    """Counts over rounds of who was flagged and who should have been; "invalid" messages count for neither side."""

    true_positives: int = 0
    false_positives: int = 0
    false_negatives: int = 0
    true_negatives: int = 0

    def add(self, flagged: Collection[ClientId], attackers: Collection[ClientId], judged: Collection[ClientId]) -> None:
        """Count one round."""
        for client in judged:
            if client in flagged:
                if client in attackers:
                    self.true_positives += 1
                else:
                    self.false_positives += 1
            elif client in attackers:
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


class DetectionCounts:
    """Both readings of "flagged": refused (malicious or held out), and called malicious."""

    def __init__(self) -> None:
        self.refused, self.malicious = Detection(), Detection()

    def add(self, verdicts: Mapping[ClientId, Verdict], attackers: Collection[ClientId]) -> None:
        """Count one round."""
        judged = [client for client, verdict in verdicts.items() if verdict.decision != "invalid"]
        self.refused.add({client for client in judged if verdicts[client].refused}, attackers, judged)
        self.malicious.add({client for client in judged if verdicts[client].decision == "malicious"}, attackers, judged)

    def as_dict(self) -> dict[str, Any]:
        """For `summary.json`: all refused, and inside it the malicious alone."""
        return {**self.refused.as_dict(), "malicious_only": self.malicious.as_dict()}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
