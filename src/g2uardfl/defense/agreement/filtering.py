"""Dynamic filtering and clipping: suspicion, reputations, and limits on the norm of accepted updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.clipping import clip_factors
from ...core.numerics import Array
from ...core.settings import check, number
from ...core.state_files import SavedState
from ..stages import Clusters, Filtering, Judgement, Prior
from .consensus import Learning
from .construction import SubmissionGraph
from .reasons import reasons
from .reputation import Reputation, benign_scores
from .shapes import UsualShapes

_OUTLIER = 4.0
"""The robust z-score of norm or peak above which an update is flagged."""
_MIN_SCORE = -0.5
"""A client below this benign score is held out even if its update is not suspicious: a new client after three
submissions in groups of attackers, until about as many clean rounds have passed."""


@dataclass(frozen=True)
class FilteringSettings:
    """Settings of reputations."""

    forget_after: int = number(1000, 1, 10**9)
    """A client's reputation is forgotten after this many rounds of absence."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class AgreementJudgement(Judgement):
    """The decisions, and what the aggregation needs to know about them."""

    membership: Array
    """For each submission of the window the probability that it belongs to a group of attackers."""
    learning: float
    """How far the clients still learn the same, from 0 to 1."""
    has_history: bool
    """Whether enough rounds are known; before, all clients must agree on a change."""


class ReputationFiltering(Filtering[SubmissionGraph, Prior, Clusters, AgreementJudgement]):
    """Flags groups and outliers, holds out clients with a bad reputation, and clips to the usual norm."""

    Settings = FilteringSettings

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self.reputation = Reputation()
        self.shapes = UsualShapes()
        self.learning = Learning()

    def prior(self, evidence: SubmissionGraph) -> Prior:
        """How often the client of each submission was convicted."""
        return Prior(self.reputation.read(evidence.nodes)[:, 0])

    def judge(self, evidence: SubmissionGraph, prior: Prior, clusters: Clusters | None) -> AgreementJudgement:
        """Flag attackers, hold out clients with a bad reputation, and remember both."""
        if clusters is None:
            clusters = Clusters(np.zeros(len(evidence.nodes), dtype=np.int64), np.zeros(len(evidence.nodes)))
        here, clients = evidence.here, evidence.clients
        before = benign_scores(self.reputation.read(clients))
        z_scores = self.shapes.z_scores(evidence.shapes, before >= 0, _OUTLIER)
        # The suspicion is 0.5 at the threshold and grows with the z-score.
        outlying = np.where(z_scores > _OUTLIER, 1 - _OUTLIER / 2 / np.maximum(z_scores, _OUTLIER), 0.0)
        suspicion = np.maximum(outlying, clusters.membership[here])
        malicious = suspicion > 0.5
        accepted = ~malicious & (before >= _MIN_SCORE)
        self.reputation.add(clients, suspicion, evidence.round, self.settings.forget_after)
        after = benign_scores(self.reputation.read(clients))
        self.learning.add(evidence.sketches[here][accepted])
        limit = (1 + self.learning.share) * self.shapes.usual_norm
        return AgreementJudgement(
            accepted=accepted,
            malicious=malicious,
            scores=after,
            clipping=clip_factors(evidence.norms, limit) * accepted,
            reasons=reasons(evidence, clusters, z_scores > _OUTLIER, accepted, after, self.shapes.usual_norm),
            clusters=clusters.labels[here],
            suspicion=suspicion,
            membership=clusters.membership,
            learning=self.learning.share,
            has_history=self.learning.has_history,
        )

    def state(self) -> SavedState:
        """Reputations, usual shapes, and how far clients learn the same."""
        parts = {"reputation": self.reputation.state(), "shapes": self.shapes.state()}
        return SavedState.joined(parts, {"cosines": self.learning.cosines})

    def restore(self, state: SavedState) -> None:
        """Continue with saved reputations and shapes."""
        self.reputation.restore(state.part("reputation"))
        self.shapes.restore(state.part("shapes"))
        self.learning.cosines = [float(one) for one in state.values["cosines"]]
