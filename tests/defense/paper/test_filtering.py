"""Dynamic filtering and clipping as a stage: benign scores, percentiles and the norm limit."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from g2uardfl.defense.g2uardfl import G2uardFL
from g2uardfl.defense.paper.filtering import ClusterFiltering, FilteringSettings
from g2uardfl.defense.stages import Clusters, Prior
from helpers.attributed_graphs import graph_of
from helpers.paper_rounds import GROUPS, NUM_CLIENTS, Both, first_round

COLUMNS = 19 + 29
"""The attributes of a model with one layer."""


def judged(filtering: ClusterFiltering, norms, clusters, number: int = 1):
    graph = graph_of(np.zeros((len(norms), COLUMNS)), number, norms)
    return filtering.judge(graph, filtering.prior(graph), clusters)


def two_clusters(*labels: int) -> Clusters:
    return Clusters(np.array(labels), np.full(len(labels), 0.75))


@pytest.mark.parametrize("first", [[], [list(range(NUM_CLIENTS))]], ids=["clients join late", "all from the start"])
@pytest.mark.parametrize("score_update", ["printed", "signed"])
def test_benign_scores_are_the_papers(first, score_update):
    both = Both(score_update=score_update)
    for result, _, _ in both.rounds(groups=[*first, *GROUPS]):
        scores = {client: verdict.benign_score for client, verdict in result.verdicts.items()}
        assert scores == pytest.approx({client: both.literal.scores[client] for client in scores}, rel=1e-9)


def test_the_default_profile_of_the_paper_updates_scores_by_the_signed_rule():
    model, clients = first_round()
    default, signed = (G2uardFL("paper", seed=0, **settings) for settings in ({}, {"score_update": "signed"}))
    assert default.configuration() == signed.configuration()
    assert default.aggregate(model, clients).verdicts == signed.aggregate(model, clients).verdicts


@pytest.mark.parametrize(("update", "normalised"), [("printed", True), ("signed", False)])
def test_printed_scores_are_normalised_by_tanh_and_signed_ones_are_not(update, normalised):
    filtering = ClusterFiltering(FilteringSettings(score_update=update, score_init="zero"), 0)
    before = Prior(np.array([0.5, 0.5, -0.5, 0.0]))
    graph = graph_of(np.zeros((4, COLUMNS)))
    found = filtering.judge(graph, before, two_clusters(0, 0, 1, 1))
    assert not np.array_equal(found.raw_scores, before.scores)
    expected = [math.tanh(score) if normalised else score for score in found.raw_scores]
    assert found.scores == pytest.approx(expected, rel=1e-12)
    assert filtering.prior(graph_of(np.zeros((4, COLUMNS)), 2)).scores == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("clusters", [None, two_clusters(0, 1)], ids=["no clusters", "clusters of too few"])
def test_two_clients_are_accepted_clipped_and_keep_their_scores(clusters):
    filtering = ClusterFiltering(FilteringSettings(), 0)
    before = filtering.prior(graph_of(np.zeros((2, COLUMNS)))).scores
    found = judged(filtering, [1.0, 3.0], clusters)
    assert found.accepted.all()
    assert not found.malicious.any()
    assert (found.clusters, found.distances) == (None, None)
    assert found.scores.tolist() == before.tolist()
    assert found.clipping == pytest.approx([1, 2 / 3])
    assert set(found.reasons) == {"Accepted without comparison: only 2 usable updates, and 3 are required."}


def test_the_norm_limit_is_the_mean_of_all_rounds_medians_and_clips_longer_updates():
    filtering, medians, rng = ClusterFiltering(FilteringSettings(), 0), [], np.random.default_rng(0)
    for number in range(1, 6):
        norms = rng.uniform(0.5, 3, 5)
        medians.append(statistics.median(norms))
        found = judged(filtering, norms, two_clusters(0, 0, 0, 1, 1), number)
        limit = statistics.fmean(medians)
        assert found.norm_limit == pytest.approx(limit)
        assert found.clipping == pytest.approx([min(1, limit / norm) for norm in norms])


def test_the_percentiles_are_those_of_the_settings():
    norms, clusters = [1.0] * 5, Clusters(np.array([0, 0, 0, 0, 1]), np.array([0.9, 0.8, 0.7, 0.6, 0.9]))
    counts = []
    for score_percentile, distance_percentile in ((0, 100), (0, 50), (100, 100)):
        chosen = {"score_percentile": float(score_percentile), "distance_percentile": float(distance_percentile)}
        settings = FilteringSettings(score_init="zero", cluster_size_weight=1.0, **chosen)
        counts.append(judged(ClusterFiltering(settings, 0), norms, clusters).accepted.tolist())
    assert counts[0] == [True, True, True, True, False]
    assert counts[1] == [True, True, False, False, False]
    assert counts[2] == [True, True, True, True, False], "all scores are equal"


def test_a_verdict_has_the_label_and_the_distance_of_its_client():
    clusters = Clusters(np.array([3, 3, 5]), np.array([0.9, 0.5, 1.0]))
    found = judged(ClusterFiltering(FilteringSettings(), 0), [1.0] * 3, clusters)
    assert found.clusters.tolist() == [3, 3, 5]
    assert found.distances == pytest.approx([0.1, 0.5, 0.0])
