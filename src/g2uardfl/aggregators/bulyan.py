"""Bulyan (El Mhamdi et al. 2018): Krum chooses clients one by one, then each parameter is averaged near its median."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.numerics import Array
from ..core.settings import number
from ..core.updates import each_block
from ._coordinates import in_order
from ._distances import krum_scores, tolerable, update_distances
from .base import Aggregator, ClientId, Outcome, Round, Verdict


@dataclass(frozen=True)
class BulyanSettings:
    """The settings of Bulyan."""

    malicious_clients: int = number(2, 0, 10**6)
    """f: how many of a round's clients may be malicious."""


class Bulyan(Aggregator):
    """θ = n - 2f clients are selected; each parameter becomes the mean of the β = θ - 2f values nearest its median.

    The selection is repeated Krum: the client with the lowest score leaves for the selection, and the scores of those
    who remain are computed anew among them alone, each from the r - f - 2 (at least one) nearest of the r that remain.
    The median is over the selected clients, and between the two middle values where θ is even.

    The rule needs n >= 4f + 3. A round of fewer clients lowers f to what it allows and says so: the paper's ten
    clients leave f = 1, and fewer than seven leave the plain mean.

    >>> model = {"w": np.zeros(1)}
    >>> clients = {i: {"w": np.array([w])} for i, w in enumerate((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 99.0))}
    >>> Bulyan(malicious_clients=1).aggregate(model, clients).weights["w"]
    array([3.])
    """

    name = "bulyan"
    summary = "selects clients by repeated Krum, then averages each parameter's values nearest the median"
    checked_on_the_way = True
    Settings = BulyanSettings

    def combine(self, round_: Round) -> Outcome:
        """Select clients, then average each parameter."""
        clients = len(round_.clients)
        malicious_clients, note = tolerable(self.settings.malicious_clients, clients, 4)
        wanted = clients - 2 * malicious_clients
        selected, scores = select(update_distances(round_.sent), malicious_clients, wanted)
        rows, nearest = sorted(selected), wanted - 2 * malicious_clients
        step = each_block(round_.sent, lambda block: mean_near_median(block[rows], nearest))
        shares = np.zeros(clients)
        shares[selected] = 1 / wanted
        return Outcome(step, shares, _verdicts(round_, selected, scores), note)


def select(distances: Array, malicious_clients: int, wanted: int) -> tuple[list[int], Array]:
    """Who is selected, in order, and the score each client had when it was selected, or at the last step."""
    remaining = np.arange(len(distances))
    selected: list[int] = []
    latest = np.zeros(len(distances))
    for _ in range(wanted):
        scores = krum_scores(distances[np.ix_(remaining, remaining)], malicious_clients)
        latest[remaining] = scores
        best = int(np.argmin(scores))
        selected.append(int(remaining[best]))
        remaining = np.delete(remaining, best)
    return selected, latest


def mean_near_median(block: Tensor, nearest: int) -> Tensor:
    """For each column of (clients x columns) the mean of the `nearest` values that lie closest to the median.

    In order, those values stand side by side. They begin one place further up for each value on the left that is
    farther from the median than the one which would replace it on the right.

    >>> mean_near_median(torch.tensor([[0.0], [4.0], [5.0], [7.0], [99.0]]), 3)
    tensor([5.3333])
    """
    ordered = in_order(block)
    clients = len(block)
    median = (ordered[(clients - 1) // 2] + ordered[clients // 2]) / 2
    first = (ordered[nearest:] - median < median - ordered[: clients - nearest]).sum(dim=0)
    place = torch.arange(clients, device=block.device).unsqueeze(1)
    inside = (place >= first) & (place < first + nearest)
    return torch.where(inside, ordered, 0).sum(dim=0) / nearest


def _verdicts(round_: Round, selected: list[int], scores: Array) -> dict[ClientId, Verdict]:
    steps = {client: step for step, client in enumerate(selected, start=1)}
    verdicts: dict[ClientId, Verdict] = {}
    for i, client in enumerate(round_.clients):
        if i in steps:
            reason = f"Accepted: selected in step {steps[i]} of {len(selected)} with the lowest score, {scores[i]:.4g}."
            verdicts[client] = Verdict("accepted", reason)
        else:
            reason = (
                f"Held out: never had the lowest score in {len(selected)} steps; at the last it was {scores[i]:.4g}."
            )
            verdicts[client] = Verdict("held_out", reason)
    return verdicts
