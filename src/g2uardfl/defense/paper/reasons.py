"""The reasons for the verdicts of the paper's profile: how a client differs from the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core.numerics import Array
from ..stages import Clusters
from .scoring import ClusterFilter


def explain(
    chosen: ClusterFilter,
    clusters: Clusters,
    *,
    scores: Array,
    attributes: Array,
    attribute_names: Sequence[str],
    score_percentile: float,
    distance_percentile: float,
) -> list[str]:
    """One sentence for each client of the round.

    Parameters
    ----------
    scores
        Benign scores with which the clients entered the round.
    attributes
        This round's normalised attributes, named by `attribute_names`.
    """
    labels, distances = clusters.labels, clusters.distances
    typical = attributes[chosen.accepted].mean(axis=0)
    score_limit = float(np.percentile(scores, score_percentile))
    distance_limit = float(np.percentile(distances[labels == chosen.benign_cluster], distance_percentile))
    reasons = []
    for i, score in enumerate(scores):
        members = labels == labels[i]
        group = f"{members.sum()} of {len(labels)} clients, mean benign score {scores[members].mean():+.3f}"
        difference = _largest_differences(attributes[i] - typical, attribute_names)
        if chosen.accepted[i]:
            reason = f"In the benign cluster ({group}), at distance {distances[i]:.2g} from its centre."
        elif chosen.malicious[i]:
            reason = f"In the cluster with the lowest score ({group}){difference}."
        elif labels[i] != chosen.benign_cluster:
            reason = f"In a cluster between the benign and the malicious one ({group}){difference}."
        elif score < score_limit:
            reason = (
                f"In the benign cluster ({group}), but its benign score {score:+.3f} is below the "
                f"{score_percentile:g}th percentile {score_limit:+.3f} of this round."
            )
        else:
            reason = (
                f"In the benign cluster ({group}), but its distance {distances[i]:.2g} from the centre is above the "
                f"{distance_percentile:g}th percentile {distance_limit:.2g}."
            )
        reasons.append(reason)
    return reasons


def _largest_differences(difference: Array, names: Sequence[str]) -> str:
    """The two attributes in which a client differs most from the accepted ones, as z-scores."""
    order = np.argsort(-np.abs(difference), kind="stable")[:2]
    parts = [
        f"{names[k]} ({abs(difference[k]):.1f} standard deviations {'above' if difference[k] > 0 else 'below'})"
        for k in order
        if abs(difference[k]) > 0
    ]
    return f"; it differs most from the accepted clients in {' and '.join(parts)}" if parts else ""
