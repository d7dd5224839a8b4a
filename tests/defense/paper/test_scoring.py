"""Benign scores and cluster filtering against the paper's matrix formulas and sets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.defense.paper.autoencoder import LatentClusters
from g2uardfl.defense.paper.scoring import (
    ClusterFilter,
    ScoreBook,
    cluster_scores,
    filter_clients,
    initial_score,
    updated_scores,
)
from g2uardfl.defense.stages import Clusters
from helpers import reference


def clusters_of(latent, centres) -> LatentClusters:
    latent, centres = np.asarray(latent, float), np.asarray(centres, float)
    return LatentClusters.of(latent, centres, reference.soft_assignment(latent, centres))


def on_a_line(*positions: float, centres=(0.0, 10.0)) -> LatentClusters:
    """Clients on a line; the cluster of each is the nearest centre."""
    return clusters_of(np.array(positions)[:, None], np.array(centres)[:, None])


def filtered(clusters: LatentClusters, scores, size_weight=0.3, score_percentile=25.0, distance_percentile=75.0):
    return filter_clients(
        clusters,
        np.asarray(scores, float),
        size_weight=size_weight,
        score_percentile=score_percentile,
        distance_percentile=distance_percentile,
    )


def members(mask) -> set[int]:
    return {i for i, inside in enumerate(mask) if inside}


random_rounds = given(
    clients=st.integers(1, 12),
    clusters=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
    alpha1=st.sampled_from([0.0, 25.0, 60.0, 100.0]),
    alpha2=st.sampled_from([0.0, 75.0, 100.0]),
    kappa3=st.floats(0, 2),
)


def random_round(clients, clusters, seed):
    rng = np.random.default_rng(seed)
    return clusters_of(rng.normal(size=(clients, 2)), rng.normal(size=(clusters, 2))), rng.normal(size=clients) / 10


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=12), seed=st.integers(0, 2**32 - 1), kappa3=st.floats(0, 9)
)
def test_cluster_scores_are_the_papers_matrix_formula_without_empty_clusters(labels, seed, kappa3):
    scores = np.random.default_rng(seed).normal(size=len(labels))
    P_hat = np.zeros((len(labels), 5))
    for i, label in enumerate(labels):
        P_hat[i, label] = 1
    expected = reference.cluster_scores(P_hat, scores, kappa3)
    ours = cluster_scores(np.array(labels), scores, 5, kappa3)
    assert {j for j in range(5) if not math.isnan(ours[j])} == set(expected)
    assert {j: ours[j] for j in expected} == pytest.approx(expected)


def test_a_clusters_score_is_its_share_of_the_clients_and_its_members_mean_score():
    scores = cluster_scores(np.array([0, 0, 0, 1]), np.array([0.1, 0.2, 0.6, -0.5]), 2, 0.4)
    assert scores.tolist() == pytest.approx([0.4 * 3 / 4 + 0.3, 0.4 * 1 / 4 - 0.5])


@settings(max_examples=150, deadline=None)
@random_rounds
def test_accepted_and_malicious_clients_are_the_papers_sets(clients, clusters, seed, alpha1, alpha2, kappa3):
    found, scores = random_round(clients, clusters, seed)
    best, plus, minus, _ = reference.pick_clients(
        found.latent, found.centres, found.soft, scores, kappa3=kappa3, alpha1=alpha1, alpha2=alpha2
    )
    ours = filtered(found, scores, kappa3, alpha1, alpha2)
    assert ours.benign_cluster == best
    assert members(ours.accepted) == plus
    assert members(ours.malicious) == minus


@settings(max_examples=100, deadline=None)
@random_rounds
def test_at_least_one_client_is_accepted_and_none_is_accepted_and_malicious(
    clients, clusters, seed, alpha1, alpha2, kappa3
):
    ours = filtered(*random_round(clients, clusters, seed), kappa3, alpha1, alpha2)
    assert ours.accepted.any()
    assert not (ours.accepted & ours.malicious).any()


def test_of_equal_scores_the_larger_cluster_is_benign():
    found = filtered(on_a_line(0, 0, 0, 10), [0.1] * 4)
    assert members(found.accepted) == {0, 1, 2}
    assert members(found.malicious) == {3}


def test_good_scores_outweigh_size():
    found = filtered(on_a_line(0, 0, 0, 10), [-0.5, -0.5, -0.5, 0.5])
    assert members(found.accepted) == {3}
    assert members(found.malicious) == {0, 1, 2}


def test_the_size_weight_weighs_size_against_scores():
    clusters, scores = on_a_line(0, 0, 0, 10), [0.0, 0.0, 0.0, 0.2]
    assert members(filtered(clusters, scores, size_weight=0.3).malicious) == {0, 1, 2}
    assert members(filtered(clusters, scores, size_weight=0.5).malicious) == {3}


def test_clusters_between_the_best_and_the_worst_are_held_out():
    found = filtered(on_a_line(0, 0, 0, 10, 10, 20, centres=(0, 10, 20)), [0.0] * 6)
    assert members(found.accepted) == {0, 1, 2}
    assert members(found.malicious) == {5}


def test_a_single_cluster_of_all_clients_is_not_malicious():
    found = filtered(on_a_line(0, 0.1, 0.2, 0.3), [0.1, -0.2, 0.3, -0.4])
    assert found.malicious_cluster is None
    assert not found.malicious.any()
    assert found.accepted.any()


def test_an_empty_cluster_is_neither_benign_nor_malicious():
    found = filtered(on_a_line(0, 0, 0, 10, centres=(0, 10, 500)), [-9.0, -9.0, -9.0, -9.0])
    assert found.benign_cluster == 0
    assert found.malicious_cluster == 1


def test_labels_may_be_any_numbers_and_distances_follow_from_the_membership():
    """A clustering of one's own returns `stages.Clusters`; scikit-learn labels noise -1."""
    plain = Clusters(np.array([7, 7, -1, 7, -1, 3]), np.array([0.9, 0.8, 0.0, 0.2, 0.0, 1.0]))
    found = filtered(plain, [0.1, 0.1, -0.1, 0.1, -0.1, 0.0], score_percentile=0, distance_percentile=75)
    assert (found.benign_cluster, found.malicious_cluster) == (7, -1)
    assert members(found.accepted) == {0, 1}
    assert members(found.malicious) == {2, 4}


