"""A minimum of usable updates: with fewer, the model is kept and nobody is judged."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from ..aggregation import AggregationResult, Aggregator, ClientId, Outcome, Round, Verdict
from ..weights import Weights


class Quorum:
    """`rule`, applied to rounds of at least `minimum` usable updates.

    Updates are counted where `Aggregator` hands over a round, after it has set aside whatever cannot be used: NaN
    fills no seat.
    """

    def __init__(self, rule: Aggregator, minimum: int) -> None:
        self.rule, self.minimum = rule, minimum
        self.met = False
        """Whether the last round had enough."""

    def aggregate(
        self,
        global_weights: Weights,
        client_weights: Mapping[ClientId, Weights],
        num_examples: Mapping[ClientId, int],
    ) -> AggregationResult:
        """What the rule answers; the model as it was where too few updates are usable."""
        self.met = False
        combine = self.rule.combine

        def combine_enough(round_: Round) -> Outcome:
            self.met = len(round_.clients) >= self.minimum
            return combine(round_) if self.met else self._kept(round_)

        self.rule.combine = combine_enough  # type: ignore[method-assign]
        try:
            return self.rule.aggregate(global_weights, client_weights, num_examples)
        finally:
            del self.rule.combine

    def _kept(self, round_: Round) -> Outcome:
        came = len(round_.clients)
        reason = f"Not used: {came} of at least {self.minimum} usable replies came, and the model was kept."
        verdicts = {client: Verdict("held_out", reason) for client in round_.clients}
        return Outcome(torch.zeros_like(round_.global_vector), np.zeros(came), verdicts, reason)
