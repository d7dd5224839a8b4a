"""Graph clustering as a stage: when it compares, how many clusters, and where its random numbers come from."""

from __future__ import annotations

import numpy as np
import pytest

from g2uardfl.defense.paper.clustering import ClusteringSettings, GraphClustering
from g2uardfl.defense.stages import Prior
from helpers.attributed_graphs import graph_of
from helpers.paper_rounds import Both, assert_rounds_agree

QUICK = ClusteringSettings(pretrain_epochs=2, cluster_epochs=2)


def clusters(secret: int, number: int = 1, clients: int = 6):
    graph = graph_of(np.random.default_rng(0).normal(size=(clients, 9)), number)
    return GraphClustering(QUICK, secret).cluster(graph, Prior(np.zeros(clients)))


@pytest.mark.parametrize("min_clusters", [1, 4])
def test_the_smallest_number_of_clusters_changes_the_clustering_alone(min_clusters):
    both = Both(min_clusters=min_clusters)
    assert_rounds_agree(both)
    assert min(len(found.centres) for found in both.guard.clustering.found) == min_clusters


@pytest.mark.parametrize("clients", [1, 2])
def test_fewer_than_three_clients_are_not_compared_and_that_is_a_weakness(clients):
    assert clusters(0, clients=clients) is None
    [sentence] = GraphClustering(QUICK, 0).weaknesses(clients)
    assert sentence == f"A round has {clients} clients: fewer than 3 are not compared with each other at all."


def test_three_clients_are_compared():
    assert len(clusters(0, clients=3).labels) == 3
    assert GraphClustering(QUICK, 0).weaknesses(3) == []


def test_the_secret_and_the_round_determine_the_clusters():
    first = clusters(7, 4)
    assert np.array_equal(first.latent, clusters(7, 4).latent)
    # Secrets with the same last 32 bits are different, too.
    for secret, number in ((7, 5), (8, 4), (7 + 2**32, 4), (7 + 2**100, 4)):
        assert not np.array_equal(first.latent, clusters(secret, number).latent)
