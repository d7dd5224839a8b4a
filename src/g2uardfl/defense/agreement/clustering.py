"""Graph clustering: communities of similar submissions, and twins within the round."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...core.settings import check, number
from ..stages import Clustering, Clusters, Mask, Prior
from .communities import MIN_CLIENTS, Community, find_communities, number_of_clients
from .construction import SubmissionGraph
from .twins import find_twins


@dataclass(frozen=True)
class ClusteringSettings:
    """Settings of the tests for communities and twins."""

    min_evidence: float = number(15.0, 0, math.inf)
    """The smallest difference of the Bayesian information criterion between one cluster and two."""
    min_lead: float = number(1.5, 0, math.inf)
    """How many times as strong as any other community in the graph those of attackers must be; times the heterogeneity
    of the clients, and twice as many while they learn: honest clients with the same kind of data form communities."""
    twin_similarity: float = number(4.0, 0, math.inf)
    """The similarity (z-score) above which two clients of one round count as twins."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class SubmissionPrior(Prior):
    """What earlier rounds, and the norms of this one, say about the submissions."""

    suspects: Mask
    """The submissions of clients with a bad reputation."""
    heterogeneity: float
    """How many times as much norms differ as those of clients with the same kind of data, from 1 to 2."""
    learning: float
    """How far the clients still learn the same, from 0 to 1."""


@dataclass(frozen=True)
class CommunityClusters(Clusters):
    """Label 0 is for submissions in no community of attackers; all others are suspected by their `membership`."""

    communities: tuple[Community, ...]
    """The communities 1, 2, ..."""

    def describe(self, label: int) -> str:
        """How similar the members of a community are."""
        community = self.communities[label - 1]
        return (
            f"its update is similar to {int(community.members.sum()) - 1} others of the last rounds "
            f"(mean similarity {community.similarity:.1f}, evidence {community.evidence:.0f})"
        )


class CommunityClustering(Clustering[SubmissionGraph, SubmissionPrior, CommunityClusters]):
    """Finds communities that are beyond chance and beyond any other group, by one test; has no memory."""

    Settings = ClusteringSettings

    def weaknesses(self, clients: int) -> list[str]:
        """Too few clients for communities."""
        if clients >= MIN_CLIENTS:
            return []
        return [
            f"A round has {clients} clients: with fewer than {MIN_CLIENTS} the guard compares norms and looks for "
            "almost equal updates, but for no communities of attackers."
        ]

    def cluster(self, evidence: SubmissionGraph, prior: SubmissionPrior) -> CommunityClusters:
        """Communities in the window, and twins in the round."""
        config = self.settings
        communities = find_communities(
            evidence.edges,
            evidence.people,
            evidence.rounds,
            config.min_evidence,
            config.min_lead * prior.heterogeneity * (1 + prior.learning),
            prior.suspects,
            evidence.sketches,
            number_of_clients(evidence.people, evidence.rounds),
        )
        labels = np.zeros(len(evidence.nodes), dtype=np.int64)
        membership = np.zeros(len(evidence.nodes))
        for label, community in reversed(list(enumerate(communities, start=1))):
            labels[community.members] = label
            membership = np.maximum(membership, community.belonging)
        twins = find_twins(evidence.edges, evidence.rounds, prior.suspects, config.twin_similarity)
        return CommunityClusters(labels, membership, tuple(communities), twins=tuple(twins))
