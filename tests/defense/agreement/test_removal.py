"""How much is removed from the model: norms and cosines worked by hand, and limits that always hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from g2uardfl.defense.agreement.removal import (
    bounded_removal,
    cosine_of,
    initial_poison,
    mean_pairwise_cosine,
    norm_of,
    opposed_removal,
    opposition,
)

USUAL = 2.0
"""The norm of a usual update in the examples worked by hand."""


def removal(poison=1.0, accepted=100.0, usual=USUAL, left=100.0, share=0.5, bound=2.0, max_pull=8.0):
    return bounded_removal(poison, accepted, usual, left, share=share, bound=bound, max_pull=max_pull)


def test_the_removal_is_a_share_of_what_the_model_has_learnt_of_the_poison():
    # A pull of half a usual update of at most 8: fifteen sixteenths are in the model.
    assert removal() == pytest.approx(0.5 * (1 - 0.5 / 8) * 1.0)
    assert removal(share=0.1) == pytest.approx(0.1 * (1 - 0.5 / 8) * 1.0)


def test_the_poison_is_clipped_to_a_usual_update():
    assert removal(poison=6.0) == pytest.approx(0.5 * (1 - 3 / 8) * USUAL)


def test_the_removal_is_bounded_by_the_accepted_step():
    assert removal(accepted=0.05) == pytest.approx(2 * 0.05)
    assert removal(accepted=0.05, bound=1.0) == pytest.approx(0.05)
    assert removal(accepted=0.0) == 0


def test_no_more_is_removed_than_is_left():
    assert removal(poison=2.0, left=0.07) == pytest.approx(0.07)
    assert removal(poison=2.0, left=0.0) == 0
    assert removal(left=-5.0) == 0


@pytest.mark.parametrize("poison", [0.01, 0.02, 1.0, 1.5, 1.98])
def test_a_few_small_updates_of_attackers_are_removed_even_if_nothing_is_left(poison):
    """Three times the smaller of the poison and what it lacks of a usual update; earlier removals count."""
    allowed = 3 * min(poison, USUAL - poison)
    assert removal(poison, left=0.0, share=1.0, max_pull=1e9) == pytest.approx(min(allowed, poison))
    assert removal(poison, left=-allowed + 0.001, share=1.0, max_pull=1e9) == pytest.approx(0.001)
    assert removal(poison, left=-allowed) == pytest.approx(0)


@pytest.mark.parametrize("poison", [16.0, 16.1, 1e30])
def test_nothing_is_removed_where_attackers_still_pull_far(poison):
    assert removal(poison=poison) == 0


@pytest.mark.parametrize("usual", [0.0, math.nan])
def test_nothing_is_removed_before_a_usual_norm_is_known(usual):
    assert removal(usual=usual) == 0
    assert initial_poison(1.0, usual, 0.0, allowance=20.0, poisoned_pull=3.0, poisoned_similarity=0.6) == 0


@given(
    poison=st.floats(0, 1e6),
    accepted=st.floats(0, 1e6),
    usual=st.floats(0, 1e6),
    left=st.floats(-1e6, 1e6),
    share=st.floats(0, 1),
    bound=st.floats(0, 100),
    far=st.floats(0.1, 100),
)
def test_the_removal_keeps_all_its_limits(poison, accepted, usual, left, share, bound, far):
    found = removal(poison, accepted, usual, left, share, bound, far)
    assert found >= 0
    assert found <= share * min(poison, usual)
    assert found <= bound * accepted
    assert found <= max(0.0, left + 3 * max(0.0, min(poison, usual - poison))) * (1 + 1e-9)
    assert found == 0 or poison < far * usual


@given(scale=st.floats(1e-3, 1e3), poison=st.floats(0.1, 10), accepted=st.floats(0.1, 10), left=st.floats(0.1, 10))
def test_the_removal_scales_with_the_updates(scale, poison, accepted, left):
    found = removal(poison, accepted, USUAL, left)
    assert removal(scale * poison, scale * accepted, scale * USUAL, scale * left) == pytest.approx(scale * found)


def estimate(poison=1.0, usual=USUAL, similarity=0.0, allowance=20.0):
    return initial_poison(poison, usual, similarity, allowance=allowance, poisoned_pull=3.0, poisoned_similarity=0.6)


def test_the_initial_poison_worked_by_hand():
    # Half a usual update of at most 3, a cosine of 0.15 of at most 0.6: five sixths of three quarters of the allowance.
    assert estimate(similarity=0.15) == pytest.approx(20 * USUAL * (5 / 6) * 0.75)
    assert estimate(similarity=0.15, allowance=1.0) == pytest.approx(USUAL * (5 / 6) * 0.75)
    assert estimate(poison=0.0) == pytest.approx(20 * USUAL)


@pytest.mark.parametrize(
    "attackers", [{"similarity": 0.6}, {"similarity": 1.0}, {"poison": 6.0}, {"poison": 1e30}], ids=str
)
def test_the_model_was_clean_where_attackers_pull_far_or_are_similar(attackers):
    assert estimate(**attackers) == 0


@pytest.mark.parametrize("poison", [1e-3, 1.0, 30.0])
def test_an_opposed_removal_is_a_share_of_small_poisons_and_limited_for_large_ones(poison):
    assert opposed_removal(poison, USUAL) == pytest.approx(poison / 10)
    assert opposed_removal(poison, poison / 1e6) == pytest.approx(poison / 1e5)
    assert opposed_removal(0.0, USUAL) == 0


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(2, 6), common=st.floats(0, 3))
def test_the_mean_pairwise_cosine_is_that_of_the_parts_beyond_the_accepted_step(seed, count, common):
    rng = np.random.default_rng(seed)
    step = rng.normal(size=500) * rng.uniform(0, 2)
    beyond = rng.normal(size=(count, 500)) + common * rng.normal(size=500)
    beyond /= np.linalg.norm(beyond, axis=1, keepdims=True)
    pairs = [beyond[i] @ beyond[j] for i in range(count) for j in range(i)]
    updates = beyond + step
    poison = torch.from_numpy(updates.mean(axis=0) - step)
    found = mean_pairwise_cosine(poison, torch.from_numpy(step), np.linalg.norm(updates, axis=1))
    assert found == pytest.approx(max(0.0, np.mean(pairs)), abs=1e-9)


def test_the_mean_pairwise_cosine_of_one_attacker_or_of_zero_updates_is_one():
    assert mean_pairwise_cosine(torch.ones(3), torch.zeros(3), np.array([math.sqrt(3)])) == 1
    assert mean_pairwise_cosine(torch.zeros(3), torch.zeros(3), np.zeros(2)) == 1


@given(seed=st.integers(0, 2**32 - 1), shared=st.floats(-2, 2))
def test_opposition_is_the_negative_cosine_of_the_accepted_and_the_malicious_step(seed, shared):
    rng = np.random.default_rng(seed)
    malicious, noise = rng.normal(size=(2, 50))
    accepted = noise + shared * malicious
    cosine = sum(accepted * malicious) / math.sqrt(sum(accepted**2) * sum(malicious**2))
    found = opposition(torch.from_numpy(malicious - accepted), torch.from_numpy(accepted))
    assert found == pytest.approx(-cosine, abs=1e-9)


@pytest.mark.parametrize(("malicious", "accepted"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_a_zero_step_opposes_nothing(malicious, accepted):
    assert opposition(torch.full((3,), malicious - accepted), torch.full((3,), accepted)) == 0


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 20))
def test_norm_and_cosine_are_the_sums_of_products(seed, size):
    first, second = np.random.default_rng(seed).normal(size=(2, size))
    norms = [math.sqrt(sum(x * x for x in vector)) for vector in (first, second)]
    assert norm_of(torch.from_numpy(first)) == pytest.approx(norms[0])
    cosine = sum(x * y for x, y in zip(first, second, strict=True)) / norms[0] / norms[1]
    assert cosine_of(torch.from_numpy(first), torch.from_numpy(second)) == pytest.approx(cosine)
