"""The clustering stage: labels, memberships and twins of the similarity graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from g2uardfl.defense.agreement.clustering import ClusteringSettings, CommunityClustering, SubmissionPrior
from g2uardfl.defense.agreement.construction import ConstructionSettings, SimilarityConstruction
from g2uardfl.defense.observation import Observation
from helpers.graphs import planted

ATTACKERS = range(0, 120, 5)


def evidence_with(edges):
    """Rounds of ten of eighty clients, with that similarity graph."""
    count = len(edges)
    construction = SimilarityConstruction(ConstructionSettings(window=1000), 0)
    rng = np.random.default_rng(0)
    for number in range(1, count // 10 + 1):
        vectors = rng.normal(size=(10, 1, 64)).astype(np.float32)
        clients = tuple(client % 80 for client in range(10 * number - 10, 10 * number))
        unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
        shapes = np.zeros((10, 2))
        measured = {"shapes": shapes, "directions": unit, "renewed_directions": unit[:, :0], "renewals": np.array(0)}
        evidence = construction.build(number, Observation(clients, ("layer",), measured))
    return replace(evidence, edges=edges)


def clustered(edges, heterogeneity=1.0, learning=0.0, **settings):
    prior = SubmissionPrior(np.zeros(len(edges)), np.zeros(len(edges), bool), heterogeneity, learning)
    return CommunityClustering(ClusteringSettings(**settings), 0).cluster(evidence_with(edges), prior)


def kinds_and_attackers() -> np.ndarray:
    """Five kinds of data, and attackers who are 2.5 times as strong a community as each of these."""
    kinds = [(range(i * 24, (i + 1) * 24), 2.0) for i in range(5)]
    return planted(120, 0, *kinds, (ATTACKERS, 4.0))


@pytest.mark.parametrize(
    ("min_lead", "heterogeneity", "found"),
    [(1.5, 1.0, True), (1.5, 1.5, True), (1.5, 2.0, False), (3.0, 1.0, False), (0.5, 3.0, True)],
)
def test_the_required_lead_grows_with_the_heterogeneity_of_the_clients(min_lead, heterogeneity, found):
    clusters = clustered(kinds_and_attackers(), heterogeneity, min_lead=min_lead)
    assert np.flatnonzero(clusters.labels).tolist() == (list(ATTACKERS) if found else [])


@pytest.mark.parametrize(("learning", "found"), [(0.0, True), (0.5, True), (1.0, False)])
def test_the_required_lead_doubles_while_all_clients_learn_the_same(learning, found):
    clusters = clustered(kinds_and_attackers(), learning=learning, min_lead=1.5)
    assert np.flatnonzero(clusters.labels).tolist() == (list(ATTACKERS) if found else [])


def test_labels_number_the_communities_and_0_is_for_all_others():
    stronger, weaker = range(0, 80, 10), range(3, 99, 8)
    clusters = clustered(planted(100, 0, (weaker, 4.0), (stronger, 9.0)))
    assert len(clusters.communities) == 2
    for number, community in enumerate(clusters.communities, start=1):
        assert np.array_equal(clusters.labels == number, community.members)
    assert np.flatnonzero(clusters.labels == 1).tolist() == list(stronger)
    assert np.flatnonzero(clusters.labels == 2).tolist() == list(weaker)
    assert np.array_equal(clusters.membership > 0.5, clusters.labels > 0)


def test_without_communities_all_labels_and_memberships_are_zero():
    clusters = clustered(planted(100, 1))
    assert clusters.communities == ()
    assert not clusters.labels.any()
    assert not clusters.membership.any()


@pytest.mark.parametrize(("twin_similarity", "found"), [(4.0, True), (20.0, False)])
def test_twins_are_those_of_the_last_round_above_the_limit(twin_similarity, found):
    edges = np.zeros((30, 30))
    for first, second in ((22, 27), (3, 4)):
        edges[first, second] = edges[second, first] = 9.0
    twins = [None] * 10
    if found:
        twins[2], twins[7] = 7, 2
    assert list(clustered(edges, twin_similarity=twin_similarity).twins) == twins
