"""Aggregation, and the rollback that eliminates poison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...aggregators._shares import sample_shares
from ...aggregators.base import Event, Round
from ...core.numerics import Array
from ...core.settings import check, number, switch
from ...core.state_files import SavedState
from ..stages import Elimination, Mask, Step
from .consensus import consensus
from .construction import SubmissionGraph
from .filtering import AgreementJudgement
from .rollback import Snapshot, Snapshots
from .window import HISTORY

_CERTAIN = 0.99
"""Roll back when an accepted submission belongs to a group of attackers with at least this probability."""
_LEARNING = 0.5
"""Above this value of `learning` the model improves so fast that only a short rollback is worth it."""
_SHORT = 2 * HISTORY
"""The maximum number of rounds that a short rollback undoes, and at most half of those since the last rollback."""


@dataclass(frozen=True)
class EliminationSettings:
    """Settings of the step and of the rollback."""

    rollback: bool = switch(True)
    """Whether the model is rolled back once attackers are detected whose updates had been accepted."""
    dissent: float = number(0.15, 0, 0.5)
    """The share of the clients of a round, rounded down, that need not support a change of a converged model."""

    def __post_init__(self) -> None:
        check(self)


class RobustStepAndRollback(Elimination[SubmissionGraph, AgreementJudgement]):
    """Adds a robust mean of the accepted, clipped updates; undoes the effect of attackers that were detected late."""

    Settings = EliminationSettings

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self.snapshots = Snapshots()
        self.last_learning = self.last_rollback = 0
        """The last rounds in which clients learnt the same, and in which the model was rolled back."""

    def step(self, round_: Round, evidence: SubmissionGraph, judgement: AgreementJudgement) -> Step:
        """The robust step, or a rollback in its place."""
        shares = _shares(round_.num_examples, judgement.accepted) * judgement.clipping
        snapshot = self._snapshot_to_restore(evidence, judgement)
        if snapshot is not None:
            # The clients trained on the model that is discarded, so their updates are useless.
            nothing = torch.zeros_like(round_.global_vector)
            return Step(nothing, 0 * shares, shares, (_rolled_back(snapshot),), snapshot.model)
        if judgement.learning > _LEARNING:
            self.last_learning = evidence.round
        if self.settings.rollback:
            self.snapshots.add(evidence.round, round_)
        if judgement.learning == 1:
            return Step(round_.weighted_sum(shares), shares, shares)
        vector = consensus(round_.sent, judgement.clipping, self.settings.dissent if judgement.has_history else 0.0)
        if judgement.learning > 0:
            vector = vector.lerp(round_.weighted_sum(shares), judgement.learning)
        return Step(vector, shares, shares)

    def _snapshot_to_restore(self, evidence: SubmissionGraph, judgement: AgreementJudgement) -> Snapshot | None:
        """The model from before the first accepted submission of a detected attacker, if restoring it is worth it."""
        self.snapshots.forget(before=int(evidence.rounds.min()))
        poisoned = evidence.accepted & (judgement.membership > _CERTAIN)
        found = self.snapshots.before(set(evidence.rounds[poisoned].tolist()))
        if found is None or not self.settings.rollback:
            return None
        undone, now = evidence.round - found.rounds[0], evidence.round
        has_learnt = judgement.learning > 0 or self.last_learning >= found.rounds[0]
        if has_learnt and undone > min(_SHORT, (now - self.last_rollback) / 2):
            return None
        self.snapshots.drop_from(found)
        self.last_rollback = now
        return found

    def state(self) -> SavedState:
        """Snapshots, and the rounds that rollbacks depend on."""
        values = {"last_learning": self.last_learning, "last_rollback": self.last_rollback}
        return SavedState.joined({"snapshots": self.snapshots.state()}, values)

    def restore(self, state: SavedState) -> None:
        """Continue with saved snapshots."""
        self.snapshots.restore(state.part("snapshots"))
        self.last_learning, self.last_rollback = (
            int(state.values[name]) for name in ("last_learning", "last_rollback")
        )


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
