"""Aggregation and adaptive poison eliminating: the model moves towards G+ and away from G-."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...aggregators.base import Event, Round
from ...core.settings import check, choice, number, switch
from ..stages import Elimination, Step
from .aggregation import DistanceWeighting, eliminating_coefficients, elimination_strength, group_coefficients
from .construction import AttributedGraph
from .filtering import PaperJudgement


@dataclass(frozen=True)
class EliminationSettings:
    """Settings of the two weighted means and of the elimination."""

    distance_weighting: DistanceWeighting = choice("near", "near", "printed")
    """Whether clients near their cluster's centre have more weight, or those far from it, as printed."""
    eliminate: bool = switch(True)
    """Adaptive poison eliminating; off gives the paper's G²uardFL'."""
    elimination_rate: float = number(0.01, 0, 1)
    """γ: the strength of the elimination."""

    def __post_init__(self) -> None:
        check(self)


class PoisonElimination(Elimination[AttributedGraph, PaperJudgement]):
    """G = G+ + γ · Σ_{C-}|s| / Σ|s| · log(1 + n) · (G+ - Ḡ-)."""

    Settings = EliminationSettings

    def step(self, round_: Round, evidence: AttributedGraph, judgement: PaperJudgement) -> Step:
        """The whole step as one weighted sum of the updates."""
        if judgement.distances is None:
            mean = judgement.clipping / len(judgement.clipping)
            return Step(round_.weighted_sum(mean), mean, mean, (_not_compared(len(mean)),))
        config, distances, clipping = self.settings, judgement.distances, judgement.clipping
        benign = group_coefficients(judgement.accepted, distances, clipping, config.distance_weighting)
        malicious = group_coefficients(judgement.malicious, distances, clipping, config.distance_weighting)
        strength = 0.0
        if config.eliminate:
            strength = elimination_strength(
                judgement.raw_scores, judgement.malicious, judgement.norm_limit, config.elimination_rate
            )
        weights = eliminating_coefficients(benign, malicious, evidence.update_products, strength)
        events = (_eliminated(strength, int(np.count_nonzero(judgement.malicious))),) if strength > 0 else ()
        return Step(round_.weighted_sum(weights), weights, benign, events)


def _eliminated(strength: float, clients: int) -> Event:
    message = (
        f"The model was moved away from the mean update of {clients} flagged client{'s' * (clients > 1)}, "
        f"by {strength:.2g} of the difference."
    )
    return Event("eliminated", message, {"clients": clients, "strength": strength})


def _not_compared(clients: int) -> Event:
    message = f"Only {clients} usable client{'s' * (clients > 1)}: too few to compare; their clipped mean was used."
    return Event("not_compared", message, {"clients": clients})