def test_no_client_is_flagged_where_two_clusters_have_the_same_score():
    found = filtered(on_a_line(0, 0, 10, 10), [0.25, 0.25, 0.25, 0.25])
    assert found.malicious_cluster is None
    assert not found.malicious.any()
    assert members(found.accepted) == {0, 1}


def test_members_of_the_benign_cluster_with_low_scores_are_held_out():
    found = filtered(on_a_line(0, 0, 0, 0, 10), [0.5, 0.5, 0.5, 0.1, 0.1], distance_percentile=100)
    assert members(found.accepted) == {0, 1, 2, 3}
    found = filtered(on_a_line(0, 0, 0, 0, 10), [0.5, 0.5, 0.5, 0.1, 0.2], distance_percentile=100)
    assert members(found.accepted) == {0, 1, 2}


def test_the_score_percentile_is_that_of_all_selected_clients_not_of_the_cluster():
    scores = [0.9, 0.8, 0.7, 0.6, -0.9, -0.9, -0.9]
    found = filtered(on_a_line(0, 0, 0, 0, 10, 10, 10), scores)
    assert members(found.accepted) == {0, 1, 2, 3}  # within the cluster, the one with 0.6 would fall below


def test_members_of_the_benign_cluster_far_from_its_centre_are_held_out():
    found = filtered(on_a_line(0, 0.1, 0.2, 0.3, 10), [0.1] * 5, distance_percentile=75)
    assert members(found.accepted) == {0, 1, 2}


def test_if_no_member_meets_both_limits_the_one_nearest_the_centre_is_accepted():
    found = filtered(on_a_line(0.3, 0.1, 0.2, 10), [0.9, 0.1, 0.8, 0.0], score_percentile=100, distance_percentile=0)
    assert members(found.accepted) == {1}


@pytest.mark.parametrize("rule", ["printed", "signed"])
@settings(max_examples=60, deadline=None)
@given(clients=st.integers(1, 10), seed=st.integers(0, 2**32 - 1), kappa4=st.floats(0.01, 1))
def test_scores_move_by_the_equation_of_the_rule(rule, clients, seed, kappa4):
    clusters, scores = random_round(clients, 3, seed)
    filtering = filtered(clusters, scores)
    plus, minus = members(filtering.accepted), members(filtering.malicious)
    confidence = clusters.soft[:, filtering.benign_cluster]
    np.testing.assert_allclose(
        updated_scores(scores, filtering, clusters.membership, kappa4, rule),
        reference.updated_scores(scores, plus, minus, confidence, kappa4, rule),
        atol=1e-14,
    )


def one_of_each() -> tuple[ClusterFilter, np.ndarray]:
    """Client 0 accepted with confidence 0.8, client 1 held out, client 2 malicious."""
    mask = np.array
    filtering = ClusterFilter(0, 1, mask([True, False, False]), mask([False, False, True]))
    return filtering, np.array([0.8, 0.6, 0.9])


