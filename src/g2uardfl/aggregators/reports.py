"""The result of a round: a verdict on every client, events, and the new model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from .reading import ClientId

Decision: TypeAlias = Literal["accepted", "held_out", "malicious", "invalid"]

WARNED_EVENTS = frozenset({"rolled_back", "model_kept"})
"""The kinds of events that need attention and are logged as warnings. Others, such as "eliminated", can occur in every
round."""


@dataclass(frozen=True)
class Verdict:
    """The decision about one client in one round, and its reason.

    `decision` is "accepted", "held_out" (not used in this round, but not flagged), "malicious" (flagged as an
    attacker) or "invalid" (the message was unusable).
    """

    decision: Decision
    reason: str
    """One plain sentence."""
    benign_score: float | None = None
    """The client's reputation after this round, for rules that keep one."""
    cluster: int | None = None
    """The cluster the client was assigned to in this round."""
    distance: float | None = None
    """Its distance from the centre of that cluster."""
    suspicion: float | None = None
    """The probability that its update is malicious, for rules that estimate one."""
    weight: float | None = None
    """The weight of its update in the new model, for rules that weight clients."""

    @property
    def refused(self) -> bool:
        """Whether the update was excluded because of its content."""
        return self.decision in ("malicious", "held_out")


@dataclass(frozen=True)
class Event:
    """A change that a rule made to the model besides aggregation, such as a rollback.

    >>> Event("rolled_back", "The model was rolled back to round 3.", {"round": 3}).as_dict()
    {'kind': 'rolled_back', 'message': 'The model was rolled back to round 3.', 'round': 3}
    """

    kind: str
    """For example "model_kept", "rolled_back" or "eliminated"."""
    message: str
    """One plain sentence."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further values, for programs."""

    @property
    def level(self) -> int:
        """The level at which the event is logged: WARNING for `WARNED_EVENTS`, INFO for all others."""
        return logging.WARNING if self.kind in WARNED_EVENTS else logging.INFO

    def as_dict(self) -> dict[str, Any]:
        """The event as JSON values."""
        return {"kind": self.kind, "message": self.message, **self.details}


class Edge(NamedTuple):
    """An edge of a rule's graph of the clients."""

    first: ClientId
    second: ClientId
    weight: float


def model_kept(why: str) -> Event:
    """The event of a round that does not change the global model.

    >>> model_kept("No update was usable").message
    'No update was usable: the global model was kept.'
    """
    return Event("model_kept", f"{why}: the global model was kept.")


@dataclass(frozen=True)
class RoundReport:
    """What happened in a round: the same report goes into run files, the audit, the log and the report page."""

    verdicts: dict[ClientId, Verdict]
    note: str = ""
    """A note on the round as a whole, including the messages of `events`."""
    events: tuple[Event, ...] = ()
    """Changes that the rule made to the model besides aggregation."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each stage took, in the order of the stages."""
    edges: tuple[Edge, ...] = ()
    """The strongest edges of the round's clients, for rules that build a graph of them."""

    def as_dict(self) -> dict[str, Any]:
        """Note, events, stage seconds and, if there are any, edges as JSON values; verdicts are stored apart."""
        edges = [[str(edge.first), str(edge.second), edge.weight] for edge in self.edges]
        return {
            "note": self.note,
            "events": [event.as_dict() for event in self.events],
            "stage_seconds": dict(self.seconds),
            **({"edges": edges} if edges else {}),
        }


@dataclass(frozen=True)
class AggregationResult:
    """The new global model and the report of the round."""

    weights: dict[str, Any]
    """In the names, kind, dtypes, shapes and device of the global model that was passed in."""
    report: RoundReport
    decided: bool = True
    """False if too few updates were usable: the rule was not called, and the model was kept."""

    @property
    def verdicts(self) -> dict[ClientId, Verdict]:
        """A verdict on every client, in the caller's order."""
        return self.report.verdicts

    @property
    def note(self) -> str:
        """A note on the round as a whole."""
        return self.report.note
