"""Median (Yin et al. 2018): each parameter becomes the median of the clients' values."""

from __future__ import annotations

import numpy as np

from .base import Aggregator, Outcome, Round, Verdict
from .trimmed_mean import trimmed_mean


class Median(Aggregator):
    """Each parameter moves by the median of its updates, or by the mean of the two middle ones if their number is even.

    All clients have the same weight, whatever sample counts they report. It has no settings.

    Notes
    -----
    Assumes that fewer than half of the clients are malicious and that honest ones are homogeneous (IID). A backdoor
    that moves every parameter a little stays within the range of honest values.

    References
    ----------
    Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018.

    Examples
    --------
    >>> model = {"w": np.zeros(1)}
    >>> clients = {i: {"w": np.array([w])} for i, w in enumerate((1.0, 2.0, 4.0, 900.0))}
    >>> Median().aggregate(model, clients).weights["w"]
    array([3.])
    """

    name = "median"
    summary = "takes the median of each parameter"

    def __init__(self) -> None:
        super().__init__()

    def combine(self, round_: Round) -> Outcome:
        """Take the median of each parameter."""
        clients = len(round_.clients)
        reason = f"Accepted: one of {clients} values in the median of each parameter."
        return Outcome(
            trimmed_mean(round_.sent, (clients - 1) // 2),
            np.full(clients, 1 / clients),
            {client: Verdict("accepted", reason) for client in round_.clients},
        )
