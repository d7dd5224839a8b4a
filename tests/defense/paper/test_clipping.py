"""Norm clipping against the plain mean of medians and whole clipped models."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from g2uardfl.core.clipping import clip_factors
from g2uardfl.defense.paper.clipping import average_median_norm
from helpers import reference

norms_of_a_round = st.lists(st.floats(0, 1e6), min_size=1, max_size=9)


@given(st.lists(norms_of_a_round, min_size=1, max_size=12))
def test_the_running_norm_is_the_mean_of_all_rounds_medians(rounds):
    running = 0.0
    for number, norms in enumerate(rounds, start=1):
        running = average_median_norm(running, np.array(norms), number)
    expected = reference.average_median_norm([statistics.median(norms) for norms in rounds])
    assert running == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_the_first_median_replaces_the_initial_value():
    assert average_median_norm(123.0, np.array([1.0, 2.0, 30.0]), 1) == 2.0


def test_the_median_of_an_even_number_of_clients_is_the_mean_of_the_middle_two():
    assert average_median_norm(0.0, np.array([1.0, 2.0, 4.0, 50.0]), 1) == 3.0


def test_one_huge_update_does_not_move_the_limit():
    limits = [average_median_norm(0.0, np.array([1.0, 1.1, 0.9, last]), 1) for last in (1.2, 1e9)]
    assert limits[0] == limits[1]


@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(1, 8), limit=st.floats(0, 20))
def test_clipped_updates_are_those_of_whole_clipped_models(seed, clients, limit):
    rng = np.random.default_rng(seed)
    g, updates = rng.normal(size=6), rng.normal(size=(clients, 6)) * rng.uniform(0, 9, size=(clients, 1))
    factors = clip_factors(np.array([reference.norm(u) for u in updates]), limit)
    for update, factor in zip(updates, factors, strict=True):
        np.testing.assert_allclose(g + factor * update, reference.clipped(g, g + update, limit), atol=1e-9)


@given(norms_of_a_round, st.floats(0, 1e6))
def test_no_norm_exceeds_the_limit_and_none_grows(norms, limit):
    factors = clip_factors(np.array(norms), limit)
    assert (factors >= 0).all()
    assert (factors <= 1).all()
    assert (factors * norms <= limit * (1 + 1e-12) + 1e-300).all()


def test_an_update_at_the_limit_is_not_clipped():
    assert clip_factors(np.array([2.0, 2.0000001]), 2.0)[0] == 1.0


def test_a_limit_of_zero_removes_all_updates_but_zero_ones():
    assert clip_factors(np.array([0.0, 3.0]), 0.0).tolist() == [1.0, 0.0]
