"""Row quantiles, inner products, cosines and z-scores against NumPy and plain loops in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.core.numerics import cosine, inner_products, row_quantiles, z_scores
from helpers import reference

QUANTILES = (0.5, 0.05, 0.95)
THRESHOLD = 1 << 14
"""A length of rows far above that up to which they are sorted whole."""


def assert_quantiles_are_numpys(rows: np.ndarray, quantiles: tuple[float, ...] = QUANTILES) -> None:
    """Adjacent float32 numbers differ by 6e-8, so that a wrong rank exceeds the tolerance of 1e-12."""
    expected = np.quantile(rows.astype(np.float64), quantiles, axis=1).T
    np.testing.assert_allclose(row_quantiles(torch.from_numpy(rows), quantiles), expected, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize(
    "length",
    [
        1,
        2,
        3,
        4,
        21,
        1023,
        1024,
        1025,
        1026,
        THRESHOLD - 1,
        THRESHOLD,
        THRESHOLD + 1,
        THRESHOLD + 2,
        3 * 8192 - 1,
        3 * 8192,
        50_001,
    ],
)
def test_quantiles_are_exact_for_rows_of_any_length(length):
    rows = np.random.default_rng(length).normal(size=(3, length)).astype(np.float32)
    assert_quantiles_are_numpys(rows)


@pytest.mark.parametrize("length", [5, THRESHOLD + 1, 70_000])
def test_quantiles_0_and_1_are_minimum_and_maximum(length):
    row = np.random.default_rng(0).standard_cauchy(size=(1, length)).astype(np.float32)
    found = row_quantiles(torch.from_numpy(row), (0.0, 1.0))[0]
    assert found.tolist() == [float(row.min()), float(row.max())]


def _hidden_from_the_sample(length: int) -> np.ndarray:
    """Very large values at all sampled positions, and only there."""
    row = np.random.default_rng(1).normal(size=length)
    row[:: length // 8192] = 1e6 + np.arange(len(row[:: length // 8192]))
    return row


ARRANGEMENTS = {
    "ascending": lambda n: np.linspace(-1, 1, n),
    "descending": lambda n: np.linspace(1, -1, n),
    "all equal": lambda n: np.full(n, 0.25),
    "all zero": np.zeros,
    "mostly zero": lambda n: np.where(np.arange(n) % 50 == 7, np.arange(n) - n / 2, 0.0),
    "three values": lambda n: np.random.default_rng(2).integers(0, 3, n).astype(float),
    "95 % ties": lambda n: np.where(np.arange(n) < 0.95 * n, 1.0, np.arange(n)),
    "ties across the median": lambda n: np.sort(np.round(np.random.default_rng(3).normal(size=n), 1)),
    "hidden from the sample": _hidden_from_the_sample,
    "negated, hidden from the sample": lambda n: -_hidden_from_the_sample(n),
    "sample sees one value": lambda n: np.where(np.arange(n) % (n // 8192) == 0, 0.0, np.arange(n) - n / 3),
    "two far blocks": lambda n: np.concatenate(
        [np.random.default_rng(4).normal(size=n // 2), np.full(n - n // 2, 1e30)]
    ),
    "period of the stride": lambda n: np.sin(2 * np.pi * np.arange(n) / (n // 8192)),
    "heavy tails": lambda n: np.random.default_rng(5).standard_cauchy(size=n) ** 3,
    "denormal numbers": lambda n: np.random.default_rng(6).normal(size=n) * 1e-42,
}


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("length", [THRESHOLD + 1, 24_576, 41_003])
def test_quantiles_are_exact_for_any_arrangement(arrangement, length):
    with np.errstate(over="ignore", under="ignore"):
        row = np.clip(ARRANGEMENTS[arrangement](length), -1e38, 1e38).astype(np.float32)
    assert_quantiles_are_numpys(row[None], (0.5, 0.05, 0.95, 0.0, 1.0, 0.999))


@settings(max_examples=30, deadline=None)
@given(
    length=st.integers(THRESHOLD + 1, 3 * THRESHOLD),
    distinct=st.integers(1, 2000),
    seed=st.integers(0, 2**32 - 1),
    quantiles=st.lists(st.floats(0, 1), min_size=1, max_size=4),
    ordered=st.booleans(),
)
def test_quantiles_of_long_rows_are_exact_with_any_ties(length, distinct, seed, quantiles, ordered):
    rng = np.random.default_rng(seed)
    row = rng.normal(size=distinct).astype(np.float32)[rng.integers(0, distinct, length)]
    assert_quantiles_are_numpys((np.sort(row) if ordered else row)[None], tuple(quantiles))


@given(
    values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40),
    quantiles=st.lists(st.floats(0, 1), min_size=1, max_size=4),
)
def test_quantiles_of_short_rows_are_exact(values, quantiles):
    row = np.array([values], dtype=np.float32)
    expected = np.quantile(row[0].astype(np.float64), quantiles)
    scale = float(np.abs(row).max())
    np.testing.assert_allclose(
        row_quantiles(torch.from_numpy(row), quantiles)[0], expected, rtol=1e-12, atol=1e-15 * scale
    )


def test_quantiles_do_not_modify_the_rows():
    rows = torch.randn(2, THRESHOLD + 100, generator=torch.Generator().manual_seed(0))
    before = rows.clone()
    row_quantiles(rows, QUANTILES)
    row_quantiles(rows[:, :100], QUANTILES)
    assert torch.equal(rows, before)


def test_quantiles_of_float64_rows_have_the_precision_of_float64():
    row = 1.0 + np.arange(THRESHOLD + 11) * 1e-13
    assert_quantiles_are_numpys(np.random.default_rng(0).permutation(row)[None])


def test_quantiles_of_a_column_slice_are_exact():
    rows = np.random.default_rng(0).normal(size=(3, 60_000)).astype(np.float32)
    found = row_quantiles(torch.from_numpy(rows)[:, 10_000:40_000], QUANTILES)
    np.testing.assert_allclose(
        found, np.quantile(rows[:, 10_000:40_000].astype(float), QUANTILES, axis=1).T, rtol=1e-12
    )


def test_inner_products_are_sums_over_the_columns_of_each_layer():
    rng = np.random.default_rng(0)
    g, u = rng.normal(size=12), rng.normal(size=(3, 12))
    layers = [slice(0, 5), slice(5, 6), slice(6, 12)]
    found = inner_products(torch.from_numpy(u), torch.from_numpy(g), layers)
    for k, layer in enumerate(layers):
        assert found.gg[k] == pytest.approx(reference.dot(g[layer], g[layer]))
        for i in range(3):
            assert found.gu[k, i] == pytest.approx(reference.dot(g[layer], u[i, layer]))
            for j in range(3):
                assert found.uu[k, i, j] == pytest.approx(reference.dot(u[i, layer], u[j, layer]))


def test_inner_products_of_a_layer_do_not_depend_on_its_chunks():
    rng = np.random.default_rng(1)
    size = 2 * (1 << 16) + 5
    g, u = rng.normal(size=size).astype(np.float32), rng.normal(size=(2, size)).astype(np.float32)
    found = inner_products(torch.from_numpy(u), torch.from_numpy(g), [slice(0, 1 << 16), slice(1 << 16, size)]).total
    wide_g, wide_u = g.astype(np.float64), u.astype(np.float64)
    np.testing.assert_allclose(found.gg[0], wide_g @ wide_g, rtol=1e-12)
    np.testing.assert_allclose(found.gu[0], wide_u @ wide_g, rtol=1e-9)
    np.testing.assert_allclose(found.uu[0], wide_u @ wide_u.T, rtol=1e-9, atol=1e-7)


def test_inner_products_of_weights_follow_from_those_of_updates():
    rng = np.random.default_rng(2)
    g, u = rng.normal(size=30), rng.normal(size=(4, 30))
    found = inner_products(torch.from_numpy(u), torch.from_numpy(g), [slice(0, 30)])
    w = g + u
    for i in range(4):
        assert found.gw[0, i] == pytest.approx(reference.dot(g, w[i]))
        for j in range(4):
            assert found.ww[0, i, j] == pytest.approx(reference.dot(w[i], w[j]))


def test_a_cosine_with_a_zero_vector_is_zero():
    assert cosine(np.array([0.0, 0.0]), np.array([0.0, 4.0]), np.array([1.0, 0.0])).tolist() == [0.0, 0.0]


@given(st.lists(st.tuples(*[st.floats(0, 1e308)] * 2, st.floats(-1e308, 1e308)), min_size=1, max_size=10))
def test_a_cosine_is_finite_and_between_minus_one_and_one_for_any_input(triples):
    first, second, product = (np.array(column) for column in zip(*triples, strict=True))
    result = cosine(product, first, second)
    assert np.isfinite(result).all()
    assert (np.abs(result) <= 1).all()


def test_z_scores_have_mean_zero_and_deviation_one_in_each_column():
    values = np.random.default_rng(0).normal(size=(7, 4)) * [1, 1e-9, 1e9, 3] + [5, 0, 1e9, -2]
    np.testing.assert_allclose(z_scores(values), reference.z_score_columns(values), atol=1e-9)


def test_z_scores_without_an_axis_use_one_mean_and_one_deviation():
    values = np.random.default_rng(1).normal(size=(5, 5))
    np.testing.assert_allclose(z_scores(values, axis=None), reference.z_score_matrix(values), atol=1e-12)


@pytest.mark.parametrize("constant", [0.0, 1.0, -0.1, 1e300, 5e-324, 1 / 3])
def test_z_scores_of_a_constant_column_are_zero(constant):
    values = np.column_stack([np.full(7, constant), np.arange(7.0)])
    result = z_scores(values)
    assert result[:, 0].tolist() == [0.0] * 7
    np.testing.assert_allclose(result[:, 1], (np.arange(7.0) - 3) / 2)


def test_z_scores_of_values_that_differ_by_rounding_errors_are_zero():
    assert z_scores(np.array([[0.1 + 0.2], [0.3], [0.3]])).tolist() == [[0.0]] * 3


def test_z_scores_of_one_client_are_zero():
    assert z_scores(np.array([[3.0, -1.0, 1e200]])).tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("scale", [1e307, 1e200, 1e-200, 1e-305])
def test_z_scores_do_not_depend_on_very_large_or_small_units(scale):
    values = np.array([[1.0], [2.0], [4.0], [9.0]])
    np.testing.assert_allclose(z_scores(values * scale), reference.z_score_columns(values), rtol=1e-9)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_z_scores_of_a_column_with_overflow_are_zero_and_others_are_unaffected(bad):
    result = z_scores(np.array([[1.0, bad], [2.0, 1.0], [3.0, 2.0]]))
    assert result[:, 1].tolist() == [0.0] * 3
    np.testing.assert_allclose(result[:, 0], [-(1.5**0.5), 0, 1.5**0.5])


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=12))
def test_z_scores_of_finite_values_are_finite(values):
    result = z_scores(np.array(values)[:, None])
    assert np.isfinite(result).all()
    assert np.abs(result).max() <= len(values) ** 0.5 + 1e-9


@given(
    st.lists(st.floats(-100, 100), min_size=2, max_size=12).filter(lambda v: np.std(v) > 1e-3),
    st.floats(0.01, 100),
    st.floats(-100, 100),
)
def test_z_scores_do_not_depend_on_unit_or_origin(values, unit, origin):
    values = np.array(values)[:, None]
    np.testing.assert_allclose(z_scores(values * unit + origin), z_scores(values), atol=1e-6)
