"""Trimmed mean (Yin et al. 2018): of each parameter the largest and smallest values are left out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..core.settings import number
from ..core.updates import SentUpdates, each_block
from ._coordinates import in_order
from .base import Aggregator, Outcome, Round, Verdict


@dataclass(frozen=True)
class TrimmedMeanSettings:
    """The settings of the trimmed mean."""

    trimmed_share: float = number(0.2, 0, 0.5)
    """β: the share of clients left out on either side; 0.5 leaves the median."""


class TrimmedMean(Aggregator):
    """Each parameter moves by the mean of its updates without the ⌊βn⌋ largest and the ⌊βn⌋ smallest.

    Every client counts once, whatever number of samples it reports. Where βn is less than one nothing is trimmed; the
    round says so.

    >>> model = {"w": np.zeros(1)}
    >>> clients = {i: {"w": np.array([w])} for i, w in enumerate((-50.0, 1.0, 2.0, 3.0, 90.0))}
    >>> TrimmedMean().aggregate(model, clients).weights["w"]
    array([2.])
    """

    name = "trimmed_mean"
    summary = "of each parameter leaves out the largest and the smallest values, averages the rest"
    checked_on_the_way = True
    Settings = TrimmedMeanSettings

    def combine(self, round_: Round) -> Outcome:
        """Trim and average each parameter."""
        clients = len(round_.clients)
        trimmed = trimmed_clients(self.settings.trimmed_share, clients)
        reason = f"Accepted: of each parameter the {trimmed} largest and {trimmed} smallest of {clients} are left out."
        note = "" if trimmed else f"Nothing was trimmed: {self.settings.trimmed_share:g} of {clients} is less than one."
        return Outcome(
            trimmed_mean(round_.sent, trimmed),
            np.full(clients, 1 / clients),
            {client: Verdict("accepted", reason) for client in round_.clients},
            note,
        )


def trimmed_clients(share: float, clients: int) -> int:
    """⌊βn⌋, never so many that nothing is left, and not one too few because β has no exact binary form.

    >>> trimmed_clients(0.29, 100), trimmed_clients(0.5, 4)
    (29, 1)
    """
    return min(math.floor(share * clients + 1e-9), (clients - 1) // 2)


def trimmed_mean(updates: Tensor | SentUpdates, trimmed: int) -> Tensor:
    """The mean of each column without its `trimmed` largest and smallest values."""
    kept = slice(trimmed, len(updates) - trimmed)
    return each_block(updates, lambda block: in_order(block)[kept].mean(dim=0))
