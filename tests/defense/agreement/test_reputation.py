"""Reputations: decayed counts of malicious and benign submissions."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from g2uardfl.defense.agreement.reputation import Reputation, benign_scores

suspicions = st.lists(st.floats(0, 1), min_size=1, max_size=30)


def counted(suspicions, forget_after: int = 1000) -> Reputation:
    """The reputation of client "a" after rounds with these suspicions."""
    reputation = Reputation()
    for number, suspicion in enumerate(suspicions, start=1):
        reputation.add(["a"], np.array([suspicion]), number, forget_after)
    return reputation


def score_after(*suspicions: float) -> float:
    return float(benign_scores(counted(suspicions).read(["a"]))[0])


@given(suspicions)
def test_each_submission_counts_nine_tenths_of_the_next_one(suspicions):
    weights = [0.9 ** (len(suspicions) - 1 - place) for place in range(len(suspicions))]
    malicious = sum(weight * share for weight, share in zip(weights, suspicions, strict=True))
    assert counted(suspicions).read(["a"])[0] == pytest.approx([malicious, sum(weights) - malicious])


@given(suspicions)
def test_the_score_is_the_balance_of_the_counts_plus_two_unknown_submissions(suspicions):
    [[malicious, benign]] = counted(suspicions).read(["a"]).tolist()
    score = score_after(*suspicions)
    assert score == pytest.approx((benign - malicious) / (benign + malicious + 2))
    assert -1 < score < 1


@given(st.integers(1, 12))
def test_a_score_falls_with_each_conviction_and_recovers_with_each_clean_round(convictions):
    bad, clean = [1.0] * convictions, range(40)
    falling = [score_after(*bad[:count]) for count in range(convictions + 1)]
    assert falling == sorted(falling, reverse=True)
    rising = [score_after(*bad, *[0.0] * count) for count in clean]
    assert rising == sorted(rising)
    assert rising[0] < 0 < 0.7 < rising[-1]


def test_the_more_convictions_the_longer_the_recovery():
    needed = [
        next(count for count in range(40) if score_after(*[1.0] * convictions, *[0.0] * count) >= 0)
        for convictions in range(1, 8)
    ]
    assert needed == sorted(needed)
    assert needed[0] < needed[-1]


def test_new_clients_have_no_counts_and_reading_adds_none():
    reputation = Reputation()
    reputation.add(["a", 7], np.array([1.0, 0.25]), 1, 1000)
    assert reputation.read([7, "7", "a", "new"]).tolist() == [[0.25, 0.75], [0, 0], [1, 0], [0, 0]]
    assert set(reputation.counts) == {"a", 7}
    assert benign_scores(reputation.read(["new"])).tolist() == [0.0]
    assert reputation.read([]).shape == (0, 2)


@given(st.lists(st.sets(st.integers(0, 6), min_size=1), max_size=12), st.integers(1, 5))
def test_clients_that_were_absent_for_longer_than_allowed_are_forgotten(rounds, forget_after):
    reputation, restored = Reputation(), Reputation()
    for number, clients in enumerate(rounds, start=1):
        for one in (reputation, restored):
            one.add(sorted(clients), np.full(len(clients), number / 100), number, forget_after)
        last = {client: at for at, some in enumerate(rounds[:number], 1) for client in some}
        assert reputation.last_rounds == {c: at for c, at in last.items() if at >= number - forget_after}
        assert reputation.counts.keys() == reputation.last_rounds.keys()
        # A saved reputation continues bit for bit.
        state = reputation.state()
        state.values.update(json.loads(json.dumps(state.values)))
        restored.restore(state)
        assert (restored.counts, restored.last_rounds) == (reputation.counts, reputation.last_rounds)
        assert list(restored.last_rounds) == list(reputation.last_rounds)


def test_a_forgotten_client_starts_with_a_neutral_reputation():
    reputation = counted([1.0] * 5, forget_after=3)
    reputation.add(["b"], np.zeros(1), 9, forget_after=3)
    assert reputation.read(["a"]).tolist() == [[0, 0]]
