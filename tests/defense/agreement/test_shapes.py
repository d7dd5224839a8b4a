"""Shapes of updates (log norm and log peak-to-norm ratio), and which of them are usual."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.core.state_files import read_state, write_state
from g2uardfl.defense.agreement.shapes import UsualShapes, is_nonzero, update_shapes

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
    assert UsualShapes().z_scores(shapes, np.ones(10, bool), ALLOWED)[3] == 0


def test_a_tiny_update_is_not_zero():
    assert is_nonzero(update_shapes(torch.full((1, 4), 1e-38))).all()


# What is usual.

NEVER = 1e9
"""A limit that no z-score exceeds."""


def shapes_of(*log_norms: float, peak: float = -3.0) -> np.ndarray:
    return np.array([[log_norm, peak] for log_norm in log_norms])


def z_scores(usual: UsualShapes, shapes, trusted=None, allowed: float = ALLOWED) -> list[float]:
    trusted = np.ones(len(shapes), bool) if trusted is None else np.array(trusted, bool)
    return usual.z_scores(shapes, trusted, allowed).tolist()


def usual_after(*rounds) -> UsualShapes:
    usual = UsualShapes()
    for shapes in rounds:
        z_scores(usual, shapes)
    return usual


def slow_z_scores(remembered, shapes) -> list[float]:
    """The larger z-score of norm and peak, by medians and median distances; peaks vary 1.5 times as much."""
    columns = []
    for column, scale in ((0, 1.0), (1, 1.5)):
        values = [row[column] for row in remembered]
        centre = statistics.median(values)
        deviation = max(0.25, 1.4826 * statistics.median(abs(value - centre) for value in values))
        columns.append([(row[column] - centre) / deviation / scale for row in shapes])
    return [max(pair) for pair in zip(*columns, strict=True)]


clients = st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 0), st.booleans()), min_size=1, max_size=12)


@given(st.lists(clients, min_size=1, max_size=8))
def test_z_scores_are_relative_to_the_trusted_clients_of_the_last_five_rounds(rounds):
    usual = UsualShapes()
    for number, drawn in enumerate(rounds, start=1):
        shapes, trusted = np.array(drawn)[:, :2], [one for *_, one in drawn]
        found = z_scores(usual, shapes, trusted, NEVER)
        remembered = [row[:2] for one in rounds[:number][-5:] for row in one if row[2]]
        assert found == pytest.approx(slow_z_scores(remembered, shapes) if remembered else [0] * len(drawn))
        norms = [row[0] for row in remembered]
        assert usual.usual_norm == pytest.approx(math.exp(statistics.median(norms)) if norms else 0.0)


@given(clients, st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(drawn, random):
    order = random.sample(range(len(drawn)), len(drawn))
    shapes = np.array(drawn)[:, :2]
    plain, shuffled = z_scores(UsualShapes(), shapes), z_scores(UsualShapes(), shapes[order])
    assert shuffled == [plain[place] for place in order]


@given(clients, st.floats(-5, 5))
def test_a_factor_of_all_updates_changes_no_z_score(drawn, log_factor):
    shapes = np.array(drawn)[:, :2]
    moved = shapes + np.array([log_factor, 0.0])
    np.testing.assert_allclose(*(z_scores(UsualShapes(), one, allowed=NEVER) for one in (shapes, moved)), atol=1e-9)


def test_z_scores_of_norm_and_peak_worked_by_hand():
    # The medians are 0 and -3, both with the smallest deviation, 0.25; that of peaks counts 1.5 times.
    shapes = np.array([[0.0, -3.0]] * 7 + [[2.0, -3.0], [0.0, -1.5], [-9.0, -9.0]])
    scores = z_scores(UsualShapes(), shapes)
    assert scores[:9] == pytest.approx([0] * 7 + [2 / 0.25, 1.5 / 0.25 / 1.5])
    assert scores[9] < 0


@pytest.mark.parametrize("size", [-20.0, 20.0])
def test_a_minority_does_not_move_the_usual_norm_beyond_those_of_the_others(size):
    usual = usual_after(shapes_of(*np.linspace(-0.5, 0.5, 6), *[size] * 4))
    assert abs(math.log(usual.usual_norm)) <= 0.5


def test_tiny_updates_of_a_minority_in_the_first_round_make_no_honest_one_an_outlier():
    shapes = shapes_of(*np.random.default_rng(0).normal(0.0, 0.3, size=6), *[-7.0] * 4)
    assert max(z_scores(UsualShapes(), shapes)) <= ALLOWED


@pytest.mark.parametrize(("large", "convicted"), [(4, True), (5, True), (6, False), (9, False)])
def test_no_round_flags_most_of_its_clients(large, convicted):
    """Relative to earlier rounds of small updates."""
    usual = usual_after(*[shapes_of(*[0.0] * 10)] * 4)
    scores = z_scores(usual, shapes_of(*[0.0] * (10 - large), *[3.0] * large))
    assert [score > ALLOWED for score in scores] == [False] * (10 - large) + [convicted] * large


def test_zero_updates_are_not_remembered():
    shapes = update_shapes(torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]]))
    assert usual_after(shapes).usual_norm == pytest.approx(5.0)
    assert usual_after(shapes[[0, 2]]).usual_norm == UsualShapes().usual_norm == 0


def test_saved_shapes_continue_bit_for_bit(tmp_path):
    rng = np.random.default_rng(0)
    usual = usual_after(*(rng.normal(size=(size, 2)) for size in (3, 1, 5)), shapes_of(-800.0))
    write_state(tmp_path / "shapes", "shapes", usual.state())
    restored = UsualShapes()
    restored.restore(read_state(tmp_path / "shapes", "shapes"))
    now = rng.normal(size=(4, 2))
    assert z_scores(usual, now) == z_scores(restored, now)
    assert [one.tolist() for one in usual.rounds] == [one.tolist() for one in restored.rounds]
