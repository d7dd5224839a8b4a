"""Krum and Multi-Krum against slow computations on whole weights, and against the mistakes of other implementations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.aggregators._distances import krum_scores, squared_distances, tolerated_clients
from g2uardfl.aggregators.krum import Krum
from g2uardfl.aggregators.multi_krum import MultiKrum
from helpers.krum import lowest, slow_scores
from helpers.models import batch_norm_model, perturbed
from helpers.rounds import (
    accepted,
    byzfl,
    decisions,
    flower,
    rounds,
    send,
    updates_of,
    vector,
    weights_of,
)


@settings(deadline=None)
@given(updates=rounds(), f=st.integers(0, 4), seed=st.integers(0, 99))
def test_krum_takes_the_client_with_the_lowest_score(updates, f, seed):
    start = np.random.default_rng(seed).normal(size=updates.shape[1])
    result = send(Krum(malicious_clients=f), updates, start=start)
    scores = slow_scores((start + updates).tolist(), tolerated_clients(f, len(updates), 2)[0])
    (selected,) = accepted(result)
    assert scores[selected] <= min(scores) * (1 + 1e-6) + 1e-9
    np.testing.assert_allclose(vector(result), start + updates[selected], rtol=1e-12, atol=1e-12)


@settings(deadline=None)
@given(updates=rounds(), f=st.integers(0, 4), count=st.integers(0, 12))
def test_multi_krum_is_the_mean_of_the_clients_with_the_lowest_scores(updates, f, count):
    result = send(MultiKrum(malicious_clients=f, selected_clients=count), updates)
    tolerated, _ = tolerated_clients(f, len(updates), 2)
    selected = accepted(result)
    assert len(selected) == min(count or len(updates) - tolerated, len(updates))
    np.testing.assert_allclose(vector(result), updates[selected].mean(axis=0), rtol=1e-9, atol=1e-9)
    scores = slow_scores(updates.tolist(), tolerated)
    rejected = [scores[i] for i in range(len(updates)) if i not in selected]
    assert max(scores[i] for i in selected) <= min(rejected, default=np.inf) * (1 + 1e-6) + 1e-9


def test_krum_worked_by_hand():
    """Two neighbours each: 0: 1+9, 1: 1+4, 3: 4+9, 7: 16+36, 50: 43²+47²."""
    points = np.array([[0.0], [1.0], [3.0], [7.0], [50.0]])
    assert krum_scores(squared_distances(points @ points.T), 1).tolist() == [10, 5, 13, 52, 4058]
    result = send(Krum(malicious_clients=1), points)
    assert vector(result).tolist() == [1.0]
    assert decisions(result) == "hahhh"
    assert "score 5 has rank 1 of 5" in result.verdicts[1].reason
    assert "score 4058 has rank 5 of 5" in result.verdicts[4].reason
    assert weights_of(result) == [0, 1, 0, 0, 0]


def test_multi_krum_worked_by_hand():
    result = send(MultiKrum(malicious_clients=1), [[0.0], [1.0], [3.0], [7.0], [50.0]])
    assert vector(result).tolist() == [(0 + 1 + 3 + 7) / 4]
    assert decisions(result) == "aaaah"
    assert result.verdicts[0].weight == 0.25
    assert result.verdicts[4].reason.endswith("has rank 5 of 5, lowest first, and only 4 are selected.")


# Mistakes of other implementations: each test fails with the mistake it names.


def test_the_lowest_score_wins_not_the_highest_as_in_the_papers_appendix():
    assert vector(send(Krum(), [[0.0], [0.1], [0.2], [0.3], [0.4], [0.5], [100.0]]))[0] < 1


def test_the_score_sums_n_minus_f_minus_2_neighbours_not_one_more():
    """With n - f - 2 = 2 neighbours 10.4 scores 0.16 + 0.16; with n - f - 1 = 3 the pair at 0 would favour 10."""
    points = np.array([[0.0], [0.1], [10.0], [10.4], [10.8]])
    products = points @ points.T
    assert krum_scores(squared_distances(products), 0).argmin() == 2
    assert vector(send(Krum(malicious_clients=1), points)).tolist() == [10.4]


def test_distances_are_squared():
    """Two neighbours each: 9 has distances 3 and 4, squares 25; 1 has 1 and 5, squares 26 but the smaller sum."""
    assert vector(send(Krum(malicious_clients=1), [[0.0], [1.0], [6.0], [9.0], [13.0]])).tolist() == [9.0]


def test_distance_is_over_the_whole_model_not_a_sum_of_the_layers_norms():
    """Summed over layers, (3, 4) has distance 3 + 4 = 7 and (0, 6) only 6; as one vector (3, 4) is nearer with 5."""
    points = np.array([[0.0, 0.0], [3.0, 4.0], [0.0, -6.0]])
    assert krum_scores(squared_distances(points @ points.T), 0).tolist() == [25, 25, 36]
    assert decisions(send(MultiKrum(malicious_clients=0, selected_clients=2), points)) == "aah"


def test_scores_of_tiny_updates_of_a_large_float32_model_keep_their_digits():
    """On float32 weights the error of ||x||² + ||y||² - 2xy is as large as the differences between the scores."""
    rng = np.random.default_rng(0)
    start = rng.normal(size=200_000)
    start = (50 * start / np.linalg.norm(start)).astype(np.float32)
    updates = rng.normal(size=(10, 200_000)) * np.linspace(0.5, 1.5, 10)[::-1, None]
    updates = (0.02 * updates / np.sqrt(200_000)).astype(np.float32)
    sent = np.stack([start + update for update in updates])
    exact = sent.astype(np.float64) - start.astype(np.float64)
    expected = krum_scores(squared_distances(exact @ exact.T), 2)
    naive_norms = np.square(sent).sum(axis=1)
    naive = naive_norms[:, None] + naive_norms[None, :] - 2 * sent @ sent.T
    assert np.abs(krum_scores(naive.astype(np.float64), 2) - expected).max() > 0.2 * np.ptp(expected)
    result = send(Krum(), updates, start=start)
    assert result.verdicts[int(expected.argmin())].decision == "accepted"


def test_multi_krum_holds_out_f_clients_not_a_fixed_share():
    for clients in (5, 8, 20):
        assert decisions(send(MultiKrum(), updates_of("random", clients, 4, 1))).count("h") == (
            1 if clients == 5 else 2
        )


@pytest.mark.parametrize("attackers", [0, 1, 4])
def test_multi_krum_holds_out_f_clients_whatever_the_true_number_of_attackers(attackers):
    updates = updates_of("clustered", 10, 4, 3)
    updates[:attackers] += 100
    assert decisions(send(MultiKrum(), updates)).count("h") == 2


def test_multi_krum_computes_scores_once_not_after_each_selection():
    """Three neighbours each; with new scores after each selection, 0 would be selected instead of 10."""
    points = np.array([[0.0], [5.0], [10.0], [15.0], [20.0], [21.0]])
    scores = krum_scores(squared_distances(points @ points.T), 1)
    assert scores.tolist() == [25 + 100 + 225, 25 + 25 + 100, 25 + 25 + 100, 25 + 25 + 36, 1 + 25 + 100, 1 + 36 + 121]
    result = send(MultiKrum(malicious_clients=1, selected_clients=4), points)
    assert decisions(result) == "haaaah"


def test_the_number_of_clients_is_that_of_the_round_not_of_an_earlier_one():
    rule = MultiKrum()
    for clients in (10, 4, 7, 1, 12):
        updates = updates_of("random", clients, 3, clients)
        f = tolerated_clients(2, clients, 2)[0]
        chosen = lowest(slow_scores(updates.tolist(), f), clients - f)
        np.testing.assert_allclose(vector(send(rule, updates)), updates[chosen].mean(axis=0))


# Small rounds, samples and running statistics.


@pytest.mark.parametrize(("clients", "lowered"), [(1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (6, 1), (7, 2)])
@pytest.mark.parametrize("kind", [Krum, MultiKrum])
def test_with_too_few_clients_f_is_lowered_and_the_note_says_so(kind, clients, lowered):
    result = send(kind(), updates_of("random", clients, 3, 0))
    if lowered == 2:
        assert result.note == ""
    else:
        assert f"f was lowered from 2 to {lowered}." in result.note
    assert decisions(result).count("a") == (1 if kind is Krum else clients - lowered)


def test_of_two_clients_krum_takes_the_first_and_of_one_the_only_one():
    assert vector(send(Krum(), [[3.0, 1.0], [2.0, 5.0]])).tolist() == [3.0, 1.0]
    assert vector(send(Krum(), [[2.0, 5.0]])).tolist() == [2.0, 5.0]


def test_a_huge_outlier_is_held_out():
    updates = updates_of("huge outlier", 11, 6, 5)
    for rule in (Krum(), MultiKrum()):
        result = send(rule, updates)
        assert result.verdicts[10].decision == "held_out"
        assert np.abs(vector(result)).max() < 10


def test_reported_samples_have_no_influence_unless_weigh_by_samples_is_set():
    updates, counts = [[1.0], [2.0], [3.0], [4.0], [900.0]], [1, 10**9, 1, 1, 1]
    assert vector(send(MultiKrum(malicious_clients=1), updates, counts)).tolist() == [2.5]
    weighed = send(MultiKrum(malicious_clients=1, weigh_by_samples=True), updates, [1, 5, 0, 4, 99])
    assert vector(weighed)[0] == pytest.approx((1 + 2 * 5 + 4 * 4) / 10)
    assert weighed.verdicts[1].weight == 0.5


def test_a_missing_sample_count_is_valid_if_counts_are_not_used():
    rule = MultiKrum()
    model = {"w": np.zeros(2)}
    result = rule.aggregate(model, {i: {"w": np.full(2, float(i))} for i in range(3)}, {0: 5})
    assert {verdict.decision for verdict in result.verdicts.values()} == {"accepted"}


def test_without_any_samples_the_weighted_mean_is_plain():
    result = send(MultiKrum(malicious_clients=0, weigh_by_samples=True), [[1.0], [2.0], [6.0]], [0, 0, 0])
    assert vector(result).tolist() == [3.0]


def test_running_statistics_come_from_the_selected_clients_alone():
    model = batch_norm_model()
    clients = {
        i: perturbed(model, i, shift=3.0 if i == 4 else 0.0) | {"1.running_mean": torch.full((4,), float(i))}
        for i in range(5)
    }
    result = Krum(malicious_clients=1).aggregate(model, clients)
    (selected,) = accepted(result)
    torch.testing.assert_close(result.weights["1.running_mean"], clients[selected]["1.running_mean"])
    result = MultiKrum(malicious_clients=1).aggregate(model, clients)
    torch.testing.assert_close(result.weights["1.running_mean"], torch.full((4,), 1.5))


@settings(deadline=None)
@given(updates=rounds(), scale=st.sampled_from([0.25, 4.0, 1024.0]), f=st.integers(0, 3))
def test_scaling_every_update_scales_the_step(updates, scale, f):
    for kind in (Krum, MultiKrum):
        plain, scaled = (send(kind(malicious_clients=f), factor * updates) for factor in (1.0, scale))
        np.testing.assert_allclose(vector(scaled), scale * vector(plain), rtol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_krum_agrees_with_byzfl_which_sums_one_neighbour_more(seed):
    peer = byzfl()
    updates = updates_of("clustered", 12, 30, seed)
    np.testing.assert_allclose(vector(send(Krum(malicious_clients=2), updates)), peer.Krum(3)(updates))
    kept = MultiKrum(malicious_clients=2, selected_clients=9)
    np.testing.assert_allclose(vector(send(kept, updates)), peer.MultiKrum(3)(updates))


@pytest.mark.parametrize("seed", range(5))
def test_multi_krum_selects_the_same_clients_as_flower_if_float32_suffices(seed):
    select = flower("multikrum").select_multikrum
    from flwr.app import Array, ArrayRecord, RecordDict

    updates = updates_of("clustered", 12, 30, seed)
    contents = [RecordDict({"arrays": ArrayRecord({"w": Array(row)})}) for row in updates]
    chosen = select(contents, num_malicious_nodes=2, num_nodes_to_select=10)
    expected = "".join("a" if any(content is one for one in chosen) else "h" for content in contents)
    assert decisions(send(MultiKrum(), updates)) == expected
