"""The reasons of verdicts: evidence that the owner of a client can act on."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ...core.numerics import Array
from ..stages import Clusters, Mask
from .clustering import GroupClusters
from .construction import SubmissionGraph

_NAMED = 3
"""How many clients and layers a reason names."""


def reasons(
    evidence: SubmissionGraph,
    clusters: Clusters,
    outliers: Mask,
    accepted: Mask,
    scores: Array,
    usual_norm: float,
) -> tuple[str, ...]:
    """One sentence or two for each client."""
    labels = clusters.labels[evidence.here]

    def reason(row: int) -> str:
        norm = f"norm {evidence.norms[row] / usual_norm:.2g} times the usual" if usual_norm else "no usual norm yet"
        if labels[row]:
            return f"Flagged as malicious: {_in_group(evidence, clusters, row, int(labels[row]))}; {norm}."
        if outliers[row]:
            return (
                f"Flagged as malicious: its update is an outlier ({norm}, largest entry "
                f"{np.exp(evidence.shapes[row, 1]):.2g} of the norm). Honest causes: another learning rate, batch size "
                "or number of steps, or diverged training."
            )
        if not accepted[row]:
            return (
                f"Held out: its update is not suspicious, but most of its recent updates were malicious "
                f"(benign score {scores[row]:.2f})."
            )
        return f"Accepted: it belongs to no group of attackers; {norm}."

    return tuple(reason(row) for row in range(len(evidence.clients)))


def _in_group(evidence: SubmissionGraph, clusters: Clusters, row: int, label: int) -> str:
    """With whom, since when, how strongly and in which layers the update of `row` is similar."""
    if not isinstance(clusters, GroupClusters):  # of another clustering in a profile of the user's own
        return clusters.describe(label)
    own = evidence.here.start + row
    if clusters.loners is not None and label > len(clusters.groups):
        repetition = clusters.loners.repetition
        return (
            f"its updates repeat themselves (mean z-score {repetition[evidence.people[own]]:.1f}, median of the "
            f"clients {np.nanmedian(repetition):.1f}), as those of a lone attacker do. Honest causes: data that differ "
            "from those of all other clients, or updates that were sent twice"
        )
    group = clusters.groups[label - 1]
    members = group.members & (evidence.people != evidence.people[own])
    with_members = evidence.edges[own][members]
    others = Counter(evidence.nodes[node] for node in np.flatnonzero(members))
    closest = ", ".join(repr(client) for client, _ in others.most_common(_NAMED))
    cosines = np.einsum("lw,nlw->nl", evidence.sketches[own], evidence.sketches[members]).mean(axis=0)
    layers = ", ".join(
        f"{evidence.layers[place]} (cosine {cosines[place]:.2f})" for place in np.argsort(-cosines)[:_NAMED]
    )
    return (
        f"its update is similar (mean z-score {with_members.mean():.1f}) to {len(with_members)} updates of "
        f"{len(others)} other clients since round {int(evidence.rounds[members].min())}, most often {closest}; "
        f"most in {layers}. The group scores {group.lead:.1f} times as high as any other. Honest causes: the same or "
        "copied data, or one program run under several identities"
    )
