"""Inter-client relations against loops over all pairs of clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.core.numerics import InnerProducts, inner_products
from g2uardfl.defense.paper.relations import adjacency, edge_strengths, raw_relations
from helpers import reference

SCALINGS = ["similarity", "printed"]


def products(weights, global_model, dtype=np.float64) -> InnerProducts:
    g = np.asarray(global_model, dtype)
    size = len(g)
    layers = [slice(0, size // 2), slice(size // 2, size)] if size > 1 else [slice(0, 1)]
    return inner_products(torch.from_numpy(np.asarray(weights, dtype) - g), torch.from_numpy(g), layers)


def random_round(clients: int, parameters: int = 20, seed: int = 0):
    rng = np.random.default_rng(seed)
    g = rng.normal(size=parameters)
    return g + rng.uniform(0.1, 2, size=(clients, 1)) * rng.normal(size=(clients, parameters)), g


def test_the_three_relations_are_cosines_and_differences_of_norms():
    weights, g = random_round(6)
    for ours, expected in zip(raw_relations(products(weights, g)), reference.raw_relations(weights, g), strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-12)


def test_the_relations_of_three_clients_worked_by_hand():
    g = np.zeros(2)
    angles, weight_differences, update_differences = raw_relations(products([[1, 0], [0, 2], [-3, 0]], g))
    np.testing.assert_allclose(angles, [[1, 0.5, 0], [0.5, 1, 0.5], [0, 0.5, 1]], atol=1e-12)
    np.testing.assert_allclose(weight_differences, [[0, 1, 2], [1, 0, 1], [2, 1, 0]], atol=1e-12)
    np.testing.assert_allclose(update_differences, weight_differences, atol=1e-12)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("clients", [2, 3, 9])
def test_the_adjacency_matrix_is_the_mean_of_the_three_scaled_relations(clients, scaling):
    weights, g = random_round(clients, seed=clients)
    np.testing.assert_allclose(
        adjacency(products(weights, g), scaling), reference.relations(weights, g, scaling), atol=1e-9
    )


def test_a_fourth_relation_compares_the_directions_of_the_updates():
    weights, g = random_round(6)
    updates = list(np.asarray(weights) - g)
    cosines = reference.z_score_matrix(np.array([[(1 + reference.cos(u, v)) / 2 for v in updates] for u in updates]))
    three = reference.relations(weights, g)
    found = adjacency(products(weights, g), with_update_cosines=True)
    np.testing.assert_allclose(found, (3 * three + np.tanh(np.maximum(cosines, 0))) / 4, atol=1e-9)


def test_printed_edges_are_the_exponential_of_minus_the_similarity():
    normalised = np.random.default_rng(0).normal(size=(5, 5)) * 3
    np.testing.assert_allclose(
        edge_strengths(normalised, "printed"), np.exp(-edge_strengths(normalised, "similarity")), rtol=1e-14
    )


@pytest.mark.parametrize(
    ("scaling", "dissimilar", "identical"), [("similarity", 0.0, 1.0), ("printed", 1.0, np.exp(-1))]
)
def test_dissimilar_and_identical_clients_have_the_extreme_strengths(scaling, dissimilar, identical):
    strengths = edge_strengths(np.array([-40.0, -1e-9, 40.0]), scaling)
    np.testing.assert_allclose(strengths, [dissimilar, dissimilar, identical])


@pytest.mark.parametrize(("scaling", "strength"), [("similarity", 0.0), ("printed", 1.0)])
@pytest.mark.parametrize("clients", [1, 4])
def test_identical_clients_have_equal_edges(clients, scaling, strength):
    weights, g = random_round(1)
    found = adjacency(products(np.repeat(weights, clients, axis=0), g), scaling)
    assert found.tolist() == [[strength] * clients] * clients


def test_clients_that_did_not_move_give_finite_edges():
    _, g = random_round(1)
    assert not adjacency(products(np.stack([g] * 4), g)).any()


def test_models_of_zeros_give_the_papers_edges():
    weights, _ = random_round(4)
    weights[1] = 0.0
    np.testing.assert_allclose(
        adjacency(products(weights, np.zeros(20))), _relations_with_cosine_zero_for_the_zero_vector(weights), atol=1e-9
    )


def _relations_with_cosine_zero_for_the_zero_vector(weights):
    """A zero vector has no cosine, not even with itself: the library has 0 there, the reference 1."""
    e1, e2, e3 = reference.raw_relations(weights, np.zeros(20))
    e1[1, 1] = 0.5
    scaled = [reference.z_score_matrix(e1), -reference.z_score_matrix(e2), -reference.z_score_matrix(e3)]
    return np.mean([np.tanh(np.maximum(matrix, 0)) for matrix in scaled], axis=0)


def test_relations_of_tiny_updates_on_large_weights_are_exact_in_float32():
    rng = np.random.default_rng(0)
    g = rng.normal(size=2000)
    g = (50 * g / np.linalg.norm(g)).astype(np.float32)
    moved = rng.normal(size=(6, 2000)) * rng.uniform(0.5, 1.5, size=(6, 1))
    weights = (g + 0.02 * moved / np.linalg.norm(moved, axis=1, keepdims=True)).astype(np.float32)
    expected = reference.relations(weights.astype(np.float64), g.astype(np.float64))
    np.testing.assert_allclose(adjacency(products(weights, g, np.float32)), expected, atol=1e-4)


def test_two_colluding_clients_are_connected_to_each_other_and_not_to_the_rest():
    rng = np.random.default_rng(0)
    g = rng.normal(size=50)
    weights = g + 0.1 * rng.normal(size=(8, 50))
    weights[6:] = g + 3 * rng.normal(size=50) + 0.1 * rng.normal(size=(2, 50))
    edges = adjacency(products(weights, g))
    assert edges[6, 7] > 0.5
    assert edges[6, :6].max() == 0.0


@settings(max_examples=30, deadline=None)
@given(clients=st.integers(1, 8), seed=st.integers(0, 2**32 - 1), scaling=st.sampled_from(SCALINGS))
def test_edges_are_symmetric_and_between_zero_and_one_in_any_order_of_clients(clients, seed, scaling):
    weights, g = random_round(clients, 12, seed)
    edges = adjacency(products(weights, g), scaling)
    order = np.random.default_rng(seed).permutation(clients)
    np.testing.assert_allclose(edges, edges.T, atol=1e-12)
    assert edges.min() >= 0
    assert edges.max() <= 1
    np.testing.assert_allclose(adjacency(products(weights[order], g), scaling), edges[np.ix_(order, order)], atol=1e-9)
