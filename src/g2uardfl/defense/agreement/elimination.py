"""Aggregation, rollback and bounded elimination."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...aggregators._shares import sample_shares
from ...aggregators.base import Event, Round
from ...core.numerics import Array, cosine
from ...core.settings import check, number, switch
from ...core.state_files import SavedState
from ..stages import Elimination, Mask, Step
from .consensus import consensus
from .construction import SubmissionGraph
from .filtering import AgreementJudgement
from .rollback import Snapshot, Snapshots

_ROLLBACK_PROBABILITY = 0.99
"""Roll back when an accepted submission belongs to a group of attackers with at least this probability."""
_DELIBERATE = 0.25
"""Above this cosine the accepted clients' step is directed: against the attackers, or back to what was removed."""
_REMOVED = 0.5
"""The share of the attackers' clipped pull that is removed in a round."""
_NEGLIGIBLE = 1e-3
"""Once reversals have halved the removed share to this, nothing is removed any more."""


@dataclass(frozen=True)
class EliminationSettings:
    """Settings of the step, rollback and elimination."""

    rollback: bool = switch(True)
    """Whether the model is rolled back once attackers are detected whose updates had been accepted."""
    dissent: float = number(0.15, 0, 0.5)
    """The share of the clients of a round, rounded down, that need not support a change of a converged model."""
    eliminate: bool = switch(True)
    """Whether what attackers pull towards is removed from the model."""

    def __post_init__(self) -> None:
        check(self)


class RollbackAndElimination(Elimination[SubmissionGraph, AgreementJudgement]):
    """Adds the mean of the accepted, clipped updates; undoes what undetected attackers did."""

    Settings = EliminationSettings

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self.snapshots = Snapshots()
        self.removed: Tensor | None = None
        """What was removed in the last round."""
        self.removal_share = 1.0
        """This share of a removal is carried out; it is halved whenever honest clients reverse one."""

    def step(self, round_: Round, evidence: SubmissionGraph, judgement: AgreementJudgement) -> Step:
        """The mean of the accepted updates, a rollback in its place, or the mean minus a removal."""
        accepted = judgement.accepted
        shares = _shares(round_.num_examples, accepted) * judgement.clipping
        mean, weights = round_.weighted_sum(shares), shares
        vector, events = mean, []
        if judgement.learning < 1:
            agreed = consensus(round_.sent, judgement.clipping, self.settings.dissent)
            vector = agreed.lerp(mean, judgement.learning)
        reversed_ = self._is_reversed(mean)
        if reversed_:
            events.append(_reversed(self.removal_share))
        snapshot = self._snapshot_to_restore(evidence, judgement)
        if snapshot is not None:
            # The clients trained on the model that is given up, so that their updates are of no use.
            return Step(torch.zeros_like(vector), 0 * shares, shares, (*events, _rolled_back(snapshot)), snapshot.model)
        if self._may_remove(judgement) and not reversed_:
            away = judgement.colluding / judgement.colluding.sum() - shares
            poison = round_.weighted_sum(away)
            norm = norm_of(poison)
            factor = self.removal_share * _REMOVED * min(1.0, judgement.usual_norm / norm) if norm > 0 else 0.0
            if factor > 0 and self.removal_share * _REMOVED > _NEGLIGIBLE:
                self.removed = factor * poison
                vector, weights = vector - self.removed, shares - factor * away
                events.append(_eliminated(norm_of(self.removed), judgement))
                # A rollback may undo this removal, but restores no earlier model.
                self.snapshots.kept.clear()
        if self.settings.rollback:
            self.snapshots.add(evidence.round, round_)
        return Step(vector, weights, shares, tuple(events))

    def _is_reversed(self, step: Tensor) -> bool:
        """Whether the accepted clients' step leads back to what was removed in the last round.

        That makes the elimination a line search: nothing is removed now, and half as much from the next time on.
        """
        removed, self.removed = self.removed, None
        reversed_ = removed is not None and cosine_of(step, removed.to(step)) > _DELIBERATE
        if reversed_:
            self.removal_share /= 2
        return reversed_

    def _snapshot_to_restore(self, evidence: SubmissionGraph, judgement: AgreementJudgement) -> Snapshot | None:
        """The model from before the first accepted submission that is now known to be an attacker's."""
        if not self.settings.rollback:
            return None
        rounds, malicious = evidence.rounds, judgement.membership > _ROLLBACK_PROBABILITY
        self.snapshots.forget(before=int(rounds.min()))
        accepted = evidence.accepted.copy()
        accepted[evidence.here] = judgement.accepted
        poisoned = sorted(set(rounds[malicious & accepted].tolist()))
        # While clients learn the same, attackers do so, too, and too much would be lost.
        return None if judgement.learning > 0 else self.snapshots.before(poisoned)

    def _may_remove(self, judgement: AgreementJudgement) -> bool:
        """Whether there is something to remove."""
        # Early in training everybody's step opposes whoever does not learn.
        return bool(self.settings.eliminate and judgement.colluding.sum() > 1 and judgement.learning == 0)

    def state(self) -> SavedState:
        """Snapshots, and what was removed."""
        vector = {} if self.removed is None else {"removed": self.removed.cpu().numpy()}
        parts = {"snapshots": self.snapshots.state(), "last": SavedState({"removed": bool(vector)}, vector)}
        return SavedState.joined(parts, {"removal_share": self.removal_share})

    def restore(self, state: SavedState) -> None:
        """Continue with saved snapshots."""
        self.snapshots.restore(state.part("snapshots"))
        self.removal_share = float(state.values["removal_share"])
        last = state.part("last")
        self.removed = torch.from_numpy(last.arrays["removed"]) if last.values["removed"] else None


def norm_of(vector: Tensor) -> float:
    """The Euclidean norm."""
    return float(torch.linalg.vector_norm(vector))


def cosine_of(one: Tensor, other: Tensor) -> float:
    """The cosine of two vectors; 0 where one of them is zero."""
    first, second = one.double(), other.double()
    product, squared, other_squared = (
        np.array(float(a @ b)) for a, b in ((first, second), (first,) * 2, (second,) * 2)
    )
    return float(cosine(product, squared, other_squared))


def _shares(num_examples: Array, accepted: Mask) -> Array:
    """Each client's share in the mean: its samples, if it is accepted."""
    shares = np.zeros(len(accepted))
    if accepted.any():
        shares[accepted] = sample_shares(num_examples[accepted])
    return shares


def _rolled_back(snapshot: Snapshot) -> Event:
    message = (
        f"The model was rolled back to the start of round {snapshot.number}: attackers were detected "
        "whose updates had been accepted since."
    )
    return Event("rolled_back", message, {"round": snapshot.number})


def _eliminated(norm: float, judgement: AgreementJudgement) -> Event:
    clients = int(np.count_nonzero(judgement.colluding))
    relative = norm / judgement.usual_norm if judgement.usual_norm else math.nan
    message = (
        f"The common direction of {clients} flagged clients was removed from the model ({relative:.2g} usual norms)."
    )
    return Event("eliminated", message, {"clients": clients, "norm": norm})


def _reversed(share: float) -> Event:
    message = "Honest updates point towards the removed component: nothing is removed now, and half as much later."
    return Event("elimination_reversed", message, {"removal_share": share})
