"""NDC, norm difference clipping (Sun et al. 2019): every update is clipped to a norm threshold."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.clipping import clip_factors
from ..core.numerics import Array
from ..core.settings import number
from ._distances import update_norms
from ._shares import sample_shares
from .base import Aggregator, ClientId, Outcome, Round, Verdict


@dataclass(frozen=True)
class NDCSettings:
    """Settings of `NDC`; see its docstring."""

    threshold: float = number(2.0, 0, 1e30, above=True)


class NDC(Aggregator):
    """G' = G + Σ n_i/n Δw_i / max(1, ||Δw_i|| / M), with the norm over all parameters but no running statistics.

    Parameters
    ----------
    threshold
        M: the largest norm of an update (default: 2.0).

    Notes
    -----
    Assumes that attackers need large updates. It removes the effect of scaling and nothing else: an attack below the
    threshold is not changed.

    References
    ----------
    Sun et al., "Can You Really Backdoor Federated Learning?", arXiv:1911.07963, 2019.

    Examples
    --------
    >>> import numpy as np
    >>> model = {"w": np.zeros(2)}
    >>> clients = {"a": {"w": np.array([1.0, 0.0])}, "b": {"w": np.array([30.0, 40.0])}}
    >>> NDC().aggregate(model, clients).weights["w"]
    array([1.1, 0.8])
    """

    name = "ndc"
    summary = "clips every update to a norm threshold, then averages by samples"
    uses_num_examples = True
    Settings = NDCSettings

    def __init__(self, *, threshold: float = NDCSettings.threshold) -> None:
        super().__init__(threshold=threshold)

    def combine(self, round_: Round) -> Outcome:
        """Clip, then average by samples."""
        return clipped_mean(round_, self.settings.threshold)


def clipped_mean(round_: Round, threshold: float) -> Outcome:
    """The mean of the updates by samples, each clipped to norm `threshold`."""
    norms = update_norms(round_.updates)
    shares = sample_shares(round_.num_examples)
    weights = shares * clip_factors(norms, threshold)
    return Outcome(round_.weighted_sum(weights), shares, _verdicts(round_, norms, weights, threshold))


def _verdicts(round_: Round, norms: Array, weights: Array, threshold: float) -> dict[ClientId, Verdict]:
    verdicts: dict[ClientId, Verdict] = {}
    for client, norm, weight in zip(round_.clients, norms, weights, strict=True):
        if weight == 0:
            reason = "Held out: it reported no samples, so its weight is 0."
            verdicts[client] = Verdict("held_out", reason, weight=0.0)
        else:
            clipped = f"was clipped to {threshold:g}" if norm > threshold else "was not clipped"
            verdicts[client] = Verdict("accepted", f"Accepted: its norm {norm:.4g} {clipped}.", weight=float(weight))
    return verdicts
