"""The similarity graph against loops over all pairs of submissions."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.defense.agreement.similarity import similarity_graph
from g2uardfl.defense.agreement.window import Window

WIDTH = 16


def window_of(rounds, layers, width=WIDTH, seed=0, common=0.0) -> Window:
    """A window of random unit directions; `common` is the strength of what all updates share."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(layers, width))
    window = Window(1000)
    for number, clients in enumerate(rounds, start=1):
        sketches = rng.normal(size=(len(clients), layers, width)) + common * shared
        sketches /= np.linalg.norm(sketches, axis=-1, keepdims=True)
        window.add(number, clients, sketches.astype(np.float32))
    return window


def graph_of(window: Window) -> np.ndarray:
    return similarity_graph(window.client_numbers(), window.rounds, window.sketches)


def dot(first, second):
    return sum(float(x) * float(y) for x, y in zip(first, second, strict=True))


def literal_graph(window: Window):
    count, layers = window.sketches.shape[:2]
    total = [[0.0] * count for _ in range(count)]
    pairs = [(i, j) for i in range(count) for j in range(count) if window.clients[i] != window.clients[j]]
    for layer in range(layers):
        rest = {(i, j): dot(window.sketches[i, layer], window.sketches[j, layer]) for i, j in pairs}
        usual = literal_usual_cosines(window, rest)
        for i, j in pairs:
            rest[i, j] -= usual[window.rounds[i], window.rounds[j]]
        deviation = 1.4826 * statistics.median([abs(value) for value in rest.values()]) if rest else 0.0
        for (i, j), value in rest.items():
            total[i][j] += min(12.0, max(-6.0, value / max(deviation, 0.01)))
    return np.array(total) / layers


def literal_usual_cosines(window: Window, cosines):
    """The median of two rounds' cosines; the clients' lowest medians where those are far below it."""
    blocks = defaultdict(dict)
    for (i, j), cosine in cosines.items():
        blocks[window.rounds[i], window.rounds[j]][i, j] = cosine
    medians, lowest, apart = {}, {}, {}
    for key, block in blocks.items():
        medians[key] = statistics.median(block.values())
        rows = [[c for p, c in block.items() if p[0] == i] for i in {p[0] for p in block}]
        columns = [[c for p, c in block.items() if p[1] == j] for j in {p[1] for p in block}]
        lowest[key] = np.quantile([statistics.median(values) for values in rows + columns], 0.1)
        apart[key] = [abs(c - medians[key]) for c in block.values()]
    if not medians:
        return {}
    usual_gap = statistics.median(medians[key] - lowest[key] for key in medians)
    everywhere = statistics.median(c for values in apart.values() for c in values)
    deviation = {key: 1.4826 * max(everywhere, statistics.median(values)) for key, values in apart.items()}
    return {
        key: lowest[key] + usual_gap if medians[key] - lowest[key] - usual_gap > deviation[key] else medians[key]
        for key in medians
    }


WINDOWS = {
    "one round": [[0, 1, 2, 3, 4, 5]],
    "two rounds of the same clients": [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]],
    "rounds of unequal size": [[0, 1, 2, 3, 4, 5, 6], [2, "a"], [7], [3, "a", 0, 8, 9]],
    "one client in one round": [[0]],
    "one client in three rounds": [[0], [0], [0]],
    "one client a round": [[0], [1], [0], [2], [1]],
    "two clients": [[0, 1], [1]],
}


@pytest.mark.parametrize("common", [0.0, 1.0, 1000.0])
@pytest.mark.parametrize("rounds", WINDOWS.values(), ids=WINDOWS)
def test_the_graph_equals_the_literal_double_loop(rounds, common):
    window = window_of(rounds, layers=3, common=common)
    np.testing.assert_allclose(graph_of(window), literal_graph(window), atol=2e-4)


