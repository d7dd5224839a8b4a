"""Reputations: who is flagged with which prior, and how scores move."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.defense.agreement.filtering import FilteringSettings
from g2uardfl.defense.agreement.reputation import Reputation, flagged, updated_scores

WEIGHT = FilteringSettings().reputation_weight
probabilities = st.floats(0, 1)


def posterior(suspicion: float, score: float, weight: float) -> float:
    """Bayes' rule: a reputation of s < 0 multiplies the odds by exp(-weight s)."""
    if suspicion in (0.0, 1.0):
        return suspicion
    odds = suspicion / (1 - suspicion) * math.exp(weight * max(0.0, -score))
    return odds / (1 + odds)


@settings(max_examples=100, deadline=None)
@given(suspicion=st.floats(0.001, 0.999), score=st.floats(-1, 1), weight=st.floats(0, 5))
def test_a_client_is_flagged_if_its_posterior_probability_exceeds_one_half(suspicion, score, weight):
    expected = posterior(suspicion, score, weight)
    if abs(expected - 0.5) > 1e-9:
        assert flagged(np.array([suspicion]), np.array([score]), weight)[0] == (expected > 0.5)


def test_a_good_reputation_excuses_nothing_and_a_bad_one_makes_a_doubt_sufficient():
    suspicion = np.array([0.6, 0.6, 0.4, 0.4, 0.5, 0.0])
    scores = np.array([1.0, -1.0, 1.0, -1.0, 0.0, -1.0])
    assert flagged(suspicion, scores, 3.0).tolist() == [True, True, False, True, False, False]


def test_the_worst_reputation_flags_nobody_by_itself():
    assert not flagged(np.zeros(1), np.array([-1.0]), WEIGHT).any()


@pytest.mark.parametrize("suspicion", [0.0, 1.0])
def test_certain_suspicions_are_finite_evidence(suspicion):
    assert flagged(np.array([suspicion]), np.zeros(1), WEIGHT).tolist() == [suspicion == 1.0]


@given(score=st.floats(-1, 1), suspicion=probabilities, fall=st.floats(0.01, 1), rise=st.floats(0.01, 1))
def test_scores_move_towards_their_aim_and_stay_between_minus_one_and_one(score, suspicion, fall, rise):
    aim = (1 - suspicion) * 1.0 + suspicion * -1.0
    after = float(updated_scores(np.array([score]), np.array([suspicion]), fall, rise)[0])
    assert min(score, aim) - 1e-12 <= after <= max(score, aim) + 1e-12
    if aim < score:
        assert after == pytest.approx((1 - fall) * score + fall * aim)


@given(fall=st.floats(0.05, 1), rise=st.floats(0.05, 1), convictions=st.integers(1, 8))
def test_the_more_convictions_the_longer_the_recovery(fall, rise, convictions):
    def rounds_until_recovered(count):
        score = np.zeros(1)
        for _ in range(count):
            score = updated_scores(score, np.ones(1), fall, rise)
        rounds = 0
        while score[0] < 0 and rounds < 1000:
            score = updated_scores(score, np.zeros(1), fall, rise)
            rounds += 1
        return rounds

    assert rounds_until_recovered(convictions) <= rounds_until_recovered(convictions + 1)


def test_scores_worked_by_hand():
    found = updated_scores(np.array([0.0, 0.0, 0.5, -0.8]), np.array([0.0, 1.0, 0.5, 0.25]), 0.3, 0.1)
    # -0.8 rises by 0.1 x (1 - 0.8) of its distance 1.3 from 0.5.
    assert found.tolist() == pytest.approx([0.1, -0.3, 0.35, -0.774])


def test_unknown_clients_have_score_zero_and_reading_adds_nobody():
    reputation = Reputation()
    reputation.write(["a", 7], np.array([0.5, -0.25]), 1, 1000)
    assert reputation.read([7, "7", "a", "new"]).tolist() == [-0.25, 0.0, 0.5, 0.0]
    assert set(reputation.scores) == {"a", 7}


def test_a_restored_reputation_equals_the_saved_one():
    reputation, restored = Reputation(), Reputation()
    reputation.write(["a", np.int64(7)], np.array([0.5, -0.25]), 1, 1000)
    restored.restore(reputation.state())
    assert restored.read(["a", 7]).tolist() == [0.5, -0.25]
