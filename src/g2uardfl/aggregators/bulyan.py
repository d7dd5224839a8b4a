"""Bulyan (El Mhamdi et al. 2018): repeated Krum selects clients; each parameter is averaged near its median."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.numerics import Array
from ..core.settings import number
from ..core.updates import each_block
from ._coordinates import sorted_columns
from ._distances import krum_scores, tolerated_clients, update_distances
from .base import Aggregator, ClientId, Outcome, Round, Verdict


@dataclass(frozen=True)
class BulyanSettings:
    """Settings of `Bulyan`; see its docstring."""

    malicious_clients: int = number(2, 0, 10**6)


class Bulyan(Aggregator):
    """Select θ = n - 2f clients; each parameter becomes the mean of the β = θ - 2f values nearest its median.

    The selection is repeated Krum: the client with the lowest score is selected, and the scores of the r remaining
    clients are recomputed among them, each from its r - f - 2 (at least one) nearest. The median is taken over the
    selected clients; for an even θ it is the mean of the two middle values.

    The rule needs n >= 4f + 3. In a smaller round it lowers f and says so in the note: ten clients allow f = 1, and
    fewer than seven give the plain mean.

    Parameters
    ----------
    malicious_clients
        f: how many clients of a round may be malicious (default: 2).

    Notes
    -----
    Stops attacks that change a few parameters strongly, which Krum lets through. It shares the weakness of Krum against
    colluding clients that are closer to each other than honest ones.

    References
    ----------
    El Mhamdi, Guerraoui and Rouault, "The Hidden Vulnerability of Distributed Learning in Byzantium", ICML 2018.

    Examples
    --------
    >>> model = {"w": np.zeros(1)}
    >>> clients = {i: {"w": np.array([w])} for i, w in enumerate((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 99.0))}
    >>> Bulyan(malicious_clients=1).aggregate(model, clients).weights["w"]
    array([3.])
    """

    name = "bulyan"
    summary = "selects clients by repeated Krum, then averages each parameter's values nearest the median"
    Settings = BulyanSettings

    def __init__(self, *, malicious_clients: int = BulyanSettings.malicious_clients) -> None:
        super().__init__(malicious_clients=malicious_clients)

    def combine(self, round_: Round) -> Outcome:
        """Select clients, then average each parameter near its median."""
        clients = len(round_.clients)
        malicious_clients, note = tolerated_clients(self.settings.malicious_clients, clients, 4)
        count = clients - 2 * malicious_clients
        selected, scores = select(update_distances(round_.sent), malicious_clients, count)
        rows, nearest = sorted(selected), count - 2 * malicious_clients
        step = each_block(round_.sent, lambda block: mean_near_median(block[rows], nearest))
        shares = np.zeros(clients)
        shares[selected] = 1 / count
        return Outcome(step, shares, _verdicts(round_, selected, scores), note)


def select(distances: Array, malicious_clients: int, count: int) -> tuple[list[int], Array]:
    """The selected clients in order, and the last score that was computed for each client."""
    remaining = np.arange(len(distances))
    selected: list[int] = []
    latest = np.zeros(len(distances))
    for _ in range(count):
        scores = krum_scores(distances[np.ix_(remaining, remaining)], malicious_clients)
        latest[remaining] = scores
        best = int(np.argmin(scores))
        selected.append(int(remaining[best]))
        remaining = np.delete(remaining, best)
    return selected, latest


def mean_near_median(block: Tensor, nearest: int) -> Tensor:
    """For each column of (clients x columns) the mean of the `nearest` values closest to the median.

    In sorted order these values are adjacent. Their first position moves up by one for each value on the left that is
    farther from the median than the value that would replace it on the right.

    >>> mean_near_median(torch.tensor([[0.0], [4.0], [5.0], [7.0], [99.0]]), 3)
    tensor([5.3333])
    """
    ordered = sorted_columns(block)
    clients = len(block)
    median = (ordered[(clients - 1) // 2] + ordered[clients // 2]) / 2
    first = (ordered[nearest:] - median < median - ordered[: clients - nearest]).sum(dim=0)
    position = torch.arange(clients, device=block.device).unsqueeze(1)
    inside = (position >= first) & (position < first + nearest)
    return torch.where(inside, ordered, 0).sum(dim=0) / nearest


def _verdicts(round_: Round, selected: list[int], scores: Array) -> dict[ClientId, Verdict]:
    steps = {client: step for step, client in enumerate(selected, start=1)}
    verdicts: dict[ClientId, Verdict] = {}
    for i, client in enumerate(round_.clients):
        if i in steps:
            reason = (
                f"Accepted: selected in step {steps[i]} of {len(selected)} with the lowest Krum score, {scores[i]:.4g}."
            )
            verdicts[client] = Verdict("accepted", reason)
        else:
            reason = f"Held out: not selected in {len(selected)} steps; its Krum score in the last was {scores[i]:.4g}."
            verdicts[client] = Verdict("held_out", reason)
    return verdicts
