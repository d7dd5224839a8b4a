"""FedAvg (McMahan et al. 2017): the mean of the clients' models, weighted by their samples. No defence."""

from __future__ import annotations

from ._shares import sample_shares
from .base import Aggregator, Outcome, Round, Verdict


class FedAvg(Aggregator):
    """G' = G + Σ n_i/n Δw_i, over whatever came.

    >>> import numpy as np
    >>> model = {"w": np.zeros(1)}
    >>> FedAvg().aggregate(model, {"a": {"w": np.ones(1)}, "b": {"w": np.zeros(1)}}, {"a": 3, "b": 1}).weights["w"]
    array([0.75])
    """

    name = "fedavg"
    summary = "plain average weighted by samples: no defence"
    checked_on_the_way = True
    uses_num_examples = True

    def combine(self, round_: Round) -> Outcome:
        """Average the round, weighted by samples; equally where nobody has any."""
        shares = sample_shares(round_.num_examples)
        verdicts = {
            client: Verdict("accepted", "FedAvg accepts every client whose message can be read.", weight=float(share))
            for client, share in zip(round_.clients, shares, strict=True)
        }
        return Outcome(round_.weighted_mean(shares), shares, verdicts, step_is_spare=True)
