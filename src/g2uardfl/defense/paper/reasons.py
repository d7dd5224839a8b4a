"""Verdicts in words: what set a client apart, from its own numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...aggregators.base import ClientId, Decision, Verdict
from ...core.numerics import Array
from .clustering import Clustering
from .scoring import Filtering


def explain(
    clients: Sequence[ClientId],
    filtering: Filtering,
    clustering: Clustering,
    *,
    before: Array,
    after: Array,
    weights: Array,
    attributes: Array,
    attribute_names: Sequence[str],
    score_percentile: float,
    distance_percentile: float,
) -> dict[ClientId, Verdict]:
    """A verdict with a reason for each client of the round.

    Parameters
    ----------
    before, after
        Benign scores with which the clients entered and left the round.
    weights
        The weight of each client's update in the new model.
    attributes
        This round's normalised attributes, named by `attribute_names`.
    """
    labels, distances = clustering.labels, clustering.distances
    typical = attributes[filtering.accepted].mean(axis=0)
    score_limit = float(np.percentile(before, score_percentile))
    distance_limit = float(np.percentile(distances[labels == filtering.benign_cluster], distance_percentile))
    verdicts = {}
    for i, client in enumerate(clients):
        group = labels == labels[i]
        company = f"{group.sum()} of {len(clients)} clients, mean benign score {before[group].mean():+.3f}"
        apart = _farthest(attributes[i] - typical, attribute_names)
        if filtering.accepted[i]:
            decision: Decision = "accepted"
            reason = f"In the benign cluster ({company}), {distances[i]:.2g} from its centre."
        elif filtering.malicious[i]:
            decision = "malicious"
            reason = f"In the cluster with the lowest standing ({company}){apart}."
        else:
            decision = "held_out"
            if labels[i] != filtering.benign_cluster:
                reason = f"In neither the benign nor the malicious cluster but in one between ({company}){apart}."
            elif before[i] < score_limit:
                reason = (
                    f"In the benign cluster ({company}), but its benign score {before[i]:+.3f} is below the "
                    f"{score_percentile:g}th percentile {score_limit:+.3f} of this round."
                )
            else:
                reason = (
                    f"In the benign cluster ({company}), but {distances[i]:.2g} from its centre, beyond the "
                    f"{distance_percentile:g}th percentile {distance_limit:.2g}."
                )
        verdicts[client] = Verdict(
            decision,
            reason,
            benign_score=float(after[i]),
            cluster=int(labels[i]),
            distance=float(distances[i]),
            weight=float(weights[i]),
        )
    return verdicts


def _farthest(difference: Array, names: Sequence[str]) -> str:
    """The two attributes in which a client lies farthest from the accepted ones, in this round's deviations."""
    order = np.argsort(-np.abs(difference), kind="stable")[:2]
    parts = [
        f"{names[k]} ({abs(difference[k]):.1f} deviations {'above' if difference[k] > 0 else 'below'})"
        for k in order
        if abs(difference[k]) > 0
    ]
    return f"; farthest from the accepted clients in {' and '.join(parts)}" if parts else ""
