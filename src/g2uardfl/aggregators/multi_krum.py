"""Multi-Krum (Blanchard et al. 2017): the mean of the m updates that have the closest neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.settings import number, switch
from ._distances import krum_scores, tolerable, update_distances
from ._shares import sample_shares
from .base import Aggregator, Outcome, Round
from .krum import krum_verdicts


@dataclass(frozen=True)
class MultiKrumSettings:
    """The settings of Multi-Krum."""

    malicious_clients: int = number(2, 0, 10**6)
    """f: how many of a round's clients may be malicious."""
    selected_clients: int = number(0, 0, 10**6)
    """m: how many updates are averaged; 0 means n - f."""
    weigh_by_samples: bool = switch(False)
    """Weigh the selected updates by the samples their clients report, instead of equally."""


class MultiKrum(Aggregator):
    """G' = G + mean of the m updates with the lowest Krum scores.

    The score is Krum's: the sum of the n - f - 2 smallest squared distances to other clients. All m are chosen by the
    scores among all n clients. The mean is plain, as Blanchard et al. define it: a client that slips through cannot
    then buy influence with the number of samples it claims. `weigh_by_samples` gives the weighted mean of the
    edge-case backdoors' code and of Flower. f is lowered, and that is said, where a round has no more than 2f + 2
    clients, so that of fewer than five nobody is left out unless `selected_clients` says so.

    >>> model = {"w": np.zeros(1)}
    >>> clients = {name: {"w": np.array([w])} for name, w in zip("abcde", (1.0, 2.0, 3.0, 4.0, 50.0))}
    >>> MultiKrum(malicious_clients=1).aggregate(model, clients).weights["w"]
    array([2.5])
    """

    name = "multi_krum"
    summary = "averages the n - f updates that lie closest to their nearest neighbours"
    checked_on_the_way = True
    Settings = MultiKrumSettings

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self.uses_num_examples = bool(self.settings.weigh_by_samples)

    def combine(self, round_: Round) -> Outcome:
        """Average the clients with the lowest scores."""
        clients = len(round_.clients)
        malicious_clients, note = tolerable(int(self.settings.malicious_clients), clients, 2)
        scores = krum_scores(update_distances(round_.sent), malicious_clients)
        kept = min(int(self.settings.selected_clients) or clients - malicious_clients, clients)
        selected = np.argsort(scores, kind="stable")[:kept]
        shares = np.zeros(clients)
        shares[selected] = sample_shares(round_.num_examples[selected])
        verdicts = krum_verdicts(round_, scores, shares, kept)
        return Outcome(round_.weighted_mean(shares), shares, verdicts, note, step_is_spare=True)
