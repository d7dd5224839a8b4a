"""Krum (Blanchard et al. 2017): the update that is closest to its nearest neighbours becomes the step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.numerics import Array
from ..core.settings import number
from ._distances import krum_scores, tolerated_clients, update_distances
from .base import Aggregator, ClientId, Outcome, Round, Verdict


@dataclass(frozen=True)
class KrumSettings:
    """Settings of `Krum`; see its docstring."""

    malicious_clients: int = number(2, 0, 10**6)


class Krum(Aggregator):
    """G' = G + Δw_k, where client k has the lowest score.

    The score of a client is the sum of its n - f - 2 smallest squared distances ||Δw_i - Δw_j||² to other clients, over
    all parameters together. (The appendix of the G²uardFL paper says the highest score; the lowest is meant.) The rule
    needs n > 2f + 2. In a smaller round it lowers f and says so in the note. Among equal scores the client with the
    first id wins; two clients always have equal scores.

    Parameters
    ----------
    malicious_clients
        f: how many clients of a round may be malicious (default: 2).

    Notes
    -----
    Assumes at most f malicious clients, and that honest updates are closer to each other than malicious ones. Colluding
    clients that stay in a ball around G are the closest of all and win. What the other clients learnt is discarded.

    References
    ----------
    Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017.

    Examples
    --------
    >>> model = {"w": np.zeros(1)}
    >>> clients = {name: {"w": np.array([w])} for name, w in zip("abcde", (1.0, 1.1, 1.2, 1.4, 50.0))}
    >>> Krum(malicious_clients=1).aggregate(model, clients).weights["w"]
    array([1.1])
    """

    name = "krum"
    summary = "takes the one update that is closest to its nearest neighbours"
    Settings = KrumSettings

    def __init__(self, *, malicious_clients: int = KrumSettings.malicious_clients) -> None:
        super().__init__(malicious_clients=malicious_clients)

    def combine(self, round_: Round) -> Outcome:
        """Take the update with the lowest score."""
        malicious_clients, note = tolerated_clients(self.settings.malicious_clients, len(round_.clients), 2)
        scores = krum_scores(update_distances(round_.sent), malicious_clients)
        best = int(np.argmin(scores))
        shares = np.zeros(len(scores))
        shares[best] = 1.0
        return Outcome(round_.update(best), shares, krum_verdicts(round_, scores, shares), note)


def krum_verdicts(round_: Round, scores: Array, weights: Array, selected: int = 1) -> dict[ClientId, Verdict]:
    """Accept the `selected` clients with the lowest scores and hold out the others."""
    verdicts: dict[ClientId, Verdict] = {}
    for rank, i in enumerate(np.argsort(scores, kind="stable"), start=1):
        ranked = f"its Krum score {scores[i]:.4g} has rank {rank} of {len(scores)}, lowest first"
        if rank <= selected:
            verdict = Verdict("accepted", f"Accepted: {ranked}.", weight=float(weights[i]))
        else:
            verdict = Verdict("held_out", f"Held out: {ranked}, and only {selected} are selected.", weight=0.0)
        verdicts[round_.clients[i]] = verdict
    return verdicts
