"""Reputations of clients that stay away are forgotten, so that ids that never return cost nothing for ever."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from g2uardfl.defense.agreement.reputation import Reputation


def test_a_client_that_was_absent_for_longer_than_allowed_is_forgotten():
    reputation = Reputation()
    reputation.write(["a", "b"], np.array([-0.9, 0.5]), 1, forget_after=3)
    reputation.write(["b"], np.array([0.6]), 4, forget_after=3)
    assert reputation.scores == {"a": -0.9, "b": 0.6}
    reputation.write(["c"], np.array([0.1]), 5, forget_after=3)
    assert reputation.scores == {"b": 0.6, "c": 0.1}
    assert reputation.read(["a", "b"]).tolist() == [0.0, 0.6]


def test_with_new_ids_in_each_round_no_more_are_kept_than_took_part_lately():
    reputation = Reputation()
    for number in range(1, 200):
        reputation.write(list(range(10 * number, 10 * number + 10)), np.zeros(10), number, forget_after=7)
        assert len(reputation.scores) == len(reputation.last_rounds) <= 80


@given(st.lists(st.sets(st.integers(0, 6), min_size=1), max_size=12), st.integers(1, 5))
def test_the_scores_kept_are_those_of_a_search_through_all_rounds(rounds, forget_after):
    reputation, restored = Reputation(), Reputation()
    for number, clients in enumerate(rounds, start=1):
        written = sorted(clients), np.full(len(clients), number / 100), number, forget_after
        reputation.write(*written)
        restored.write(*written)
        last = {
            client: max(n for n, some in enumerate(rounds[:number], 1) if client in some)
            for client in range(7)
            if any(client in some for some in rounds[:number])
        }
        expected = {client: n / 100 for client, n in last.items() if n >= number - forget_after}
        assert reputation.scores == expected
        state = reputation.state()
        state.values.update(json.loads(json.dumps(state.values)))
        restored.restore(state)
        assert (restored.scores, restored.last_rounds) == (reputation.scores, reputation.last_rounds)
