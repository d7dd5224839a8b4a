"""The graph's memory against momentum over complete matrices that have a row and a column for every client."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.defense.paper.graph import GraphMemory, history_share
from helpers import reference


def random_graph(clients: int, rng: np.random.Generator, attributes: int = 4):
    edges = rng.uniform(size=(clients, clients))
    return rng.normal(size=(clients, attributes)), (edges + edges.T) / 2


def rounds_of(num_clients: int, seed: int, count: int = 8):
    """Rounds of changing clients: (round number, clients in order, attributes, edges)."""
    rng = np.random.default_rng(seed)
    for number in range(1, count + 1):
        selected = sorted(rng.choice(num_clients, size=rng.integers(1, num_clients + 1), replace=False).tolist())
        yield number, selected, *random_graph(len(selected), rng)


@settings(max_examples=40, deadline=None)
@given(
    num_clients=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
    attribute_history=st.floats(0, 1),
    relation_history=st.floats(0, 1),
    fade_absent=st.booleans(),
)
def test_the_graph_of_each_round_equals_that_of_complete_matrices(
    num_clients, seed, attribute_history, relation_history, fade_absent
):
    memory = GraphMemory(fade_absent=fade_absent)
    complete = reference.FullGraph(num_clients, 4, attribute_history, relation_history, fade_absent)
    for number, selected, attributes, edges in rounds_of(num_clients, seed):
        ours = memory.smooth(number, selected, attributes, edges, attribute_history, relation_history)
        expected = complete.step(selected, attributes, edges)
        np.testing.assert_allclose(ours[0], expected[0], atol=1e-12)
        np.testing.assert_allclose(ours[1], expected[1], atol=1e-12)


def test_a_new_client_has_history_zero():
    rows, edges = GraphMemory().smooth(1, ["a"], np.array([[2.0]]), np.array([[1.0]]), 0.1, 0.4)
    assert rows.tolist() == [[pytest.approx(1.8)]]
    assert edges.tolist() == [[pytest.approx(0.6)]]


@pytest.mark.parametrize(
    ("momentum", "second_round"), [("history", 0.1 * 0.9 + 0.9 * 3), ("printed", 0.9 * 0.1 + 0.1 * 3)]
)
def test_kappa_is_the_weight_of_the_history_or_as_printed_of_the_new_values(momentum, second_round):
    share, memory = history_share(0.1, momentum), GraphMemory()
    memory.smooth(1, [0], np.array([[1.0]]), np.zeros((1, 1)), share, share)
    rows, _ = memory.smooth(2, [0], np.array([[3.0]]), np.zeros((1, 1)), share, share)
    assert rows[0, 0] == pytest.approx(second_round)


def test_a_kappa_of_zero_keeps_no_history_or_as_printed_nothing_new():
    now = np.array([[5.0]])
    for momentum, expected in (("history", 5.0), ("printed", 0.0)):
        share, memory = history_share(0.0, momentum), GraphMemory()
        memory.smooth(1, [0], now * 7, now, share, share)
        rows, edges = memory.smooth(2, [0], now, now, share, share)
        assert (rows[0, 0], edges[0, 0]) == (expected, expected)


@pytest.mark.parametrize(("fade_absent", "kept"), [(False, 0.5), (True, 0.5**4)])
def test_history_is_kept_while_a_client_is_absent_unless_it_fades(fade_absent, kept):
    memory, zero = GraphMemory(fade_absent=fade_absent), np.zeros((2, 1))
    memory.smooth(1, [0, 1], np.array([[2.0], [2.0]]), np.full((2, 2), 2.0), 0.5, 0.5)
    for number in (2, 3, 4):
        memory.smooth(number, [0], zero[:1], np.zeros((1, 1)), 0.5, 0.5)
    rows, edges = memory.smooth(5, [0, 1], zero, np.zeros((2, 2)), 0.5, 0.5)
    assert rows[1, 0] == pytest.approx(kept * 1.0)
    assert edges[0, 1] == edges[1, 0] == pytest.approx(kept * 1.0)
    assert rows[0, 0] == pytest.approx(0.5**4)


def test_a_pair_that_never_met_has_no_history_although_both_clients_have():
    memory, one = GraphMemory(), np.ones((1, 1))
    memory.smooth(1, [0], one, one, 0.5, 0.5)
    memory.smooth(2, [1], one, one, 0.5, 0.5)
    rows, edges = memory.smooth(3, [0, 1], np.ones((2, 1)), np.ones((2, 2)), 0.5, 0.5)
    assert rows[:, 0].tolist() == [0.75, 0.75]
    assert edges.tolist() == [[0.75, 0.5], [0.5, 0.75]]


def test_arrays_passed_in_and_returned_are_independent_of_the_memory():
    memory, attributes, edges = GraphMemory(), np.ones((2, 3)), np.ones((2, 2))
    rows, strengths = memory.smooth(1, [0, 1], attributes, edges, 0.5, 0.5)
    rows += 100
    strengths += 100
    assert attributes.tolist() == np.ones((2, 3)).tolist()
    assert edges.tolist() == np.ones((2, 2)).tolist()
    again, strengths_again = memory.smooth(2, [0, 1], attributes, edges, 0.5, 0.5)
    assert again.tolist() == np.full((2, 3), 0.75).tolist()
    assert strengths_again.tolist() == np.full((2, 2), 0.75).tolist()


def test_a_number_and_a_string_of_the_same_digits_are_two_clients():
    memory = GraphMemory()
    memory.smooth(1, [7, "7"], np.array([[1.0], [2.0]]), np.zeros((2, 2)), 0.5, 0.5)
    rows, _ = memory.smooth(2, ["7"], np.zeros((1, 1)), np.zeros((1, 1)), 0.5, 0.5)
    assert rows.tolist() == [[0.5]]


def test_memory_grows_with_the_pairs_that_met_not_with_the_square_of_all_clients():
    memory, rounds, per_round = GraphMemory(), 500, 8
    for number in range(rounds):
        clients = list(range(number * per_round, (number + 1) * per_round))
        memory.smooth(number + 1, clients, np.ones((per_round, 2)), np.ones((per_round, per_round)), 0.1, 0.1)
    assert len(memory.rows) == rounds * per_round
    assert len(memory.edges) == rounds * per_round * (per_round + 1) // 2
    assert max(row.size for row, _ in memory.rows.values()) == 2


def test_beyond_the_limit_the_client_seen_longest_ago_is_forgotten_first():
    memory, one = GraphMemory(limit=30), np.ones((1, 1))
    for number, client in enumerate(["old", "kept", "other", "kept", "new"], start=1):
        memory.smooth(number, [client], one, one, 0.5, 0.5)
    assert list(memory.rows) == ["other", "kept", "new"]
    rows, _ = memory.smooth(6, ["old"], one, one, 0.5, 0.5)
    assert rows.tolist() == [[0.5]]
    rows, _ = memory.smooth(7, ["kept"], one, one, 0.5, 0.5)
    assert rows.tolist() == [[0.875]]


def test_beyond_the_limit_the_pairs_that_met_longest_ago_are_forgotten_first():
    memory = GraphMemory(limit=6)
    for number, pair in enumerate([[0, 1], [2, 3], [0, 1], [4, 5]], start=1):
        memory.smooth(number, pair, np.ones((2, 1)), np.ones((2, 2)), 0.5, 0.5)
    assert set(memory.edges) == {(0, 0), (0, 1), (1, 1), (4, 4), (4, 5), (5, 5)}


def test_the_clients_of_the_current_round_are_remembered_even_beyond_the_limit():
    memory = GraphMemory(limit=20)
    memory.smooth(1, list(range(5)), np.ones((5, 1)), np.ones((5, 5)), 0.5, 0.5)
    rows, _ = memory.smooth(2, list(range(5)), np.ones((5, 1)), np.ones((5, 5)), 0.5, 0.5)
    assert rows[:, 0].tolist() == [0.75] * 5
