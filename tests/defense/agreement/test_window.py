"""The window of submissions: which rounds it keeps, and what it knows of each submission."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.defense.agreement.similarity import new_edges
from g2uardfl.defense.agreement.window import Window
from helpers.graphs import drawn_sketches


def numbered(number, clients):
    """Sketches from which the round and the row can be read."""
    return np.array([[[100.0 * number + row]] for row in range(clients)], dtype=np.float32).reshape(-1, 1, 1)


@settings(max_examples=80, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8), limit=st.integers(1, 25))
def test_the_window_keeps_the_last_whole_rounds_that_fit_and_always_the_current_one(sizes, limit):
    window = Window(limit)
    past = []
    for number, size in enumerate(sizes, start=1):
        clients = [f"{number}-{row}" for row in range(size)]
        window.add(number, clients, numbered(number, size))
        window.note_accepted(np.arange(size) % 2 == number % 2)
        past.append((number, clients))
        # The obvious second computation: from the current round backwards, as long as there is room.
        kept, room = [past[-1]], limit - size
        for earlier in reversed(past[:-1]):
            room -= len(earlier[1])
            if room < 0:
                break
            kept.insert(0, earlier)
        assert window.clients == [client for _, names in kept for client in names]
        assert window.rounds == [number for number, names in kept for _ in names]
        expected = [100.0 * number + row for number, names in kept for row in range(len(names))]
        assert window.sketches[:, 0, 0].tolist() == expected
        accepted = [row % 2 == number % 2 for number, names in kept for row in range(len(names))]
        assert window.accepted.tolist() == accepted


def test_acceptance_is_noted_only_for_the_current_round():
    window = Window(10)
    window.add(1, ["a", "b"], numbered(1, 2))
    window.note_accepted(np.array([True, False]))
    window.add(2, ["c"], numbered(2, 1))
    assert window.accepted.tolist() == [True, False, False]
    window.note_accepted(np.array([True]))
    assert window.accepted.tolist() == [True, False, True]


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5), data=st.data())
def test_keeping_some_submissions_drops_the_others_from_every_field(sizes, data):
    window = Window(1000)
    for number, size in enumerate(sizes, start=1):
        window.add(number, [f"{number}-{row}" for row in range(size)], numbered(number, size))
    count = sum(sizes)
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=bool)
    before = list(zip(window.clients, window.rounds, window.sketches[:, 0, 0].tolist(), strict=True))
    window.keep(kept)
    after = list(zip(window.clients, window.rounds, window.sketches[:, 0, 0].tolist(), strict=True))
    assert after == [one for one, stays in zip(before, kept, strict=True) if stays]
    assert len(window.accepted) == len(window.edges) == len(after)


def test_clients_are_numbered_in_the_order_of_their_first_submission():
    window = Window(10)
    window.add(1, ["b", 7], numbered(1, 2))
    window.add(2, [7, "7", "b"], numbered(2, 3))
    assert window.client_numbers().tolist() == [0, 1, 1, 2, 0]


client_ids = st.lists(st.integers(0, 8), min_size=1, max_size=6, unique=True)


def add_round(window: Window, number: int, clients) -> None:
    """A round of random sketches, of which the first is accepted."""
    window.add(number, list(clients), drawn_sketches(number, len(clients), 2, 16))
    window.note_accepted(np.arange(len(clients)) == 0)


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(client_ids, min_size=1, max_size=8), limit=st.integers(1, 25))
def test_the_edges_of_two_rounds_are_those_of_a_new_graph_of_the_window_when_the_later_one_came(sizes, limit):
    window, rows = Window(limit), {}
    for number, clients in enumerate(sizes, start=1):
        add_round(window, number, clients)
        names = list(zip(window.rounds, window.clients, strict=True))
        _, people = np.unique(window.clients, return_inverse=True)
        anew, repetition = new_edges(window.sketches, people, window.rounds)
        np.testing.assert_allclose(window.repetition[-len(clients) :], repetition, atol=1e-6)
        for i, row in zip(names[-len(clients) :], anew, strict=True):
            rows |= {frozenset([i, j]): edge for j, edge in zip(names, row, strict=True)}
        expected = [[rows[frozenset([i, j])] for j in names] for i in names]
        np.testing.assert_allclose(window.edges, expected, atol=1e-6)


def test_names_of_clients_make_no_difference():
    windows = [Window(20), Window(20)]
    for number in range(1, 5):
        for window, prefix in zip(windows, "ab", strict=True):
            add_round(window, number, [f"{prefix}{(number * place) % 9}" for place in (1, 2, 4, 5)])
    assert np.array_equal(windows[0].edges, windows[1].edges)
    assert np.array_equal(*(window.client_numbers() for window in windows))


@pytest.mark.parametrize("rounds", [0, 3])
def test_a_restored_window_continues_bit_for_bit(rounds):
    window, restored = Window(10), Window(10)
    for number in range(rounds):
        add_round(window, number, [number, f"{number}", 9])
    restored.restore(window.state())
    for one in (window, restored):
        add_round(one, rounds, [1, "0", 9, 4])
    for name in ("clients", "rounds"):
        assert getattr(window, name) == getattr(restored, name)
    for name in ("sketches", "edges", "accepted", "renewed"):
        assert np.array_equal(getattr(window, name), getattr(restored, name))


def test_a_saved_window_whose_parts_differ_in_number_is_rejected():
    window = Window(10)
    add_round(window, 1, [1, 2, 3])
    state = window.state()
    state.values["rounds"].pop()
    with pytest.raises(ValueError, match="differ in number"):
        Window(10).restore(state)


def test_a_large_window_is_kept_in_single_precision(monkeypatch):
    exact, rounded = Window(20), Window(20)
    for number in range(4):
        monkeypatch.setattr("g2uardfl.defense.agreement.window._SMALL", 2048)
        add_round(exact, number, range(5))
        monkeypatch.setattr("g2uardfl.defense.agreement.window._SMALL", 12)
        add_round(rounded, number, range(5))
    assert (exact.edges.dtype, rounded.edges.dtype) == (np.float64, np.float32)
    np.testing.assert_allclose(rounded.edges, exact.edges, rtol=1e-6)
