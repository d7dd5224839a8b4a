"""Multi-Krum (Blanchard et al. 2017): the mean of the m updates that are closest to their nearest neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.settings import number, switch
from ._distances import krum_scores, tolerated_clients, update_distances
from ._shares import sample_shares
from .base import Aggregator, Outcome, Round
from .krum import krum_verdicts


@dataclass(frozen=True)
class MultiKrumSettings:
    """Settings of `MultiKrum`; see its docstring."""

    malicious_clients: int = number(2, 0, 10**6)
    selected_clients: int = number(0, 0, 10**6)
    weigh_by_samples: bool = switch(False)


class MultiKrum(Aggregator):
    """G' = G + mean of the m updates with the lowest Krum scores.

    The score is Krum's: the sum of the n - f - 2 smallest squared distances to other clients. All m clients are
    selected by their scores among all n. The rule needs n > 2f + 2. In a smaller round it lowers f and says so in the
    note; with fewer than five clients it therefore selects all of them, unless `selected_clients` is set.

    Parameters
    ----------
    malicious_clients
        f: how many clients of a round may be malicious (default: 2).
    selected_clients
        m: how many updates are averaged; 0 means n - f (default: 0).
    weigh_by_samples
        Weigh the selected updates by the sample counts that clients report, as Flower and the code of the edge-case
        backdoors do. Blanchard et al. define a plain mean: a malicious client that is selected then gains no
        influence by reporting more samples (default: False).

    Notes
    -----
    Assumes exactly f malicious clients: it accepts attackers if there are more, and has false positives if there are
    fewer. It shares the weakness of Krum against colluding clients.

    References
    ----------
    Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017.

    Examples
    --------
    >>> model = {"w": np.zeros(1)}
    >>> clients = {name: {"w": np.array([w])} for name, w in zip("abcde", (1.0, 2.0, 3.0, 4.0, 50.0))}
    >>> MultiKrum(malicious_clients=1).aggregate(model, clients).weights["w"]
    array([2.5])
    """

    name = "multi_krum"
    summary = "averages the n - f updates that are closest to their nearest neighbours"
    Settings = MultiKrumSettings

    def __init__(
        self,
        *,
        malicious_clients: int = MultiKrumSettings.malicious_clients,
        selected_clients: int = MultiKrumSettings.selected_clients,
        weigh_by_samples: bool = MultiKrumSettings.weigh_by_samples,
    ) -> None:
        super().__init__(
            malicious_clients=malicious_clients, selected_clients=selected_clients, weigh_by_samples=weigh_by_samples
        )
        self.uses_num_examples = self.settings.weigh_by_samples

    def combine(self, round_: Round) -> Outcome:
        """Average the updates with the lowest scores."""
        clients = len(round_.clients)
        malicious_clients, note = tolerated_clients(self.settings.malicious_clients, clients, 2)
        scores = krum_scores(update_distances(round_.sent), malicious_clients)
        count = min(self.settings.selected_clients or clients - malicious_clients, clients)
        selected = np.argsort(scores, kind="stable")[:count]
        shares = np.zeros(clients)
        shares[selected] = sample_shares(round_.num_examples[selected])
        verdicts = krum_verdicts(round_, scores, shares, count)
        return Outcome(round_.weighted_mean(shares), shares, verdicts, note)
