"""Shapes of updates (log norm and log peak-to-norm ratio), and which of them are usual."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.core.state_files import read_state, write_state
from g2uardfl.defense.agreement.shapes import UsualShapes, is_nonzero, update_shapes, weighted_median

ALLOWED = 4.0


def test_a_shape_is_the_log_norm_and_the_log_ratio_of_peak_to_norm():
    rows = [[3.0, -4.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, -7.0]]
    expected = []
    for row in rows:
        norm = math.sqrt(sum(x * x for x in row))
        expected.append([math.log(norm), math.log(max(abs(x) for x in row) / norm)])
    np.testing.assert_allclose(update_shapes(torch.tensor(rows, dtype=torch.float64)), expected, atol=1e-12)


def test_shapes_in_single_precision_are_those_in_double():
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 1000)).astype(np.float32))
    np.testing.assert_allclose(update_shapes(rows), update_shapes(rows.double()), atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(exponent=st.integers(-30, 15))
def test_the_scale_of_an_update_adds_to_its_log_norm_and_leaves_its_peak(exponent):
    row = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 1000)).astype(np.float32))
    norm, peak = update_shapes(row)[0]
    scaled_norm, scaled_peak = update_shapes(row * 10.0**exponent)[0]
    assert scaled_peak == pytest.approx(peak, abs=1e-3)
    assert scaled_norm == pytest.approx(norm + exponent * math.log(10), abs=1e-3)


def test_a_zero_update_has_a_finite_shape_that_exceeds_nothing():
    updates = torch.from_numpy(np.random.default_rng(0).normal(size=(10, 1000)))
    updates[3] = 0
    shapes = update_shapes(updates)
    assert np.isfinite(shapes).all()
    assert np.flatnonzero(~is_nonzero(shapes)).tolist() == [3]
    usual = UsualShapes()
    usual.add(shapes, np.ones(10))
    assert usual.z_scores(shapes, np.ones(10), ALLOWED)[3] == 0


def test_a_tiny_update_is_not_zero():
    assert is_nonzero(update_shapes(torch.full((1, 4), 1e-38))).all()


# What is usual.


def shapes_of(*log_norms: float, peak: float = -3.0) -> np.ndarray:
    return np.array([[log_norm, peak] for log_norm in log_norms])


def usual_after(*rounds: tuple[np.ndarray, np.ndarray]) -> UsualShapes:
    usual = UsualShapes()
    for shapes, weights in rounds:
        usual.add(shapes, weights)
    return usual


def slow_median(values, weights) -> float:
    """The smallest of the values with at least half of the weight at or below it."""
    return min(
        value
        for value in values
        if 2 * math.fsum(w for v, w in zip(values, weights, strict=True) if v <= value) >= math.fsum(weights)
    )


def slow_moments(values, weights) -> tuple[float, float]:
    centre = slow_median(values, weights)
    return centre, max(1.4826 * slow_median([abs(value - centre) for value in values], weights), 0.25)


# Multiples of 1/8 add up without rounding errors.
clients = st.lists(
    st.tuples(st.floats(-10, 10), st.floats(-10, 0), st.integers(1, 8).map(lambda eighths: eighths / 8)),
    min_size=1,
    max_size=12,
)


@given(clients)
def test_the_weighted_median_has_half_of_the_weight_at_or_below_it(drawn):
    values, _, weights = zip(*drawn, strict=True)
    assert weighted_median(np.array(values), np.array(weights)) == slow_median(values, weights)


@given(st.lists(clients, min_size=1, max_size=4))
def test_centre_and_deviation_are_the_weighted_median_and_mad_of_all_clients(rounds):
    usual = usual_after(*((np.array(one)[:, :2], np.array(one)[:, 2]) for one in rounds))
    rows = [client for one in rounds for client in one]
    for column in range(2):
        centre, deviation = slow_moments([row[column] for row in rows], [weight for *_, weight in rows])
        assert usual.centre[column] == centre
        assert usual.deviation[column] == pytest.approx(deviation)


def test_the_usual_shape_is_that_of_the_last_five_rounds():
    rounds = [(shapes_of(*[float(number)] * 10), np.ones(10)) for number in range(7)]
    assert usual_after(*rounds).centre[0] == 4.0


@given(clients, st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(drawn, random):
    shuffled = random.sample(drawn, len(drawn))
    first, second = (usual_after((np.array(one)[:, :2], np.array(one)[:, 2])) for one in (drawn, shuffled))
    assert first.centre.tolist() == second.centre.tolist()
    assert first.deviation.tolist() == second.deviation.tolist()


@given(clients, st.floats(-5, 5))
def test_a_factor_of_all_updates_changes_no_z_score(drawn, log_factor):
    rows = np.array(drawn)
    moved = rows[:, :2] + [log_factor, 0.0]
    first, second = (
        usual_after((shapes, rows[:, 2])).z_scores(shapes, rows[:, 2], 1e9) for shapes in (rows[:, :2], moved)
    )
    np.testing.assert_allclose(first, second, atol=1e-9)


def test_clients_without_weight_do_not_determine_what_is_usual():
    shapes, weights = shapes_of(*[0.0] * 4, *[9.0] * 6), np.array([1.0] * 4 + [0.0] * 6)
    assert usual_after((shapes, weights)).usual_norm == pytest.approx(1.0)


def test_a_minority_that_was_refused_does_not_move_the_usual_norm_beyond_those_of_the_others():
    """Whether an update is accepted makes no difference; what four of ten send cannot be the median."""
    for size in (-20.0, 20.0):
        shapes = shapes_of(*np.linspace(-0.5, 0.5, 6), *[size] * 4)
        assert -0.5 <= usual_after((shapes, np.ones(10))).centre[0] <= 0.5


def test_z_scores_of_norm_and_peak_worked_by_hand():
    # The medians are 0 and -3, both with the smallest deviation, 0.25; that of peaks counts 1.5 times.
    shapes = np.array([[0.0, -3.0]] * 7 + [[2.0, -3.0], [0.0, -1.5], [-9.0, -9.0]])
    scores = usual_after((shapes, np.ones(10))).z_scores(shapes, np.ones(10), ALLOWED)
    assert scores[:9].tolist() == pytest.approx([0] * 7 + [2 / 0.25, 1.5 / 0.25 / 1.5])
    assert scores[9] < 0


@pytest.mark.parametrize(("large", "convicted"), [(4, True), (5, True), (6, False), (9, False)])
def test_no_round_convicts_most_of_its_clients(large, convicted):
    """Beside earlier rounds of small updates."""
    usual = usual_after(*[(shapes_of(*[0.0] * 10), np.ones(10))] * 4)
    now = shapes_of(*[0.0] * (10 - large), *[3.0] * large)
    usual.add(now, np.ones(10))
    scores = usual.z_scores(now, np.ones(10), ALLOWED)
    assert np.flatnonzero(scores > ALLOWED).tolist() == (list(range(10 - large, 10)) if convicted else [])


def test_clients_without_weight_are_no_part_of_the_majority_that_is_never_convicted():
    usual = usual_after(*[(shapes_of(*[0.0] * 10), np.ones(10))] * 4)
    now, weights = shapes_of(*[0.0] * 3, *[3.0] * 7), np.array([1.0] * 3 + [0.0] * 7)
    usual.add(now, weights)
    assert (usual.z_scores(now, weights, ALLOWED) > ALLOWED).tolist() == [False] * 3 + [True] * 7


def test_tiny_first_updates_of_a_minority_do_not_make_honest_ones_outliers():
    """Before a usual norm was learnt of whoever was accepted first: then four tiny updates convicted all others."""
    shapes = shapes_of(*np.random.default_rng(0).normal(0.0, 0.3, size=6), *[-7.0] * 4)
    scores = usual_after((shapes, np.ones(10))).z_scores(shapes, np.ones(10), ALLOWED)
    assert scores.max() <= ALLOWED


def test_heterogeneity_is_the_deviation_of_log_norms_beside_that_of_clients_with_the_same_data():
    for deviation, expected in ((0.0, 1.0), (0.4, 1.0), (0.6, 1.5), (0.8, 2.0), (2.0, 2.0)):
        # The median of the distances from the median 0 is `deviation` / 1.4826.
        shapes = shapes_of(*np.linspace(-2, 2, 21) * deviation / 1.4826)
        assert usual_after((shapes, np.ones(21))).heterogeneity == pytest.approx(expected)


def test_the_norm_limit_is_the_median_norm_and_twice_as_much_while_clients_learn_the_same():
    usual = usual_after((shapes_of(*np.log([1.0, 2.0, 3.0, 4.0, 5.0])), np.ones(5)))
    assert usual.usual_norm == pytest.approx(3.0)
    for learning in (0.0, 0.25, 1.0):
        assert usual.norm_limit(learning) == pytest.approx(3.0 * (1 + learning))


def test_zero_updates_are_not_remembered():
    shapes = update_shapes(torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]]))
    usual = usual_after((shapes, np.ones(3)))
    assert usual.usual_norm == pytest.approx(5.0)
    assert usual_after((shapes[[0, 2]], np.ones(2))).usual_norm == 0
    assert UsualShapes().usual_norm == 0


def test_saved_shapes_continue_bit_for_bit(tmp_path):
    rng = np.random.default_rng(0)
    usual = usual_after(*((rng.normal(size=(size, 2)), rng.random(size)) for size in (3, 1, 5)))
    usual.add(shapes_of(-800.0), np.ones(1))
    write_state(tmp_path / "shapes", "shapes", usual.state())
    restored = UsualShapes()
    restored.restore(read_state(tmp_path / "shapes", "shapes"))
    now = rng.normal(size=(4, 2)), np.ones(4)
    for one in (usual, restored):
        one.add(*now)
    assert [one.tolist() for one in usual.rounds] == [one.tolist() for one in restored.rounds]
    assert usual.z_scores(*now, ALLOWED).tolist() == restored.z_scores(*now, ALLOWED).tolist()
