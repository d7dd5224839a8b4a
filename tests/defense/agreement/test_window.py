"""The window of submissions: which rounds it keeps, and what it knows of each submission."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.defense.agreement.window import Window


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


def test_acceptance_is_noted_for_the_current_round_alone():
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
    assert len(window.accepted) == len(after)


def test_clients_are_numbered_in_the_order_of_their_first_submission():
    window = Window(10)
    window.add(1, ["b", 7], numbered(1, 2))
    window.add(2, [7, "7", "b"], numbered(2, 3))
    assert window.client_numbers().tolist() == [0, 1, 1, 2, 0]


@pytest.mark.parametrize("rounds", [0, 3])
def test_a_restored_window_equals_the_saved_one(rounds):
    window, restored = Window(10), Window(10)
    for number in range(rounds):
        window.add(number, [np.int64(number), f"{number}"], numbered(number, 2))
        window.note_accepted(np.array([True, False]))
    restored.restore(window.state())
    assert restored.clients == window.clients
    assert restored.rounds == window.rounds
    assert restored.accepted.tolist() == window.accepted.tolist()
    assert np.array_equal(restored.sketches, window.sketches)
