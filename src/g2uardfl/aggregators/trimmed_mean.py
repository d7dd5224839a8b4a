"""Trimmed mean (Yin et al. 2018): the mean of each parameter without its largest and smallest values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..core.numerics import share_of
from ..core.settings import number
from ..core.updates import SentUpdates, each_block
from ._coordinates import sorted_columns
from .base import Aggregator, Outcome, Round, Verdict


@dataclass(frozen=True)
class TrimmedMeanSettings:
    """Settings of `TrimmedMean`; see its docstring."""

    trimmed_share: float = number(0.2, 0, 0.5)


class TrimmedMean(Aggregator):
    """Each parameter moves by the mean of its updates without the ⌊βn⌋ largest and the ⌊βn⌋ smallest.

    All clients have the same weight, whatever sample counts they report. If βn is less than one, nothing is trimmed,
    and the note says so.

    Parameters
    ----------
    trimmed_share
        β: the share of clients trimmed at each end; 0.5 leaves the median (default: 0.2).

    Notes
    -----
    Assumes that at most the share β of the clients is malicious and that honest ones are homogeneous (IID). A backdoor
    that moves every parameter a little stays inside the kept range.

    References
    ----------
    Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018.

    Examples
    --------
    >>> model = {"w": np.zeros(1)}
    >>> clients = {i: {"w": np.array([w])} for i, w in enumerate((-50.0, 1.0, 2.0, 3.0, 90.0))}
    >>> TrimmedMean().aggregate(model, clients).weights["w"]
    array([2.])
    """

    name = "trimmed_mean"
    summary = "averages each parameter without its largest and smallest values"
    Settings = TrimmedMeanSettings

    def __init__(self, *, trimmed_share: float = TrimmedMeanSettings.trimmed_share) -> None:
        super().__init__(trimmed_share=trimmed_share)

    def combine(self, round_: Round) -> Outcome:
        """Trim and average each parameter."""
        share, clients = self.settings.trimmed_share, len(round_.clients)
        trimmed = trimmed_clients(share, clients)
        reason = (
            f"Accepted: the {trimmed} largest and {trimmed} smallest of {clients} values of each parameter are trimmed."
        )
        note = "" if trimmed else f"Nothing was trimmed: a share of {share:g} of {clients} clients is less than one."
        return Outcome(
            trimmed_mean(round_.sent, trimmed),
            np.full(clients, 1 / clients),
            {client: Verdict("accepted", reason) for client in round_.clients},
            note,
        )


def trimmed_clients(share: float, clients: int) -> int:
    """⌊βn⌋, limited so that at least one value remains.

    >>> trimmed_clients(0.29, 100), trimmed_clients(0.5, 4)
    (29, 1)
    """
    return min(share_of(clients, share), (clients - 1) // 2)


def trimmed_mean(updates: Tensor | SentUpdates, trimmed: int) -> Tensor:
    """The mean of each column without its `trimmed` largest and smallest values."""
    kept = slice(trimmed, len(updates) - trimmed)
    return each_block(updates, lambda block: sorted_columns(block)[kept].mean(dim=0))