@pytest.mark.parametrize(
    ("rule", "start", "expected"),
    [
        ("printed", 0.2, [0.2 + 0.5 * 0.2 * 0.8, 0.2, 0.1]),
        ("printed", -0.2, [-0.2 + 0.5 * 0.2 * 0.8, -0.2, -0.3]),
        ("signed", 0.2, [0.2 + 0.5 * 0.8 * 0.8, 0.2, -0.4]),
        ("signed", -0.2, [-0.2 + 0.5 * 1.2 * 0.8, -0.2, -0.6]),
    ],
)
def test_one_step_of_each_rule_worked_by_hand(rule, start, expected):
    assert updated_scores(np.full(3, start), *one_of_each(), 0.5, rule).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("rule", "turns"), [("printed", False), ("signed", True)])
def test_the_score_of_a_flagged_client_becomes_negative_only_under_the_signed_rule(rule, turns):
    scores = np.full(3, 0.03)
    for _ in range(20):
        scores = updated_scores(scores, *one_of_each(), 0.5, rule)
    assert (scores[2] < 0) == turns
    assert np.abs(scores).max() <= 1 or rule == "printed"


def test_updating_scores_does_not_change_the_old_ones():
    scores = np.array([0.1, 0.2, 0.3])
    updated_scores(scores, *one_of_each(), 0.5)
    assert scores.tolist() == [0.1, 0.2, 0.3]


def eager(first: dict, rounds, normalise=True) -> list[dict]:
    """The scores of all clients at the start of each round, every one of them normalised at the end of every round."""
    scores, starts = dict(first), []
    for written in rounds:
        starts.append(dict(scores))
        scores.update(written)
        if normalise:
            scores = {client: math.tanh(score) for client, score in scores.items()}
    return [*starts, scores]


@pytest.mark.parametrize("normalise", [True, False])
def test_normalising_on_return_gives_the_scores_of_normalising_every_round(normalise):
    rng = np.random.default_rng(0)
    clients = list(range(10))
    rounds = [{c: rng.normal() for c in clients}]  # all are seen in the first round
    rounds += [{int(c): rng.normal() for c in rng.choice(10, 3, replace=False)} for _ in range(30)]
    book = ScoreBook(seed=0, normalise=normalise)
    expected = eager(dict.fromkeys(clients, 0.0), rounds, normalise)
    for number, written in enumerate(rounds, start=1):
        if number > 1:
            assert book.read(clients, number).tolist() == pytest.approx([expected[number - 1][c] for c in clients])
        book.write(list(written), np.array(list(written.values())), number)
    assert book.read(clients, len(rounds) + 1).tolist() == pytest.approx(list(expected[-1].values()))


def test_the_first_score_of_a_late_client_is_normalised_every_round_before():
    first = initial_score("late", 0)
    expected = eager({"late": first}, [{}] * 300)[-1]["late"]
    assert ScoreBook(seed=0).read(["late"], 301)[0] == pytest.approx(expected, rel=1e-9)


def test_the_next_round_reads_what_write_returned():
    book = ScoreBook(seed=0)
    kept = book.write(["a", "b"], np.array([0.5, -2.0]), 4)
    assert kept.tolist() == pytest.approx([math.tanh(0.5), math.tanh(-2.0)])
    assert book.read(["b", "a"], 5).tolist() == kept[::-1].tolist()


def test_reading_scores_changes_nothing():
    book = ScoreBook(seed=0)
    book.write(["a"], np.array([0.5]), 1)
    first = book.read(["a", "new"], 9)
    assert book.read(["a", "new"], 9).tolist() == first.tolist()
    assert set(book.scores) == {"a"}


def test_an_initial_score_depends_only_on_the_id_and_the_seed():
    one, other = ScoreBook(seed=5), ScoreBook(seed=5)
    one.write(["x", "y"], np.array([0.1, 0.2]), 1)
    assert one.read(["new"], 2).tolist() == other.read(["new"], 2).tolist()
    assert initial_score("new", 5) != initial_score("new", 6)
    assert initial_score("new", 5) != initial_score("old", 5)


def test_a_number_and_a_string_of_the_same_digits_draw_different_first_scores():
    assert initial_score(7, 0) != initial_score("7", 0)


def test_a_numpy_number_draws_the_first_score_of_the_number():
    assert initial_score(np.int64(7), 0) == initial_score(7, 0)


@pytest.mark.parametrize(("init", "deviation"), [("variance", math.sqrt(1e-3)), ("deviation", 1e-3)])
def test_first_scores_are_normal_with_a_thousandth_as_variance_or_as_deviation(init, deviation):
    draws = np.array([initial_score(client, 0, init) for client in range(2000)])
    assert draws.mean() == pytest.approx(0, abs=4 * deviation / 2000**0.5)
    assert draws.std() == pytest.approx(deviation, rel=0.07)
    assert (np.abs(draws) < deviation).mean() == pytest.approx(0.683, abs=0.05)


def test_the_two_readings_of_the_first_score_differ_by_a_factor():
    for client in range(5):
        ratio = initial_score(client, 3, "variance") / initial_score(client, 3, "deviation")
        assert ratio == pytest.approx(math.sqrt(1e-3) / 1e-3)
