"""Graph clustering as a stage: when it compares, how many clusters, and where its random numbers come from."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from g2uardfl.defense.paper.clustering import ClusteringSettings, GraphClustering
from g2uardfl.defense.stages import Prior
from helpers.attributed_graphs import graph_of
from helpers.paper_rounds import Both, assert_rounds_agree

QUICK = ClusteringSettings(pretrain_epochs=2, cluster_epochs=2)


KEPT = ClusteringSettings(pretrain_epochs=2, cluster_epochs=2, keep_encoder=True)


def random_graphs(count: int = 3):
    rng = np.random.default_rng(1)
    return [graph_of(rng.normal(size=(6, 9)), number) for number in range(1, count + 1)]


def clusters(secret: int, number: int = 1, clients: int = 6):
    graph = graph_of(np.random.default_rng(0).normal(size=(clients, 9)), number)
    return GraphClustering(QUICK, secret).cluster(graph, Prior(np.zeros(clients)))


@pytest.mark.parametrize("min_clusters", [1, 4])
def test_the_smallest_number_of_clusters_changes_only_the_clustering(min_clusters):
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


def test_an_encoder_that_is_kept_continues_from_the_weights_of_the_last_round():
    graphs, prior = random_graphs(2), Prior(np.zeros(6))
    kept, still = GraphClustering(KEPT, 0), dataclasses.replace(KEPT, pretrain_epochs=0, cluster_epochs=0)
    first = kept.cluster(graphs[0], prior)
    later = GraphClustering(still, 0)
    later.restore(kept.state())
    # Without further training, the same graph has the embedding with which the first round ended.
    np.testing.assert_allclose(later.cluster(graphs[0], prior).latent, first.latent)
    anew = GraphClustering(QUICK, 0)
    anew.cluster(graphs[0], prior)
    assert not np.allclose(kept.cluster(graphs[1], prior).latent, anew.cluster(graphs[1], prior).latent)


def test_a_kept_encoder_is_saved_and_restored_and_none_is_saved_otherwise():
    graphs, prior = random_graphs(), Prior(np.zeros(6))
    kept = GraphClustering(KEPT, 0)
    for graph in graphs[:2]:
        kept.cluster(graph, prior)
    again = GraphClustering(KEPT, 0)
    again.restore(kept.state())
    assert np.array_equal(again.cluster(graphs[2], prior).latent, kept.cluster(graphs[2], prior).latent)
    assert not GraphClustering(QUICK, 0).state().arrays
