"""RFA (Pillutla et al. 2019): the geometric median of the clients' models, by the smoothed Weiszfeld algorithm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.numerics import Array
from ..core.settings import number
from ._distances import update_products
from ._shares import sample_shares
from .base import Aggregator, ClientId, Outcome, Round, Verdict


@dataclass(frozen=True)
class RFASettings:
    """Settings of `RFA`; see its docstring."""

    smoothing: float = number(1e-5, 0, 1e6, above=True)
    iterations: int = number(500, 1, 10**6)
    tolerance: float = number(0.1, 0, 1)


class RFA(Aggregator):
    """G' = G + z, where z minimises Σ α_i ||z - Δw_i|| with α_i = n_i/n.

    Smoothed Weiszfeld starts from the weighted mean and repeats w_i = α_i / max(ν, ||z - Δw_i||), scaled to sum 1, and
    z = Σ w_i Δw_i until the objective converges. A model is one vector over all its layers. The iterations do not
    compute z: it is a combination of the updates, so its distances follow from their inner products.

    Parameters
    ----------
    smoothing
        ν: the smallest distance in a denominator (default: 1e-5).
    iterations
        T: the largest number of iterations (default: 500).
    tolerance
        ε: stop when the objective changes by at most this fraction of itself. An outlier that is very far away
        dominates the objective, and the paper's value then stops the iterations before its influence is gone; 0
        runs them to the end (default: 0.1).

    Notes
    -----
    Assumes that less than half of the weight is malicious. It limits the influence of any single client but rejects
    nobody: attackers whose updates have the usual norm lose nothing. The paper's tolerance of 0.1 often stops it close
    to the mean.

    References
    ----------
    Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning", arXiv:1912.13445, 2019.

    Examples
    --------
    >>> model = {"w": np.zeros(1)}
    >>> clients = {i: {"w": np.array([w])} for i, w in enumerate((0.0, 1.0, 900.0))}
    >>> RFA(tolerance=0.0).aggregate(model, clients).weights["w"].round(3)
    array([1.])
    """

    name = "rfa"
    summary = "takes the geometric median of the clients' models"
    uses_num_examples = True
    Settings = RFASettings

    def __init__(
        self,
        *,
        smoothing: float = RFASettings.smoothing,
        iterations: int = RFASettings.iterations,
        tolerance: float = RFASettings.tolerance,
    ) -> None:
        super().__init__(smoothing=smoothing, iterations=iterations, tolerance=tolerance)

    def combine(self, round_: Round) -> Outcome:
        """Find the geometric median of the round."""
        weights, distances = weiszfeld(
            update_products(round_.sent),
            sample_shares(round_.num_examples),
            smoothing=self.settings.smoothing,
            iterations=self.settings.iterations,
            tolerance=self.settings.tolerance,
        )
        return Outcome(round_.weighted_sum(weights), weights, _verdicts(round_, weights, distances))


def weiszfeld(
    products: Array, shares: Array, *, smoothing: float, iterations: int, tolerance: float
) -> tuple[Array, Array]:
    """The weights whose combination of vectors is their geometric median, and each vector's distance from it.

    Parameters
    ----------
    products
        The inner products of the vectors.
    shares
        α: the weight of each vector in the objective; they sum to 1.
    smoothing, iterations, tolerance
        ν, T and ε.
    """
    weights, distances = shares, distances_from(shares, products)
    for _ in range(iterations):
        previous = shares @ distances
        weights = shares / np.maximum(smoothing, distances)
        weights = weights / weights.sum()
        distances = distances_from(weights, products)
        objective = shares @ distances
        if abs(previous - objective) <= tolerance * objective:
            break
    return weights, distances


def distances_from(weights: Array, products: Array) -> Array:
    """||Σ_j w_j x_j - x_i|| for each i, from the inner products of the x.

    >>> distances_from(np.array([0.5, 0.5]), np.array([[0.0, 0.0], [0.0, 16.0]]))
    array([2., 2.])
    """
    with_sum = products @ weights
    squared: Array = weights @ with_sum - 2 * with_sum + np.diagonal(products)
    return np.sqrt(np.maximum(squared, 0))


def _verdicts(round_: Round, weights: Array, distances: Array) -> dict[ClientId, Verdict]:
    verdicts: dict[ClientId, Verdict] = {}
    for client, weight, distance in zip(round_.clients, weights, distances, strict=True):
        if weight > 0:
            reason = f"Accepted with weight {weight:.3g}: its distance from the geometric median is {distance:.4g}."
            verdicts[client] = Verdict("accepted", reason, distance=float(distance), weight=float(weight))
        else:
            reason = "Held out: it reported no samples, so its weight is 0."
            verdicts[client] = Verdict("held_out", reason, distance=float(distance), weight=0.0)
    return verdicts
