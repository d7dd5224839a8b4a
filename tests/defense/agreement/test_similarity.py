"""Edges of the similarity graph against loops over all pairs of submissions."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.defense.agreement.similarity import new_edges
from helpers.graphs import drawn_sketches


def slow_edges(sketches, people, rounds) -> tuple[np.ndarray, np.ndarray]:
    """The edges of the last round's submissions and their repetition, pair by pair."""
    count, layers = sketches.shape[:2]
    new = [i for i in range(count) if rounds[i] == rounds[-1]]
    others = [(i, j) for i in new for j in range(count) if people[i] != people[j]]
    own = [(i, j) for i in new for j in range(new[0]) if people[i] == people[j]]
    total = dict.fromkeys(others + own, 0.0)
    for layer in range(layers):
        rest = {(i, j): float(np.dot(*sketches[[i, j], layer].astype(np.float64))) for i, j in total}
        for number in set(rounds):
            block = [rest[pair] for pair in others if rounds[pair[1]] == number]
            usual = statistics.median(block) if block else 0.0
            rest = {pair: value - usual * (rounds[pair[1]] == number) for pair, value in rest.items()}
        deviation = max(0.01, 1.4826 * statistics.median(abs(rest[pair]) for pair in others)) if others else 0.01
        for pair, value in rest.items():
            total[pair] += min(12.0, max(-6.0, value / deviation)) / layers
    spread = 1.4826 * statistics.median(abs(total[pair]) for pair in others) if others else 0.0
    edges, repetition = np.zeros((len(new), count)), np.zeros((len(new), 2))
    for pair, value in total.items():
        z_score = value / spread if spread > 0 else value
        if pair in own:
            repetition[pair[0] - new[0]] += z_score, 1
        else:
            edges[pair[0] - new[0], pair[1]] = z_score
    return edges, repetition


def window_of(seed: int, clients_of_rounds, layers: int = 2, width: int = 16, common: float = 0.0):
    """Sketches, people and rounds."""
    people = np.array([client for clients in clients_of_rounds for client in clients])
    rounds = [number for number, clients in enumerate(clients_of_rounds, start=1) for _ in clients]
    return drawn_sketches(seed, len(people), layers, width, common=common), people, rounds


client_ids = st.lists(st.integers(0, 8), min_size=1, max_size=6, unique=True)


@settings(max_examples=40, deadline=None)
@given(
    rounds=st.lists(client_ids, min_size=1, max_size=5),
    layers=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
    common=st.sampled_from([0.0, 0.5, 3.0]),
)
def test_the_edges_of_any_window_equal_those_of_loops_over_all_pairs(rounds, layers, seed, common):
    window = window_of(seed, rounds, layers, common=common)
    for found, expected in zip(new_edges(*window), slow_edges(*window), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=4e-3)


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(6)), names=st.permutations(range(9)))
def test_order_and_numbers_of_clients_do_not_matter(order, names):
    sketches, people, rounds = window_of(3, [[0, 1, 2], [2, 3, 4, 0], [5, 1, 6, 7, 8, 0]])
    places = np.concatenate([np.arange(7), 7 + np.array(order)])
    edges, repetition = new_edges(sketches, people, rounds)
    found, found_repetition = new_edges(sketches[places], np.array(names)[people[places]], rounds)
    np.testing.assert_allclose(found, edges[np.ix_(order, places)], atol=1e-5)
    np.testing.assert_allclose(found_repetition, repetition[list(order)], atol=1e-5)


@pytest.mark.parametrize("layers", [1, 4])
def test_edges_of_independent_updates_are_z_scores(layers):
    edges, _ = new_edges(*window_of(0, np.arange(100).reshape(10, 10), layers, 256))
    values = edges[edges != 0]
    assert abs(values.mean()) < 0.1
    assert values.std() == pytest.approx(1.0, rel=0.1)


def test_submissions_of_one_client_are_not_compared():
    sketches, people, rounds = window_of(0, [[0, 1, 2, 3]] * 3)
    edges, _ = new_edges(sketches, people, rounds)
    assert (edges[np.equal.outer(people[-4:], people)] == 0).all()
    assert np.count_nonzero(edges) == 4 * 9


def test_what_everybody_learns_is_removed():
    edges, _ = new_edges(*window_of(0, np.arange(50).reshape(5, 10), width=256, common=2.0))
    assert abs(edges.mean()) < 0.2


def test_attackers_of_different_rounds_are_similar_to_each_other_and_not_to_others():
    sketches, people, rounds = window_of(0, np.arange(50).reshape(5, 10), width=256)
    attack = people % 10 < 2
    sketches[attack] += 0.7 * drawn_sketches(1, 1, 2, 256)
    edges, _ = new_edges(sketches, people, rounds)
    assert edges[:2, attack & (people < 40)].mean() > 3
    assert abs(edges[:2, ~attack].mean()) < 0.5
    assert abs(edges[2:].mean()) < 0.5


def test_no_single_layer_decides():
    """Of a hundred layers the first is the same in two updates, and opposite in a third."""
    sketches, people, rounds = window_of(0, [range(30)], 100, 512)
    sketches[1, 0], sketches[2, 0] = sketches[0, 0], -sketches[0, 0]
    edges, _ = new_edges(sketches, people, rounds)
    assert abs(edges[0, [1, 2]]).max() < abs(edges[3:, 3:]).max()


def test_evidence_for_similarity_may_weigh_more_than_evidence_against_it():
    sketches, people, rounds = window_of(0, [range(30)], 1, 4096)
    sketches[1], sketches[2] = sketches[0], -sketches[0]
    edges, _ = new_edges(sketches, people, rounds)
    assert edges[0, 1] == edges.max()
    assert edges[0, 2] == edges.min()
    # The limits of a layer are 12 and -6.
    assert edges.max() == pytest.approx(-2 * edges.min())


def test_idle_clients_are_as_similar_to_others_as_usual():
    sketches, people, rounds = window_of(0, [range(20)], width=512)
    sketches[:3] = 0
    assert np.abs(new_edges(sketches, people, rounds)[0][:3]).max() < 1


@pytest.mark.parametrize("rounds", [[[0]], [[0], [0]], [[0], [0], [0]]], ids=str)
def test_a_single_client_has_no_edges(rounds):
    assert not new_edges(*window_of(0, rounds))[0].any()