@settings(max_examples=25, deadline=None)
@given(
    rounds=st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=6, unique=True), min_size=1, max_size=5),
    layers=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
    common=st.sampled_from([0.0, 0.5, 3.0]),
)
def test_the_graph_of_any_window_equals_the_literal_double_loop(rounds, layers, seed, common):
    window = window_of(rounds, layers, seed=seed, common=common)
    np.testing.assert_allclose(graph_of(window), literal_graph(window), atol=2e-4)


@pytest.mark.parametrize("attackers", [2, 5, 7, 8])
@pytest.mark.parametrize("before", [1, 5])
def test_attackers_are_similar_and_others_are_not_however_many_attack_in_one_round(attackers, before):
    count = 10 * (before + 1)
    window = window_of([list(range(first, first + 10)) for first in range(0, count, 10)], layers=2, width=512)
    poison = np.random.default_rng(1).normal(size=(2, 512)) / math.sqrt(512)
    last, different = np.arange(count) >= 10 * before, ~np.eye(count, dtype=bool)
    attack = np.arange(count) % 10 < np.where(last, attackers, 3)
    window.sketches[attack] += poison.astype(np.float32)
    window.sketches /= np.linalg.norm(window.sketches, axis=-1, keepdims=True)
    found = graph_of(window)
    np.testing.assert_allclose(found, literal_graph(window), atol=2e-4)

    def mean_of(first, second):
        return found[np.ix_(first, second)][different[np.ix_(first, second)]].mean()

    assert mean_of(last & attack, last & attack) > 1
    assert mean_of(last & ~attack, last) < 0.5
    assert mean_of(last & attack, attack) > 1


@pytest.mark.parametrize("layers", [1, 4])
def test_edges_of_independent_updates_are_z_scores(layers):
    """Of each layer the edge is a standard normal number; the mean of independent layers varies less."""
    found = graph_of(window_of([list(range(first, first + 10)) for first in range(0, 100, 10)], layers, width=256))
    edges = found[np.triu_indices(100, 1)]
    assert abs(edges.mean()) < 0.02
    assert edges.std() == pytest.approx(layers**-0.5, rel=0.05)


def test_submissions_of_one_client_are_not_compared():
    window = window_of([[0, 1, 2, 3]] * 3, layers=2)
    own = np.equal.outer(window.client_numbers(), window.client_numbers())
    assert (graph_of(window)[own] == 0).all()


def test_no_single_layer_decides():
    """Two of a hundred layers are equal, one in sign and one opposite: neither makes an edge that stands out."""
    window = window_of([list(range(30))], layers=100, width=512)
    window.sketches[1, 0] = window.sketches[0, 0]
    window.sketches[2, 0] = -window.sketches[0, 0]
    edges = graph_of(window)
    usual = np.abs(edges[3:, 3:]).max()
    assert abs(edges[0, 1]) < usual
    assert abs(edges[0, 2]) < usual


def test_evidence_for_similarity_may_weigh_more_than_evidence_against_it():
    window = window_of([list(range(30))], layers=1, width=4096)
    window.sketches[1] = window.sketches[0]
    window.sketches[2] = -window.sketches[0]
    edges = graph_of(window)
    assert edges[0, 1] == edges.max() > -edges[0, 2] == -edges.min() > 3


def test_idle_clients_are_as_similar_to_others_as_usual():
    window = window_of([list(range(20))], layers=2, width=512)
    window.sketches[:3] = 0
    found = graph_of(window)
    np.testing.assert_allclose(found, literal_graph(window), atol=2e-4)
    assert np.abs(found[:3]).max() < 1


def test_the_order_of_clients_within_rounds_permutes_the_graph():
    window = window_of([[0, 1, 2, 3, 4], [5, 1, 6], [0, 2, 7, 8]], layers=3)
    order = np.array([3, 1, 0, 4, 2, 7, 5, 6, 11, 9, 8, 10])
    permuted = Window(1000, [window.clients[i] for i in order], window.rounds, window.sketches[order])
    np.testing.assert_allclose(graph_of(permuted), graph_of(window)[np.ix_(order, order)], atol=1e-4)
