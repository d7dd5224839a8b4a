"""Graph clustering: one test for groups of submissions that are similar beyond chance and beyond any other group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.settings import check, number
from ..stages import Clustering, Clusters, Prior
from .construction import SubmissionGraph
from .groups import MIN_OTHERS, Group, find_groups
from .loners import Loners, find_loners


@dataclass(frozen=True)
class ClusteringSettings:
    """Settings of the test for groups of attackers."""

    false_alarm_rate: float = number(0.01, 0, 0.5, above=True)
    """The probability that a round without attackers has a flagged group; the same for a flagged loner."""
    max_malicious_share: float = number(0.5, 0, 1, above=True)
    """The largest share of the clients that may be flagged as groups of attackers; the same for loners."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class GroupClusters(Clusters):
    """Label 0 marks submissions in no group of attackers; for all others, `membership` is the suspicion."""

    groups: tuple[Group, ...]
    """The groups 1, 2, ..."""
    loners: Loners | None = None
    """Clients that are flagged individually. Their label follows those of the groups."""


class GroupClustering(Clustering[SubmissionGraph, Prior, GroupClusters]):
    """Finds groups that score higher than chance and than any other group, and loners; has no memory."""

    Settings = ClusteringSettings

    def weaknesses(self, clients: int) -> list[str]:
        """Too few clients for groups."""
        if clients >= MIN_OTHERS + 2:
            return []
        return [
            f"A round has {clients} clients: the guard detects groups of attackers only if at least {MIN_OTHERS + 2} "
            "clients took part in the last rounds; with fewer, it compares norms only."
        ]

    def cluster(self, evidence: SubmissionGraph, prior: Prior) -> GroupClusters:
        """The groups of attackers in the window."""
        config = self.settings
        groups = find_groups(
            evidence.edges, evidence.people, prior.scores, config.false_alarm_rate, config.max_malicious_share
        )
        labels = np.zeros(len(evidence.nodes), dtype=np.int64)
        membership = np.zeros(len(evidence.nodes))
        for label, group in enumerate(groups, start=1):
            labels[group.members] = label
            membership = np.maximum(membership, group.belonging)
        loners = find_loners(evidence.repetition, evidence.people, config.false_alarm_rate, config.max_malicious_share)
        alone = loners.found[evidence.people]
        labels[alone & (labels == 0)] = len(groups) + 1
        return GroupClusters(labels, np.maximum(membership, alone), tuple(groups), loners)
