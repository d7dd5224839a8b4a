"""RLR, robust learning rate (Özdayi et al. 2021): parameters without enough agreement on the sign are reversed."""

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
    """Settings of `RLR`; see its docstring."""

    threshold: int = number(3, 0, 10**6)
    learning_rate: float = number(1.0, 0, 1e6)


class RLR(Aggregator):
    """G' = G + η_k · mean(Δw), with η_k = η if |Σ_i sign(Δw_ik)| >= θ, and η_k = -η otherwise.

    Each client has one vote per parameter, the sign of its update; an update of 0 is no vote. The mean is weighted by
    samples. A round with fewer than θ clients would reverse every parameter, so there θ is lowered to the number of
    clients, and the note says so.

    Parameters
    ----------
    threshold
        θ: the smallest vote margin |Σ_i sign(Δw_ik)| for which a parameter follows the mean (default: 3).
    learning_rate
        η: the server's learning rate (default: 1.0).

    Notes
    -----
    Assumes that honest clients agree about the direction of most parameters. Near convergence they do not, and most of
    the model is reversed.

    References
    ----------
    Özdayi, Kantarcioglu and Gel, "Defending against Backdoors in Federated Learning with Robust Learning Rate",
    AAAI 2021.

    Examples
    --------
    >>> import numpy as np
    >>> model = {"w": np.zeros(2)}
    >>> clients = {i: {"w": np.array(w)} for i, w in enumerate(([3.0, 3.0], [3.0, 3.0], [3.0, -3.0]))}
    >>> RLR().aggregate(model, clients).weights["w"]
    array([ 3., -1.])
    """

    name = "rlr"
    summary = "reverses the step of parameters on whose sign too few clients agree"
    uses_num_examples = True
    Settings = RLRSettings

    def __init__(
        self, *, threshold: int = RLRSettings.threshold, learning_rate: float = RLRSettings.learning_rate
    ) -> None:
        super().__init__(threshold=threshold, learning_rate=learning_rate)

    def combine(self, round_: Round) -> Outcome:
        """Vote on the sign of each parameter, then step."""
        clients = len(round_.clients)
        requested = self.settings.threshold
        threshold = min(requested, clients)
        agreed = each_block(round_.sent, vote_margin) >= threshold
        shares = sample_shares(round_.num_examples)
        mean = round_.weighted_sum(shares)
        step = torch.where(agreed, mean, -mean).mul_(self.settings.learning_rate)
        reversed_share = 1 - float(agreed.mean(dtype=torch.float64))
        note = (
            f"The step of {reversed_share:.1%} of the parameters was reversed: their vote margin is below {threshold}."
        )
        if threshold < requested:
            note += f" θ was lowered from {requested} to the number of clients."
        verdicts = {
            client: Verdict("accepted", f"Accepted: one vote of {clients}, weight {share:.3g}.", weight=float(share))
            for client, share in zip(round_.clients, shares, strict=True)
        }
        return Outcome(step, shares, verdicts, note)


def vote_margin(block: Tensor) -> Tensor:
    """|Σ_i sign| of each column of a (clients x columns) block.

    >>> vote_margin(torch.tensor([[2.0, 0.0], [-1.0, 0.0], [-5.0, -7.0]]))
    tensor([1., 1.])
    """
    return block.sign().sum(dim=0).abs()
