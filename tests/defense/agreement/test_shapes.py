"""Shapes of updates: log norm and log peak-to-norm ratio, worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.defense.agreement.history import ShapeHistory
from g2uardfl.defense.agreement.shapes import is_nonzero, update_shapes


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
    nobody = np.zeros(10, dtype=bool)
    assert ShapeHistory().z_scores(shapes, 4.0, nobody, nobody)[3] <= 0


def test_a_tiny_update_is_not_zero():
    assert is_nonzero(update_shapes(torch.full((1, 4), 1e-38))).all()
