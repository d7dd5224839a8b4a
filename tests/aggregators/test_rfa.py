"""RFA against Weiszfeld's algorithm on whole vectors, and against the mistakes of other implementations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.aggregators.rfa import RFA
from helpers.models import batch_norm_model, perturbed
from helpers.rounds import (
    byzfl,
    decisions,
    rounds,
    sample_counts,
    send,
    slow_shares,
    updates_of,
    vector,
    weights_of,
)


def slow_weiszfeld(points, shares, nu, most, tolerance):
    """The smoothed Weiszfeld algorithm on whole vectors."""

    def objective(z):
        return sum(share * np.linalg.norm(z - point) for share, point in zip(shares, points, strict=True))

    z = sum(share * point for share, point in zip(shares, points, strict=True))
    value = objective(z)
    for _ in range(most):
        weights = [share / max(nu, np.linalg.norm(z - point)) for share, point in zip(shares, points, strict=True)]
        z = sum(weight * point for weight, point in zip(weights, points, strict=True)) / sum(weights)
        before, value = value, objective(z)
        if abs(before - value) <= tolerance * value:
            break
    return z


@settings(deadline=None)
@given(
    updates=rounds(),
    examples=sample_counts,
    most=st.integers(1, 30),
    tolerance=st.sampled_from([0.1, 1e-3, 1e-6]),
    seed=st.integers(0, 99),
)
def test_rfa_is_the_smoothed_weiszfeld_algorithm_on_whole_vectors(updates, examples, most, tolerance, seed):
    start = np.random.default_rng(seed).normal(size=updates.shape[1])
    examples = examples[: len(updates)]
    rule = RFA(iterations=most, tolerance=tolerance)
    expected = slow_weiszfeld(start + updates, slow_shares(examples), 1e-5, most, tolerance)
    scale = 1 + np.median(np.linalg.norm(updates, axis=1))
    np.testing.assert_allclose(vector(send(rule, updates, examples, start)), expected, rtol=1e-4, atol=1e-4 * scale)


def test_rfa_worked_by_hand():
    """From the mean 2 of 0, 1 and 5 the distances are 2, 1, 3, so the weights are 1/2, 1, 1/3 over 11/6."""
    result = send(RFA(iterations=1), [[0.0], [1.0], [5.0]])
    assert weights_of(result) == pytest.approx([3 / 11, 6 / 11, 2 / 11])
    assert vector(result)[0] == pytest.approx(16 / 11)
    assert result.verdicts[2].distance == pytest.approx(5 - 16 / 11)
    assert "its distance from the geometric median is 3.545" in result.verdicts[2].reason


@settings(deadline=None)
@given(updates=rounds(), examples=sample_counts)
def test_no_other_point_has_a_smaller_sum_of_distances(updates, examples):
    shares = np.array(slow_shares(examples[: len(updates)]))
    z = vector(send(RFA(tolerance=0.0, iterations=2000), updates, examples[: len(updates)]))

    def objective(point):
        return shares @ np.linalg.norm(updates - point, axis=1)

    slack = 1e-3 * objective(z) + 1e-4
    assert objective(z) <= objective(shares @ updates) + slack
    assert all(objective(z) <= objective(update) + slack for update in updates)


# Mistakes of other implementations: each test fails with the mistake it names.


def test_equal_sample_counts_are_all_counted():
    """A set of the counts {3, 3, 1} would have two members, and the shares would not sum to 1."""
    result = send(RFA(iterations=1), [[0.0], [1.0], [5.0]], [3, 3, 1])
    mean = (3 * 0 + 3 * 1 + 5) / 7
    expected = np.array([3 / mean, 3 / (mean - 1), 1 / (5 - mean)])
    assert weights_of(result) == pytest.approx(expected / expected.sum())


def test_rfa_starts_from_the_weighted_mean_not_from_the_global_model():
    """A first step from zero would have the weights 1/|x_i| and give 3 / (1/1 + 1/2 + 1/9)."""
    assert vector(send(RFA(iterations=1), [[1.0], [2.0], [9.0]]))[0] != pytest.approx(3 / (1 + 1 / 2 + 1 / 9))
    distances = np.array([3.0, 2.0, 5.0])
    assert vector(send(RFA(iterations=1), [[1.0], [2.0], [9.0]]))[0] == pytest.approx(
        (np.array([1.0, 2.0, 9.0]) / distances).sum() / (1 / distances).sum()
    )


def test_rfa_uses_one_vector_not_a_geometric_median_for_each_layer():
    """The geometric median of the first layer alone would be 0, where two of three clients are."""
    updates = np.array([[0.0, 0.0], [0.0, 10.0], [6.0, 5.0]])
    z = vector(send(RFA(tolerance=1e-12, iterations=5000), updates))
    assert z[0] > 1
    np.testing.assert_allclose(z, slow_weiszfeld(updates, [1 / 3] * 3, 1e-5, 5000, 1e-12), rtol=1e-6)


def test_rfa_takes_more_than_three_iterations_if_it_has_not_converged():
    updates = updates_of("huge outlier", 11, 6, 5)
    three = vector(send(RFA(iterations=3, tolerance=1e-12), updates))
    many = vector(send(RFA(tolerance=1e-12), updates))
    assert np.linalg.norm(many) < 10 < np.linalg.norm(three)


# Convergence, samples and running statistics.


def test_rfa_stops_when_the_objective_has_converged():
    updates = updates_of("random", 10, 20, 4)
    loose, strict = vector(send(RFA(tolerance=0.5), updates)), vector(send(RFA(tolerance=1e-12), updates))
    np.testing.assert_allclose(loose, vector(send(RFA(iterations=1, tolerance=0.0), updates)), rtol=1e-12)
    assert np.abs(loose - strict).max() > 1e-6


def test_a_huge_outlier_has_almost_no_weight():
    updates = updates_of("huge outlier", 11, 6, 5)
    result = send(RFA(tolerance=0.0), updates)
    assert result.verdicts[10].weight < 1e-10
    assert np.linalg.norm(vector(result)) < 10


def test_the_papers_tolerance_stops_before_a_huge_outlier_has_lost_its_influence():
    """A tenth of an objective that the outlier dominates is far more than the distances between the others."""
    updates = updates_of("huge outlier", 11, 6, 5)
    z = vector(send(RFA(), updates))
    np.testing.assert_allclose(z, slow_weiszfeld(updates, [1 / 11] * 11, 1e-5, 500, 0.1), rtol=1e-9)
    assert np.linalg.norm(z) > 1e6


def test_tiny_updates_of_a_large_float32_model_keep_their_digits():
    rng = np.random.default_rng(0)
    start = (rng.normal(size=50_000) * 0.2).astype(np.float32)
    updates = (1e-4 * rng.normal(size=(5, 50_000)) * np.array([1, 1, 1, 1, 30])[:, None]).astype(np.float32)
    result = send(RFA(), updates, start=start)
    sent = np.stack([start + update for update in updates]).astype(float) - start
    expected = slow_weiszfeld(sent, [0.2] * 5, 1e-5, 500, 0.1)
    np.testing.assert_allclose(vector(result).astype(float) - start, expected, atol=6e-8)


def test_clients_without_samples_have_weight_0_unless_no_client_has_samples():
    result = send(RFA(), [[1.0], [2.0], [30.0]], [1, 1, 0])
    assert decisions(result) == "aah"
    assert vector(result)[0] == pytest.approx(1.5)
    assert "reported no samples" in result.verdicts[2].reason
    without = send(RFA(), [[1.0], [2.0]], [0, 0])
    assert decisions(without) == "aa"
    assert vector(without)[0] == pytest.approx(1.5)
    assert vector(send(RFA(), [[1.0], [1.5]], [1, 0])).tolist() == [1.0]


@settings(deadline=None)
@given(updates=rounds())
def test_results_are_between_the_smallest_and_the_largest_value_of_each_parameter(updates):
    result = vector(send(RFA(), updates))
    slack = 1e-9 * (1 + np.abs(updates).max(axis=0))
    assert (result >= updates.min(axis=0) - slack).all()
    assert (result <= updates.max(axis=0) + slack).all()


def test_running_statistics_are_weighted_like_the_updates():
    model = batch_norm_model()
    clients = {i: perturbed(model, i, shift=9.0 if i == 4 else 0.0) for i in range(5)}
    for client, weights in clients.items():
        weights["1.running_mean"] = torch.full((4,), float(client))
    result = RFA().aggregate(model, clients)
    slow = sum(client * weight for client, weight in enumerate(weights_of(result)))
    torch.testing.assert_close(result.weights["1.running_mean"], torch.full((4,), slow), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", [RFA])
def test_a_round_does_not_depend_on_earlier_rounds(rule):
    used = rule()
    for clients, first in ((10, 0), (3, 50), (1, 7), (6, 2)):
        model = {"w": np.zeros(4)}
        sent = {first + i: {"w": row} for i, row in enumerate(updates_of("random", clients, 4, clients))}
        np.testing.assert_array_equal(
            used.aggregate(model, sent).weights["w"], rule().aggregate(model, sent).weights["w"]
        )


@pytest.mark.parametrize("clients", [10, 11, 40])
def test_agreement_with_the_converged_geometric_median_of_byzfl(clients):
    peer = byzfl()
    updates = updates_of("random", clients, 50, clients)
    expected = peer.GeometricMedian(nu=1e-5, T=300)(updates)
    np.testing.assert_allclose(vector(send(RFA(tolerance=0.0), updates)), expected, atol=1e-7)
