"""Dynamic filtering and clipping: suspicion, reputations, and limits on the norm of accepted updates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.clipping import clip_factors
from ...core.numerics import Array
from ...core.settings import check, number
from ...core.state_files import SavedState
from ..stages import Clusters, Filtering, Mask
from .clustering import SubmissionPrior
from .communities import MIN_CLIENTS
from .consensus import Learning
from .construction import NoiseJudgement, SubmissionGraph
from .reputation import Reputation, flagged, updated_scores
from .shapes import UsualShapes

_SUSPECT_SCORE = -0.5
"""Clients below this score are suspects: they were convicted, and have not recovered since."""
_NEGLIGIBLE = 100.0
"""Twins whose updates are so many times smaller than usual have nothing to learn, and do no harm."""
_SIMILAR = 2.0
"""Below this similarity (z-score) two updates have nothing in common."""


@dataclass(frozen=True)
class FilteringSettings:
    """Settings of suspicion and reputation."""

    outlier_z_score: float = number(4.0, 0, math.inf, above=True)
    """The robust z-score of norm or peak above which an update is an outlier."""
    reputation_weight: float = number(3.0, 0, 100)
    """What a benign score of -1 adds to the log-odds of a suspicion."""
    conviction_step: float = number(0.6, 0, 1, above=True)
    """How fast benign scores fall."""
    recovery_step: float = number(0.2, 0, 1, above=True)
    """How fast benign scores rise; bad ones rise more slowly."""
    min_reputation: float = number(-0.7, -1, 0)
    """Below this benign score a client is held out even if nothing is found against its update; no single round brings
    a newcomer there."""
    forget_after: int = number(1000, 1, 10**9)
    """The reputation of a client that was absent from so many rounds is forgotten."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class AgreementJudgement(NoiseJudgement):
    """The decisions, and what the elimination needs to know about them."""

    membership: Array
    """For each submission of the window the probability that it belongs to a community of attackers."""
    colluding: Mask
    """The malicious clients of communities: their updates show where the backdoor is."""
    usual_norm: float
    """The median norm of the last updates."""
    heterogeneity: float
    """How many times as much norms differ as those of clients with the same kind of data, from 1 to 2."""
    learning: float
    """How far the clients still learn the same, from 0 to 1."""


class ReputationFiltering(Filtering[SubmissionGraph, SubmissionPrior, Clusters, AgreementJudgement]):
    """Suspects communities, twins and outliers, weighs suspicion by reputation, and clips to the usual norm."""

    Settings = FilteringSettings

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self.reputation = Reputation()
        self.shapes = UsualShapes()
        self.learning = Learning()

    def prior(self, evidence: SubmissionGraph) -> SubmissionPrior:
        """Reputations, and which clients are suspects already."""
        scores = self.reputation.read(evidence.nodes)
        return SubmissionPrior(scores, scores < _SUSPECT_SCORE, self.shapes.heterogeneity, self.learning.share)

    def judge(self, evidence: SubmissionGraph, prior: SubmissionPrior, clusters: Clusters | None) -> AgreementJudgement:
        """Flag attackers, hold out clients of bad reputation, and remember shapes."""
        if clusters is None:
            clusters = Clusters(np.zeros(len(evidence.nodes), dtype=np.int64), np.zeros(len(evidence.nodes)))
        config, here = self.settings, evidence.here
        before, labels = prior.scores[here], clusters.labels[here]
        trust = (1 + np.minimum(before, 0.0)) * (1 - clusters.membership[here])
        self.shapes.add(evidence.shapes, trust)
        z_scores = self.shapes.z_scores(evidence.shapes, trust, config.outlier_z_score)
        suspicion = self._suspicion(evidence, clusters, z_scores)
        dissimilar = evidence.edges[here].max(axis=1) < _SIMILAR
        noise = (z_scores > config.outlier_z_score) & dissimilar & (labels == 0)

        malicious = flagged(suspicion, before, config.reputation_weight)
        accepted = ~malicious & (before >= config.min_reputation)
        after = updated_scores(before, np.maximum(suspicion, malicious), config.conviction_step, config.recovery_step)
        self.reputation.write(evidence.clients, after, evidence.round, config.forget_after)
        self.learning.add(evidence.sketches[here][accepted])
        return AgreementJudgement(
            accepted=accepted,
            malicious=malicious,
            scores=after,
            clipping=clip_factors(evidence.norms, self.shapes.norm_limit(self.learning.share)) * accepted,
            reasons=self._reasons(evidence, clusters, z_scores, suspicion, malicious, accepted, after),
            clusters=labels,
            distances=suspicion,
            noise=noise,
            membership=clusters.membership,
            colluding=malicious & (labels > 0),
            usual_norm=self.shapes.usual_norm,
            heterogeneity=self.shapes.heterogeneity,
            learning=self.learning.share,
        )

    def _suspicion(self, evidence: SubmissionGraph, clusters: Clusters, z_scores: Array) -> Array:
        """For each client the probability that it attacks."""
        allowed = self.settings.outlier_z_score
        # It grows with the z-score; one just above the threshold leaves the reputation as it is.
        suspicion = np.where(z_scores > allowed, 1 - allowed / 2 / np.maximum(z_scores, allowed), 0.0)
        not_negligible = evidence.norms > self.shapes.usual_norm / _NEGLIGIBLE
        if clusters.twins:
            suspicion[not_negligible & [twin is not None for twin in clusters.twins]] = 1.0
        return np.maximum(suspicion, clusters.membership[evidence.here])

    def _reasons(
        self,
        evidence: SubmissionGraph,
        clusters: Clusters,
        z_scores: Array,
        suspicion: Array,
        malicious: Mask,
        accepted: Mask,
        scores: Array,
    ) -> tuple[str, ...]:
        """One sentence for each client."""
        known = len(set(evidence.nodes))
        reasons = []
        for row in range(len(evidence.clients)):
            if malicious[row]:
                grounds = self._grounds(row, evidence, clusters, z_scores, suspicion)
                reasons.append(f"Flagged as malicious: {grounds}.")
            elif not accepted[row]:
                reasons.append(f"Held out: its update is unsuspicious, but its benign score is {scores[row]:.2f}.")
            elif known < MIN_CLIENTS:
                reasons.append(f"Accepted unexamined: {known} clients are too few to compare.")
            else:
                reasons.append("Accepted: its update belongs to no community of attackers, and its norm is usual.")
        return tuple(reasons)

    def _grounds(
        self, row: int, evidence: SubmissionGraph, clusters: Clusters, z_scores: Array, suspicion: Array
    ) -> str:
        label = int(clusters.labels[evidence.here][row])
        twin = clusters.twins[row] if clusters.twins else None
        if z_scores[row] > self.settings.outlier_z_score:
            return f"its update's norm or peak is far above the usual (z-score {z_scores[row]:.0f})"
        if label:
            return clusters.describe(label)
        if twin is not None:
            return f"its update is almost the same as that of client {evidence.clients[twin]!r}"
        return f"its update is suspicious (probability {suspicion[row]:.2f}) and its benign score is low"

    def state(self) -> SavedState:
        """Reputations, usual shapes, and how far clients learn the same."""
        parts = {"reputation": self.reputation.state(), "shapes": self.shapes.state()}
        return SavedState.joined(parts, {"cosines": self.learning.cosines})

    def restore(self, state: SavedState) -> None:
        """Continue with saved reputations and shapes."""
        self.reputation.restore(state.part("reputation"))
        self.shapes.restore(state.part("shapes"))
        self.learning.cosines = [float(one) for one in state.values["cosines"]]
