"""FedAvg (McMahan et al. 2017): the mean of the clients' models, weighted by their samples. No defence."""

from __future__ import annotations

from ._shares import sample_shares
from .base import Aggregator, Outcome, Round, Verdict


class FedAvg(Aggregator):
    """G' = G + Σ n_i/n Δw_i over all usable updates. It has no settings.

    Notes
    -----
    No defence: one client that scales its update controls the model.

    References
    ----------
    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> model = {"w": np.zeros(1)}
    >>> FedAvg().aggregate(model, {"a": {"w": np.ones(1)}, "b": {"w": np.zeros(1)}}, {"a": 3, "b": 1}).weights["w"]
    array([0.75])
    """

    name = "fedavg"
    summary = "plain average weighted by samples: no defence"
    uses_num_examples = True

    def __init__(self) -> None:
        super().__init__()

    def combine(self, round_: Round) -> Outcome:
        """Average the round by samples; equally if no client has samples."""
        shares = sample_shares(round_.num_examples)
        verdicts = {
            client: Verdict("accepted", "FedAvg accepts every usable update.", weight=float(share))
            for client, share in zip(round_.clients, shares, strict=True)
        }
        return Outcome(round_.weighted_mean(shares), shares, verdicts)
