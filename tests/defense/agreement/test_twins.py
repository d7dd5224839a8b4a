"""Twins: two clients of one round whose updates are almost the same."""

from __future__ import annotations

import numpy as np
import pytest

from g2uardfl.defense.agreement.twins import find_twins


def graph_of(*pairs, count=6):
    """The similarity graph in which only these pairs of submissions are similar."""
    graph = np.zeros((count, count))
    for first, second in pairs:
        graph[first, second] = graph[second, first] = 5.0
    return graph


def twins_in(graph, rounds=None, suspects=(), min_similarity=4.0):
    rounds = np.ones(len(graph), dtype=int) if rounds is None else rounds
    return find_twins(graph, rounds, np.isin(np.arange(len(graph)), suspects), min_similarity)


def test_twins_are_two_clients_of_the_round_more_similar_than_the_limit():
    assert twins_in(graph_of((1, 4))) == [None, 4, None, None, 1, None]
    assert twins_in(graph_of((1, 4)), min_similarity=6.0) == [None] * 6


def test_the_most_similar_client_is_the_twin():
    graph = graph_of((0, 1), (0, 2))
    graph[0, 2] = graph[2, 0] = 9.0
    assert twins_in(graph) == [2, 0, 0, None, None, None]


def test_clients_of_other_rounds_are_no_twins():
    rounds = np.array([1] * 6 + [2] * 6)
    assert twins_in(graph_of((1, 7), count=12), rounds) == [None] * 6
    assert twins_in(graph_of((7, 10), count=12), rounds) == [None, 4, None, None, 1, None]


@pytest.mark.parametrize("attackers", range(2, 6))
def test_planted_copies_are_found_among_noise(attackers):
    """Up to half of ten clients send almost the same; edges of the others are standard normal."""
    for seed in range(30):
        noise = np.triu(np.random.default_rng(seed).normal(size=(10, 10)), 1)
        graph = noise + noise.T
        graph[:attackers, :attackers] += 8.0
        np.fill_diagonal(graph, 0)
        twins = twins_in(graph)
        assert all(twin is not None and twin < attackers for twin in twins[:attackers])
        assert twins[attackers:].count(None) == 10 - attackers


def test_a_majority_of_twins_is_honest():
    """Early in training the honest clients learn the same."""
    assert twins_in(graph_of((0, 1), (1, 2))) == [1, 0, 1, None, None, None]
    assert twins_in(graph_of((0, 1), (2, 3))) == [None] * 6


def test_suspects_do_not_count_for_the_majority():
    assert twins_in(graph_of((0, 1), (2, 3)), suspects=[0, 1]) == [1, 0, 3, 2, None, None]
    assert twins_in(graph_of((0, 1)), suspects=range(6)) == [1, 0, None, None, None, None]


FOUR_ROUNDS = np.arange(40) // 10


@pytest.mark.parametrize(("pairs", "found"), [(0, True), (1, True), (2, False)])
def test_twins_are_common_if_more_than_a_tenth_of_the_others_has_one_in_another_round(pairs, found):
    graph = graph_of((31, 34), *((place, 10 + place) for place in range(pairs)), count=40)
    twins = [None] * 10
    if found:
        twins[1], twins[4] = 4, 1
    assert twins_in(graph, FOUR_ROUNDS) == twins


def test_pairs_of_one_round_suspects_and_submissions_similar_to_the_twins_make_them_no_more_common():
    within = graph_of((31, 34), (0, 1), (2, 3), (4, 31), (14, 31), count=40)
    assert twins_in(within, FOUR_ROUNDS)[1] == 4
    across = graph_of((31, 34), (0, 10), (1, 11), count=40)
    assert twins_in(across, FOUR_ROUNDS)[1] is None
    assert twins_in(across, FOUR_ROUNDS, suspects=range(10, 20))[1] == 4
