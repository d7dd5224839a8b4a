"""Graph construction as a stage: what the graph of a round holds, and what is remembered of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from g2uardfl.core.numerics import inner_products
from g2uardfl.defense.g2uardfl import G2uardFL
from g2uardfl.defense.observation import Observation
from g2uardfl.defense.paper.attributes import normalised_attributes
from g2uardfl.defense.paper.construction import ConstructionSettings, GraphConstruction
from helpers import reference

LAYERS = [[0, 1, 2, 3], [4, 5, 6]]


def observed(clients, seed: int = 0):
    """The observation of random updates; whole models and updates, for a second computation."""
    rng = np.random.default_rng(seed)
    start, updates = rng.normal(size=7), rng.normal(size=(len(clients), 7))
    columns = [slice(layer[0], layer[-1] + 1) for layer in LAYERS]
    products = inner_products(torch.from_numpy(updates), torch.from_numpy(start), columns)
    attributes = rng.normal(size=(len(clients), 19 + 29 * 2))
    measured = {"attributes": attributes, "gg": products.gg, "gu": products.gu, "uu": products.uu}
    return Observation(tuple(clients), ("a", "b"), measured), start, updates


def test_norms_products_and_edges_are_those_of_the_whole_model():
    observation, start, updates = observed(range(5))
    graph = GraphConstruction(ConstructionSettings(relation_history=0.0), 0).build(1, observation)
    assert (graph.clients, graph.nodes, graph.layers) == (tuple(range(5)), tuple(range(5)), ("a", "b"))
    assert graph.norms == pytest.approx(np.linalg.norm(updates, axis=1))
    np.testing.assert_allclose(graph.update_products, updates @ updates.T)
    np.testing.assert_allclose(graph.edges, reference.relations(list(start + updates), start, "similarity"), atol=1e-9)


def test_each_kappa_weighs_its_own_history():
    observation, _, _ = observed(range(4))
    own = normalised_attributes(observation["attributes"])
    plain = GraphConstruction(ConstructionSettings(attribute_history=0.0, relation_history=0.0), 0).build(
        1, observation
    )
    graph = GraphConstruction(ConstructionSettings(attribute_history=0.25, relation_history=0.5), 0).build(
        1, observation
    )
    np.testing.assert_allclose(graph.attributes, 0.75 * own)
    np.testing.assert_allclose(graph.edges, 0.5 * plain.edges)
    assert np.array_equal(graph.own_attributes, own)


def test_a_setting_decides_whether_history_fades_while_a_client_is_absent():
    kept, faded = (GraphConstruction(ConstructionSettings(fade_absent=fade), 0) for fade in (False, True))
    for number, clients in enumerate(([0, 1, 2, 3], [0, 1, 2], [0, 1, 2, 3]), start=1):
        first, second = (one.build(number, observed(clients, number)[0]) for one in (kept, faded))
    assert np.array_equal(first.attributes[:3], second.attributes[:3])
    assert not np.array_equal(first.attributes[3], second.attributes[3])


@pytest.mark.parametrize("clients", [[5], [5, 6]])
def test_a_round_with_too_few_clients_to_compare_is_not_remembered(clients):
    construction, other = (GraphConstruction(ConstructionSettings(), 0) for _ in range(2))
    for one in (construction, other):
        assert one.build(1, observed(range(7))[0]).comparable
    graph = construction.build(2, observed(clients, 2)[0])
    assert not graph.comparable
    assert np.array_equal(graph.attributes, graph.own_attributes)
    last, expected = (one.build(3, observed(range(7), 3)[0]) for one in (construction, other))
    assert np.array_equal(last.attributes, expected.attributes)
    assert np.array_equal(last.edges, expected.edges)


def test_the_memory_is_limited_by_its_setting():
    construction = GraphConstruction(ConstructionSettings(memory_limit=1000), 0)
    for number in range(1, 30):
        construction.build(number, observed(range(20 * number, 20 * number + 20), number)[0])
    assert len(construction.memory.edges) <= 1000
    assert len(construction.memory.rows) <= 100


def test_the_memory_of_thousands_of_clients_is_not_quadratic():
    guard, rng = G2uardFL(profile="paper", seed=0, pretrain_epochs=1, cluster_epochs=1), np.random.default_rng(0)
    model = {"a": np.zeros(2, np.float32)}
    for number in range(100):
        guard.aggregate(model, {20 * number + k: {"a": rng.normal(size=2).astype(np.float32)} for k in range(20)})
    assert len(guard.construction.memory.rows) == len(guard.filtering.scores.scores) == 2000
    assert len(guard.construction.memory.edges) == 100 * (20 * 21 // 2)
    assert len(guard.observer.state().arrays["updates"]) == 20
