"""Krum (Blanchard et al. 2017): the one update that has the closest neighbours becomes the step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.numerics import Array
from ..core.settings import number
from ._distances import krum_scores, tolerable, update_distances
from .base import Aggregator, ClientId, Outcome, Round, Verdict


@dataclass(frozen=True)
class KrumSettings:
    """The settings of Krum."""

    malicious_clients: int = number(2, 0, 10**6)
    """f: how many of a round's clients may be malicious."""


class Krum(Aggregator):
    """G' = G + Δw_k, where k has the lowest score.

    A client's score is the sum of the n - f - 2 smallest squared distances ||Δw_i - Δw_j||² to other clients, over all
    parameters at once. (The paper's appendix speaks of the highest score; the lowest is meant.) The rule needs
    n > 2f + 2. A round of fewer clients lowers f to what it allows, and says so; with two clients the scores are equal
    and the first in order of ids is taken, as always between equal scores.

    >>> model = {"w": np.zeros(1)}
    >>> clients = {name: {"w": np.array([w])} for name, w in zip("abcde", (1.0, 1.1, 1.2, 1.4, 50.0))}
    >>> Krum(malicious_clients=1).aggregate(model, clients).weights["w"]
    array([1.1])
    """

    name = "krum"
    summary = "takes the one update that lies closest to its nearest neighbours"
    checked_on_the_way = True
    Settings = KrumSettings

    def combine(self, round_: Round) -> Outcome:
        """Take the client with the lowest score."""
        malicious_clients, note = tolerable(int(self.settings.malicious_clients), len(round_.clients), 2)
        scores = krum_scores(update_distances(round_.sent), malicious_clients)
        best = int(np.argmin(scores))
        shares = np.zeros(len(scores))
        shares[best] = 1.0
        return Outcome(round_.update(best), shares, krum_verdicts(round_, scores, shares), note)


def krum_verdicts(round_: Round, scores: Array, weights: Array, kept: int = 1) -> dict[ClientId, Verdict]:
    """Accept the `kept` clients of the lowest scores, hold out the others; each is told its score and its rank."""
    verdicts: dict[ClientId, Verdict] = {}
    for rank, i in enumerate(np.argsort(scores, kind="stable"), start=1):
        seen = f"its distance score {scores[i]:.4g} is number {rank} of {len(scores)} from the lowest"
        if rank <= kept:
            verdict = Verdict("accepted", f"Accepted: {seen}.", weight=float(weights[i]))
        else:
            verdict = Verdict("held_out", f"Held out: {seen}, and {kept} could stay.", weight=0.0)
        verdicts[round_.clients[i]] = verdict
    return verdicts
