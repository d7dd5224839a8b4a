"""Median and trimmed mean against slow computations on whole weights, and against other implementations."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.aggregators.median import Median
from g2uardfl.aggregators.trimmed_mean import TrimmedMean, trimmed_clients
from helpers.rounds import byzfl, decisions, flower, rounds, send, updates_of, vector


def slow_trimmed_mean(points, trimmed):
    return [statistics.fmean(sorted(column)[trimmed : len(column) - trimmed]) for column in points.T.tolist()]


@settings(deadline=None)
@given(updates=rounds(most=40), seed=st.integers(0, 99))
def test_median_is_the_median_of_each_parameter(updates, seed):
    start = np.random.default_rng(seed).normal(size=updates.shape[1])
    expected = [statistics.median(column) for column in (start + updates).T.tolist()]
    np.testing.assert_allclose(vector(send(Median(), updates, start=start)), expected, rtol=1e-9, atol=1e-9)


@settings(deadline=None)
@given(updates=rounds(most=40), share=st.floats(0, 0.5))
def test_trimmed_mean_omits_both_ends_of_each_parameter(updates, share):
    trimmed = min(math.floor(share * len(updates) + 1e-9), (len(updates) - 1) // 2)
    result = send(TrimmedMean(trimmed_share=share), updates)
    np.testing.assert_allclose(vector(result), slow_trimmed_mean(updates, trimmed), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("clients", [9, 10, 33, 34])
def test_median_and_trimmed_mean_over_many_blocks_of_either_precision(dtype, clients):
    updates = updates_of("far apart", clients, 100_003, 1).astype(dtype)
    np.testing.assert_allclose(vector(send(Median(), updates)), np.median(updates.astype(float), axis=0), rtol=1e-6)
    ordered = np.sort(updates.astype(float), axis=0)
    expected = ordered[clients // 5 : clients - clients // 5].mean(axis=0)
    atol = 1e-5 * np.abs(updates).max() if dtype == np.float32 else 1e-9
    np.testing.assert_allclose(vector(send(TrimmedMean(), updates)), expected, rtol=1e-5, atol=atol)


def test_median_and_trimmed_mean_worked_by_hand():
    updates = [[1.0, -9.0], [2.0, 0.0], [4.0, 1.0], [900.0, 3.0]]
    assert vector(send(Median(), updates)).tolist() == [3.0, 0.5]
    assert vector(send(Median(), updates[:3])).tolist() == [2.0, 0.0]
    assert vector(send(TrimmedMean(trimmed_share=0.25), updates)).tolist() == [3.0, 0.5]
    assert vector(send(TrimmedMean(), [*updates, [5.0, 2.0]])).tolist() == [11 / 3, 1.0]


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two():
    assert vector(send(Median(), [[1.0], [2.0]])).tolist() == [1.5]


def test_a_huge_trimmed_value_does_not_change_the_result():
    """The sum of all values minus the extremes would lose the small numbers to rounding."""
    updates = np.array([[0.125], [0.25], [0.375], [0.5], [1e15]], dtype=np.float32)
    assert vector(send(TrimmedMean(), updates)).tolist() == [0.375]


def test_a_share_without_exact_binary_form_trims_the_full_count():
    assert int(0.29 * 100) == 28
    assert trimmed_clients(0.29, 100) == 29
    assert trimmed_clients(0.2, 10) == 2


@pytest.mark.parametrize("clients", range(1, 9))
def test_trimming_half_at_each_end_is_the_median(clients):
    updates = updates_of("random", clients, 4, clients)
    np.testing.assert_allclose(
        vector(send(TrimmedMean(trimmed_share=0.5), updates)), np.median(updates, axis=0), rtol=1e-12
    )


def test_the_note_says_when_nothing_can_be_trimmed():
    result = send(TrimmedMean(), [[1.0], [2.0], [9.0]])
    assert result.note == "Nothing was trimmed: a share of 0.2 of 3 clients is less than one."
    assert vector(result).tolist() == [4.0]
    assert send(TrimmedMean(), np.ones((5, 2))).note == ""


@pytest.mark.parametrize("rule", [Median, TrimmedMean])
def test_reported_samples_have_no_influence(rule):
    updates = updates_of("random", 7, 3, 0)
    plain, weighted = send(rule(), updates), send(rule(), updates, [10**9, 0, 1, 1, 1, None, -3])
    np.testing.assert_array_equal(vector(plain), vector(weighted))
    assert decisions(weighted) == "aaaaaaa"


@settings(deadline=None)
@given(updates=rounds(), shift=st.floats(-100, 100))
def test_a_shift_of_all_updates_shifts_the_step(updates, shift):
    for rule in (Median(), TrimmedMean()):
        np.testing.assert_allclose(
            vector(send(rule, updates + shift)), vector(send(rule, updates)) + shift, rtol=1e-9, atol=1e-9
        )


@settings(deadline=None)
@given(updates=rounds())
def test_results_are_between_the_smallest_and_the_largest_value_of_each_parameter(updates):
    for rule in (Median(), TrimmedMean()):
        result = vector(send(rule, updates))
        slack = 1e-9 * (1 + np.abs(updates).max(axis=0))
        assert (result >= updates.min(axis=0) - slack).all()
        assert (result <= updates.max(axis=0) + slack).all()


@pytest.mark.parametrize("rule", [Median, TrimmedMean])
def test_a_round_does_not_depend_on_earlier_rounds(rule):
    used = rule()
    for clients, first in ((10, 0), (3, 50), (1, 7), (6, 2)):
        model = {"w": np.zeros(4)}
        sent = {first + i: {"w": row} for i, row in enumerate(updates_of("random", clients, 4, clients))}
        np.testing.assert_array_equal(
            used.aggregate(model, sent).weights["w"], rule().aggregate(model, sent).weights["w"]
        )


@pytest.mark.parametrize("clients", [10, 11, 40])
def test_agreement_with_the_median_and_the_trimmed_mean_of_byzfl(clients):
    peer = byzfl()
    updates = updates_of("far apart", clients, 50, clients)
    np.testing.assert_allclose(vector(send(Median(), updates)), peer.Median()(updates), rtol=1e-12)
    np.testing.assert_allclose(vector(send(TrimmedMean(), updates)), peer.TrMean(clients // 5)(updates), rtol=1e-9)


@pytest.mark.parametrize("clients", [10, 11, 40])
def test_agreement_with_the_trimmed_mean_of_flower(clients):
    peer = flower("fedtrimmedavg")
    updates = updates_of("far apart", clients, 50, clients)
    np.testing.assert_allclose(vector(send(TrimmedMean(), updates)), peer.trim_mean(updates, 0.2), rtol=1e-9)
