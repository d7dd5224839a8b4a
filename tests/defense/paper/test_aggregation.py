"""The two weighted means and the elimination, computed with one factor for each client, against whole models."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.defense.paper.aggregation import (
    distance_weights,
    eliminating_coefficients,
    elimination_strength,
    group_coefficients,
    step_norm,
)
from helpers import reference

WEIGHTINGS = ["near", "printed"]


@given(st.lists(st.floats(0, 50), min_size=1, max_size=10), st.sampled_from(WEIGHTINGS))
def test_distance_weights_are_a_softmax_and_sum_to_one(distances, weighting):
    ours = distance_weights(np.array(distances), weighting)
    np.testing.assert_allclose(ours, reference.softmax_weights(distances, weighting), rtol=1e-9, atol=1e-300)
    assert ours.sum() == pytest.approx(1)


@pytest.mark.parametrize(("weighting", "expected"), [("near", [2 / 3, 1 / 3]), ("printed", [1 / 3, 2 / 3])])
def test_the_client_nearer_the_centre_weighs_more_or_as_printed_less(weighting, expected):
    assert distance_weights(np.array([1.0, 1.0 + math.log(2)]), weighting).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_distance_weights_of_large_distances_do_not_overflow(weighting):
    weights = distance_weights(np.array([1e5, 2e5, 1e5]), weighting)
    assert weights.tolist() == ([0.5, 0.0, 0.5] if weighting == "near" else [0.0, 1.0, 0.0])


def random_group(seed: int, clients: int = 6, size: int = 15):
    rng = np.random.default_rng(seed)
    updates = rng.normal(size=(clients, size)) * rng.uniform(0.1, 3, size=(clients, 1))
    return rng.normal(size=size), updates, rng.uniform(size=clients), rng.permutation(clients)


def clip_factors_of(updates, limit):
    return np.array([min(1.0, limit / reference.norm(u)) for u in updates])


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), group_size=st.integers(1, 6), limit=st.floats(0.1, 5))
def test_the_model_of_a_group_is_the_global_model_plus_its_weighted_clipped_updates(weighting, seed, group_size, limit):
    g, updates, distances, order = random_group(seed)
    group = sorted(order[:group_size].tolist())
    inside = np.isin(np.arange(6), group)
    coefficients = group_coefficients(inside, distances, clip_factors_of(updates, limit), weighting)
    expected = reference.group_model(
        g, [reference.clipped(g, g + updates[i], limit) for i in group], distances[group], weighting
    )
    np.testing.assert_allclose(g + coefficients @ updates, expected, atol=1e-9)
    assert not coefficients[~inside].any()


def test_an_empty_group_has_no_coefficients():
    assert group_coefficients(np.zeros(3, bool), np.ones(3), np.ones(3)).tolist() == [0.0, 0.0, 0.0]


def test_the_norm_of_a_step_follows_from_the_inner_products():
    _, updates, coefficients, _ = random_group(1)
    expected = reference.norm(sum(c * u for c, u in zip(coefficients, updates, strict=True)))
    assert step_norm(coefficients, updates @ updates.T) == pytest.approx(expected)


def test_the_norm_of_a_step_whose_updates_cancel_is_zero():
    updates = np.array([[1.0, 0.1], [-1.0, -0.1]])
    assert step_norm(np.array([0.3, 0.3]), updates @ updates.T) == pytest.approx(0, abs=1e-8)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), strength=st.floats(0, 2), minus_scale=st.floats(0, 20))
def test_the_whole_step_is_that_to_the_papers_new_global_model(seed, strength, minus_scale):
    g, updates, shares, _ = random_group(seed)
    plus, minus = shares.copy(), shares[::-1] * minus_scale
    plus[3:], minus[:3] = 0, 0
    coefficients = eliminating_coefficients(plus, minus, updates @ updates.T, strength)
    expected = reference.new_global_model(
        g, g + plus @ updates, g + minus @ updates, gamma=strength, blame=1.0, n=math.e - 1
    )
    np.testing.assert_allclose(g + coefficients @ updates, expected, atol=1e-6)


def test_a_distant_poisoned_model_is_clipped_to_the_distance_of_the_normal_one():
    updates = np.array([[1.0, 0.0], [0.0, 50.0]])
    step = eliminating_coefficients(np.array([1.0, 0.0]), np.array([0.0, 1.0]), updates @ updates.T, 0.5) @ updates
    assert step.tolist() == pytest.approx([1.5, -0.5])


def test_a_near_poisoned_model_is_not_scaled_up():
    updates = np.array([[1.0, 0.0], [0.0, 0.2]])
    step = eliminating_coefficients(np.array([1.0, 0.0]), np.array([0.0, 1.0]), updates @ updates.T, 0.5) @ updates
    assert step.tolist() == pytest.approx([1.5, -0.1])


def test_zero_malicious_updates_still_scale_up_the_normal_step():
    updates = np.array([[1.0, 0.0], [0.0, 0.0]])
    step = eliminating_coefficients(np.array([1.0, 0.0]), np.array([0.0, 1.0]), updates @ updates.T, 0.5) @ updates
    assert step.tolist() == pytest.approx([1.5, 0.0])


def test_zero_normal_updates_leave_the_model_as_it_was():
    updates = np.array([[0.0, 0.0], [0.0, 7.0]])
    step = eliminating_coefficients(np.array([1.0, 0.0]), np.array([0.0, 1.0]), updates @ updates.T, 0.5) @ updates
    assert step.tolist() == [0.0, 0.0]


def test_the_strength_is_the_malicious_share_of_scores_times_the_log_of_the_norm():
    strength = elimination_strength(np.array([0.3, -0.1, 0.1]), np.array([False, True, True]), math.e - 1, 0.01)
    assert strength == pytest.approx(0.01 * (0.2 / 0.5) * 1.0)


def test_the_strength_without_malicious_clients_is_zero():
    assert elimination_strength(np.array([0.3, -0.1]), np.array([False, False]), 5.0, 0.01) == 0.0


def test_the_strength_where_all_scores_are_zero_is_zero():
    assert elimination_strength(np.zeros(2), np.array([False, True]), 5.0, 0.01) == 0.0
