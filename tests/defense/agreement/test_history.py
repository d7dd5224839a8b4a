"""Robust z-scores against a slow second computation, planted outliers of known ratio, and the norm limit."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.defense.agreement.filtering import FilteringSettings
from g2uardfl.defense.agreement.history import ShapeHistory, smaller_group
from g2uardfl.defense.agreement.shapes import update_shapes

ALLOWED = FilteringSettings().outlier_z_score


def literal_z_scores(shapes, reference, narrowing=0.0) -> list[float]:
    """The larger z-score of norm and peak; the reference values are trimmed three times at their upper end."""
    columns = []
    for k in range(2):
        left, first = [row[k] for row in reference], None
        for _ in range(3):
            middle = statistics.median(left)
            deviation = 1.4826 * statistics.median([abs(value - middle) for value in left])
            deviation = min(deviation, statistics.pstdev(left))
            first = deviation if first is None else first
            left = [value for value in left if value <= middle + 2.5 * deviation]
        deviation = max(deviation, narrowing * first)
        columns.append([(row[k] - middle) / max(deviation, 0.25) / (1.5 if k else 1.0) for row in shapes])
    return [max(pair) for pair in zip(*columns, strict=True)]


def history_of(shapes) -> ShapeHistory:
    history = ShapeHistory()
    history.add(np.asarray(shapes, dtype=float).reshape(-1, 2))
    return history


def shapes_of(seed, count, log_norm=0.0, deviation=0.5):
    return np.random.default_rng(seed).normal([log_norm, -3.0], deviation, size=(count, 2))


def z_scores(history, shapes, allowed=math.inf, suspects=(), outsized=()):
    """With an infinite allowance no single outlier is reduced."""
    rows = np.arange(len(shapes))
    return history.z_scores(shapes, allowed, np.isin(rows, suspects), np.isin(rows, outsized))


def outliers(history, shapes, **groups) -> list[int]:
    return np.flatnonzero(z_scores(history, shapes, ALLOWED, **groups) > ALLOWED).tolist()


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 12), known=st.integers(0, 19))
def test_a_round_is_compared_with_itself_too_until_20_updates_have_been_accepted(seed, count, known):
    past, shapes = shapes_of(1, known), shapes_of(seed, count, deviation=0.1)
    together = [*past.tolist(), *shapes.tolist()]
    assert z_scores(history_of(past), shapes).tolist() == pytest.approx(literal_z_scores(shapes, together))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(3, 12), known=st.integers(20, 60))
def test_later_a_round_is_compared_with_accepted_updates_alone(seed, count, known):
    past = shapes_of(1, known)
    shapes = shapes_of(seed, count, deviation=0.1)
    shapes[0, 0] = 20.0
    assert z_scores(history_of(past), shapes).tolist() == pytest.approx(literal_z_scores(shapes, past, narrowing=0.9))


@pytest.mark.parametrize(("ratio", "found"), [(1.0, False), (2.5, False), (8.0, True), (50.0, True)])
@pytest.mark.parametrize("attackers", [1, 2, 4])
def test_updates_eight_times_as_large_are_outliers_and_two_and_a_half_times_are_not(ratio, found, attackers):
    """Norms of honest updates vary by 30 % (standard deviation of logarithms)."""
    flagged, wrong, seeds = 0, 0, 40
    for seed in range(seeds):
        shapes = shapes_of(1000 + seed, 10, deviation=0.3)
        shapes[:attackers, 0] = math.log(ratio)
        rows = outliers(history_of(shapes_of(seed, 100, deviation=0.3)), shapes)
        flagged += sum(row < attackers for row in rows)
        wrong += sum(row >= attackers for row in rows)
    assert flagged == (seeds * attackers if found else 0)
    assert wrong <= 0.01 * seeds * 10


@pytest.mark.parametrize(("ratio", "found"), [(1.0, False), (20.0, True)])
def test_peaked_updates_are_outliers(ratio, found):
    shapes = shapes_of(1, 10, deviation=0.3)
    shapes[[2, 6], 1] = -3.0 + math.log(ratio)
    assert outliers(history_of(shapes_of(0, 100, deviation=0.3)), shapes) == ([2, 6] if found else [])


def test_honest_updates_are_rarely_outliers():
    wrong = [
        len(outliers(history_of(shapes_of(seed, 100, deviation=0.5)), shapes_of(5000 + seed, 10, deviation=0.5)))
        for seed in range(200)
    ]
    assert sum(wrong) <= 0.001 * 200 * 10


@given(seed=st.integers(0, 2**32 - 1), known=st.integers(0, 40), shift=st.floats(-5, 5))
@settings(max_examples=40, deadline=None)
def test_z_scores_do_not_depend_on_the_scale_of_all_updates(seed, known, shift):
    past, shapes = shapes_of(1, known), shapes_of(seed, 8)
    expected = z_scores(history_of(past), shapes)
    past[:, 0] += shift
    shapes[:, 0] += shift
    np.testing.assert_allclose(z_scores(history_of(past), shapes), expected, atol=1e-9)


def test_shapes_that_hardly_vary_are_compared_with_a_smallest_deviation():
    history = history_of([[1.0, -3.0]] * 30)
    found = z_scores(history, np.array([[1.0, -3.0], [1.2, -3.0], [1.4, -3.0], [1.0, -2.6], [-0.2, -9.0]]))
    assert found[0] == 0
    assert found[2] == pytest.approx(2 * found[1])
    assert 0 < found[3] < found[2]
    assert found[4] < 0
    assert (found < ALLOWED).all()


def test_a_single_outlier_of_a_round_counts_less_than_several():
    past, shapes = shapes_of(0, 100), shapes_of(1, 10)
    shapes[3, 0] = 20.0
    plain, single = z_scores(history_of(past), shapes), z_scores(history_of(past), shapes, ALLOWED)
    assert ALLOWED < single[3] < plain[3]
    assert np.array_equal(np.delete(single, 3), np.delete(plain, 3))
    shapes[5, 0] = 20.0
    assert np.array_equal(z_scores(history_of(past), shapes, ALLOWED), z_scores(history_of(past), shapes))


def test_the_larger_kind_of_honest_updates_stays_usual():
    past = np.concatenate([shapes_of(0, 60, deviation=0.2), shapes_of(1, 40, log_norm=1.2, deviation=0.2)])
    shapes = np.concatenate([shapes_of(2, 6, deviation=0.2), shapes_of(3, 4, log_norm=1.3, deviation=0.1)])
    assert outliers(history_of(past), shapes) == []


def test_many_attackers_in_the_first_round_do_not_change_what_is_usual():
    shapes = shapes_of(2, 10, log_norm=-7.0, deviation=0.9)
    shapes[:, 1] = -2.0
    shapes[[2, 5, 8], 0] = 0.0
    assert outliers(ShapeHistory(), shapes) == [2, 5, 8]


def test_suspects_who_are_most_of_a_round_do_not_make_large_updates_usual():
    shapes = shapes_of(1, 10, deviation=0.3)
    shapes[:6, 0] += 3.0
    assert outliers(history_of(shapes_of(0, 100, deviation=0.3)), shapes, suspects=range(3)) == list(range(6))


def test_honest_clients_are_accepted_again_after_attackers_with_small_updates_set_what_is_usual():
    history = history_of(shapes_of(0, 100, log_norm=-1.0, deviation=0.1))
    shapes = shapes_of(1, 10, log_norm=1.0, deviation=0.3)
    shapes[:4, 0] = -1.0
    assert outliers(history, shapes, suspects=range(4)) == []


@pytest.mark.parametrize(("known", "attackers"), [(0, 7), (7, 8), (100, 8)])
def test_attackers_under_noise_are_outliers_even_if_they_are_most_of_a_round(known, attackers):
    shapes = shapes_of(1, 10, log_norm=0.5, deviation=0.3)
    shapes[:attackers] = [3.6, -5.4]
    history = history_of(shapes_of(0, known, log_norm=0.5, deviation=0.3))
    assert outliers(history, shapes) == list(range(attackers))


def test_a_whole_round_of_larger_updates_is_compared_with_itself():
    shapes = shapes_of(1, 10, log_norm=40.0)
    found = z_scores(history_of(shapes_of(0, 100)), shapes)
    assert found.tolist() == pytest.approx(literal_z_scores(shapes, shapes))


def test_an_outlier_in_a_round_of_larger_updates_is_still_found():
    """The learning rate was tripled, and one client attacks with an update 100 times as large as those of others."""
    shapes = shapes_of(1, 10, log_norm=math.log(3), deviation=0.05)
    shapes[4, 0] += math.log(100)
    assert outliers(history_of(shapes_of(0, 100, deviation=0.05)), shapes) == [4]


def test_smaller_updates_are_no_outliers():
    history = history_of(shapes_of(0, 100, deviation=0.1))
    assert outliers(history, shapes_of(1, 10, log_norm=-5.0, deviation=0.1)) == []


def test_outsized_updates_are_outliers_however_much_accepted_ones_vary():
    shapes = shapes_of(1, 10, deviation=0.2)
    shapes[:7] = [3.6, -5.0]
    history = history_of([[norm, -3.0] for norm in np.linspace(-4.0, 2.0, 30)])
    assert outliers(history, shapes) == []
    assert outliers(history, shapes, suspects=range(7), outsized=range(7)) == list(range(7))


def test_idle_clients_do_not_make_the_others_large():
    updates = torch.zeros(10, 20)
    updates[:3] = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    history, shapes = ShapeHistory(), update_shapes(updates)
    for _ in range(12):
        assert outliers(history, shapes) == []
        history.add(shapes)
    assert history.usual_norm == pytest.approx(float(np.median(np.exp(shapes[:3, 0]))))


def test_a_round_of_idle_clients_exceeds_nothing():
    assert not z_scores(ShapeHistory(), update_shapes(torch.zeros(4, 5))).any()


def test_the_oldest_accepted_updates_are_forgotten_first():
    history = history_of([[float(i), 0.0] for i in range(150)])
    history.add(np.array([[float(i), 0.0] for i in range(150, 1000)]))
    numbers = [norm for norm, _ in history.seen]
    assert numbers == [float(i) for i in range(1000 - len(numbers), 1000)]
    assert 100 <= len(numbers) <= 500


@settings(max_examples=100, deadline=None)
@given(
    lower=st.lists(st.floats(-2, 0), min_size=1, max_size=8),
    upper=st.lists(st.floats(0, 2), min_size=0, max_size=8),
    apart=st.floats(0, 5),
    least=st.integers(1, 4),
)
def test_norms_form_two_groups_if_the_gap_is_wider_than_either_and_at_least_fourfold(lower, upper, apart, least):
    norms = np.array([*lower, *(norm + apart for norm in upper)])
    expected = [True] * len(norms)
    for border in sorted(norms):
        small, large = norms[norms <= border], norms[norms > border]
        if len(small) < least or not len(large):
            continue
        nearest = min(abs(a - b) for a in small for b in large)
        furthest = max(abs(a - b) for group in (small, large) for a in group for b in group)
        if nearest > furthest and nearest > math.log(4):
            expected = [norm <= border for norm in norms]
    assert smaller_group(norms, least).tolist() == expected


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), known=st.integers(50, 99), count=st.integers(1, 9), larger=st.floats(-2, 3))
def test_the_norm_limit_is_the_usual_norm_or_the_lower_quartile_up_to_twice_the_usual(seed, known, count, larger):
    past = shapes_of(seed, known)
    history = history_of(past)
    norms = np.exp(shapes_of(seed + 1, count, log_norm=larger)[:, 0])
    usual = math.exp(statistics.median(past[:, 0].tolist()))
    assert history.usual_norm == pytest.approx(usual)
    assert history.norm_limit(norms) == pytest.approx(sorted([usual, np.percentile(norms, 25), 2 * usual])[1])
    assert not history.takes_small_steps


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), known=st.integers(0, 49), count=st.integers(1, 9))
def test_small_steps_are_shorter_than_the_lower_quartile_of_the_round_and_grow_with_it(seed, known, count):
    history = history_of(shapes_of(seed, known))
    norms = np.exp(shapes_of(seed + 1, count)[:, 0])
    limit = history.norm_limit(norms)
    assert history.takes_small_steps
    assert 0 < limit < 0.5 * np.percentile(norms, 25)
    assert history.norm_limit(2 * norms) == pytest.approx(2 * limit)
    # What most clients of the round send does not matter.
    norms[norms > np.percentile(norms, 25)] *= 100
    if count >= 5 and (count - 1) % 4 == 0:
        assert history.norm_limit(norms) == pytest.approx(limit)


def test_before_anything_is_accepted_there_is_no_usual_norm():
    assert ShapeHistory().usual_norm is None


@pytest.mark.parametrize(
    ("deviation", "count", "expected"), [(0.4, 200, False), (0.7, 200, False), (1.2, 200, True), (1.2, 19, False)]
)
def test_clients_are_heterogeneous_where_the_norms_of_many_accepted_updates_differ_much(deviation, count, expected):
    for seed in range(10):
        assert history_of(shapes_of(seed, count, deviation=deviation)).heterogeneous == expected


def test_a_quarter_of_the_clients_cannot_make_the_others_look_heterogeneous():
    past = shapes_of(0, 200, deviation=0.4)
    past[:50, 0] += np.linspace(0, 20, 50)
    assert not history_of(past).heterogeneous
