"""The clustering stage: labels and memberships of the groups in the similarity graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from g2uardfl.defense.agreement.clustering import ClusteringSettings, GroupClustering, GroupClusters
from g2uardfl.defense.stages import Prior
from helpers.graphs import drawn_sketches, evidence_of, indices, planted


def clustered(edges: np.ndarray, convictions: np.ndarray | None = None, **settings) -> GroupClusters:
    """The clusters of that graph, as of rounds of ten clients who never return."""
    rounds = [(range(first, first + 10), drawn_sketches(first, 10, 1, 16)) for first in range(0, len(edges), 10)]
    prior = Prior(np.zeros(len(edges)) if convictions is None else convictions)
    return GroupClustering(ClusteringSettings(**settings), 0).cluster(replace(evidence_of(*rounds), edges=edges), prior)


def test_labels_number_the_groups_and_0_is_for_all_others():
    weaker, stronger = range(3, 99, 8), range(0, 80, 10)
    clusters = clustered(planted(100, 0, (weaker, 5.0), (stronger, 9.0)))
    assert [indices(clusters.labels == label) for label in (1, 2)] == [
        indices(group.members) for group in clusters.groups
    ]
    assert {tuple(indices(group.members)) for group in clusters.groups} == {tuple(weaker), tuple(stronger)}
    assert np.array_equal(clusters.labels > 0, clusters.membership > 0.5)


def test_the_membership_is_the_highest_probability_to_belong_to_any_group():
    clusters = clustered(planted(100, 0, (range(8), 5.0), (range(30, 40), 5.0)))
    assert len(clusters.groups) == 2
    assert np.array_equal(clusters.membership, np.max([group.belonging for group in clusters.groups], axis=0))


def test_without_groups_all_labels_and_memberships_are_zero():
    clusters = clustered(planted(100, 1))
    assert clusters.groups == ()
    assert not clusters.labels.any()
    assert not clusters.membership.any()


@pytest.mark.parametrize(("settings", "found"), [({}, False), ({"max_malicious_share": 0.7}, True)])
def test_max_malicious_share_decides_whether_a_majority_may_be_flagged(settings, found):
    assert clustered(planted(100, 0, (range(60), 5.0)), **settings).labels.any() == found


def test_false_alarm_rate_decides_how_weak_a_group_may_be():
    graph = planted(40, 1, (range(6), 2.0))
    assert not clustered(graph, false_alarm_rate=0.0001).labels.any()
    assert clustered(graph, false_alarm_rate=0.3).labels.any()


@pytest.mark.parametrize(("clients", "weak"), [(3, True), (6, True), (7, False), (10, False)])
def test_rounds_of_too_few_clients_are_a_weakness(clients, weak):
    assert bool(GroupClustering(ClusteringSettings(), 0).weaknesses(clients)) == weak
