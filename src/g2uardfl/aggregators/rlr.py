"""RLR, robust learning rate (Özdayi et al. 2021): parameters that too few clients agree on move the other way."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.settings import number
from ..core.updates import each_block
from ._shares import sample_shares
from .base import Aggregator, Outcome, Round, Verdict


@dataclass(frozen=True)
class RLRSettings:
    """The settings of RLR."""

    threshold: int = number(3, 0, 10**6)
    """θ: how far the votes for the two directions must be apart for a parameter to follow the mean."""
    learning_rate: float = number(1.0, 0, 1e6)
    """η: the server's learning rate."""


class RLR(Aggregator):
    """G' = G + η_k · mean(Δw), with η_k = η where |Σ_i sign(Δw_ik)| >= θ, and -η elsewhere.

    Every client has one vote on each parameter, the sign of its update and not of its weight; who leaves a parameter as
    it was has none. The mean is by samples. A round of fewer than θ clients could only go backwards, so there θ is
    lowered to their number, and that is said.

    >>> import numpy as np
    >>> model = {"w": np.zeros(2)}
    >>> clients = {i: {"w": np.array(w)} for i, w in enumerate(([3.0, 3.0], [3.0, 3.0], [3.0, -3.0]))}
    >>> RLR().aggregate(model, clients).weights["w"]
    array([ 3., -1.])
    """

    name = "rlr"
    summary = "turns back the parameters on whose direction too few clients agree"
    uses_num_examples = True
    Settings = RLRSettings

    def combine(self, round_: Round) -> Outcome:
        """Vote on each parameter's direction and step."""
        clients = len(round_.clients)
        wanted = self.settings.threshold
        threshold = min(wanted, clients)
        agreed = each_block(round_.sent, vote_margin) >= threshold
        shares = sample_shares(round_.num_examples)
        mean = round_.weighted_sum(shares)
        step = torch.where(agreed, mean, -mean).mul_(self.settings.learning_rate)
        turned = 1 - float(agreed.mean(dtype=torch.float64))
        note = f"{turned:.1%} of the parameters were turned back: fewer than {threshold} votes between the directions."
        if threshold < wanted:
            note += f" θ was lowered from {wanted} to the number of clients."
        verdicts = {
            client: Verdict("accepted", f"Accepted: one vote in {clients}, weight {share:.3g}.", weight=float(share))
            for client, share in zip(round_.clients, shares, strict=True)
        }
        return Outcome(step, shares, verdicts, note)


def vote_margin(block: Tensor) -> Tensor:
    """|Σ_i sign| of each column of a (clients x columns) block.

    >>> vote_margin(torch.tensor([[2.0, 0.0], [-1.0, 0.0], [-5.0, -7.0]]))
    tensor([1., 1.])
    """
    return block.sign().sum(dim=0).abs()
