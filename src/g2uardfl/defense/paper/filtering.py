"""Dynamic filtering and clipping: cluster scores, percentiles, benign scores and the norm limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.clipping import clip_factors
from ...core.numerics import Array
from ...core.settings import check, choice, number
from ...core.state_files import SavedState
from ..stages import Clusters, Filtering, Judgement, Prior
from .attributes import attribute_names
from .clipping import average_median_norm
from .construction import FEWEST_CLIENTS, AttributedGraph
from .reasons import explain
from .scoring import ScoreBook, ScoreInit, ScoreUpdate, filter_clients, updated_scores


@dataclass(frozen=True)
class FilteringSettings:
    """Settings of the cluster scores, the two percentiles and the benign scores."""

    cluster_size_weight: float = number(0.3, 0, math.inf)
    """κ3: the weight of a cluster's size relative to its members' benign scores."""
    score_percentile: float = number(25.0, 0, 100)
    """α1: members of the benign cluster below this percentile of benign scores are held out."""
    distance_percentile: float = number(75.0, 0, 100)
    """α2: members of the benign cluster beyond this percentile of distances are held out."""
    score_step: float = number(0.5, 0, 1, above=True)
    """κ4: the step size of benign scores."""
    score_update: ScoreUpdate = choice("signed", "signed", "printed")
    """Steps towards +1 and -1, or the multiplicative rule as printed, under which a score never changes its sign: the
    initial random draw then determines it, while the text requires negative values for malicious clients."""
    score_init: ScoreInit = choice("variance", "variance", "deviation", "zero")
    """Whether 10^-3 in N(0, 10^-3) is the variance or the standard deviation of initial scores, or they start at 0."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class PaperJudgement(Judgement):
    """The decisions, and what the elimination needs of the benign scores."""

    raw_scores: Array
    """Benign scores after this round, before the normalisation by tanh."""
    norm_limit: float
    """n: the running mean of median norms, to which updates are clipped."""


class ClusterFiltering(Filtering[AttributedGraph, Prior, Clusters, PaperJudgement]):
    """Accepts the benign cluster within both percentiles and flags the malicious one; keeps benign scores.

    Every label is a cluster of its own.
    """

    Settings = FilteringSettings

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self.scores = ScoreBook(seed, settings.score_init, normalise=settings.score_update == "printed")
        self.median_norm = 0.0
        """n: the running mean of median update norms."""

    def prior(self, evidence: AttributedGraph) -> Prior:
        """The benign scores with which clients enter the round."""
        return Prior(self.scores.read(evidence.clients, evidence.round))

    def judge(self, evidence: AttributedGraph, prior: Prior, clusters: Clusters | None) -> PaperJudgement:
        """Filter by cluster and percentiles, and update benign scores."""
        config, before = self.settings, prior.scores
        self.median_norm = average_median_norm(self.median_norm, evidence.norms, evidence.round)
        clipping = clip_factors(evidence.norms, self.median_norm)
        if clusters is None or not evidence.comparable:
            return self._accept_all(evidence, before, clipping)
        chosen = filter_clients(
            clusters,
            before,
            size_weight=config.cluster_size_weight,
            score_percentile=config.score_percentile,
            distance_percentile=config.distance_percentile,
        )
        raw = updated_scores(before, chosen, clusters.membership, config.score_step, config.score_update)
        reasons = explain(
            chosen,
            clusters,
            scores=before,
            attributes=evidence.own_attributes,
            attribute_names=attribute_names(evidence.layers),
            score_percentile=config.score_percentile,
            distance_percentile=config.distance_percentile,
        )
        return PaperJudgement(
            accepted=chosen.accepted,
            malicious=chosen.malicious,
            scores=self.scores.write(evidence.clients, raw, evidence.round),
            clipping=clipping,
            reasons=tuple(reasons),
            clusters=clusters.labels,
            distances=clusters.distances,
            raw_scores=raw,
            norm_limit=self.median_norm,
        )

    def _accept_all(self, evidence: AttributedGraph, before: Array, clipping: Array) -> PaperJudgement:
        """Too few clients to compare: everybody is accepted, clipped, and keeps its score."""
        count = len(evidence.clients)
        reason = f"Accepted without comparison: only {count} usable updates, and {FEWEST_CLIENTS} are required."
        return PaperJudgement(
            accepted=np.ones(count, dtype=bool),
            malicious=np.zeros(count, dtype=bool),
            scores=self.scores.write(evidence.clients, before, evidence.round),
            clipping=clipping,
            reasons=(reason,) * count,
            raw_scores=before,
            norm_limit=self.median_norm,
        )

    def state(self) -> SavedState:
        """Benign scores and the norm limit."""
        scores = [[client, score, last] for client, (score, last) in self.scores.scores.items()]
        return SavedState({"scores": scores, "median_norm": self.median_norm})

    def restore(self, state: SavedState) -> None:
        """Continue with saved scores."""
        self.scores.scores = {client: (score, last) for client, score, last in state.values["scores"]}
        self.median_norm = float(state.values["median_norm"])
