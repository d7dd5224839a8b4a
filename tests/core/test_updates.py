"""Lazy updates: blocks, rows, sums and means equal those of the whole matrix."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from g2uardfl.aggregators.base import Round
from g2uardfl.aggregators.fedavg import FedAvg
from g2uardfl.aggregators.krum import Krum
from g2uardfl.core import sent as sent_module
from g2uardfl.core.layout import ModelLayout, largest_usable
from g2uardfl.core.updates import SentUpdates, norms_and_peaks, weighted_mean, weighted_sum

SHAPES = {"b.weight": (3, 4), "a.weight": (5,), "a.bias": (1,), "c": (2, 2)}


def model_of(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}


def sent_updates(clients, model):
    layout = ModelLayout.of(model)
    return SentUpdates(layout, layout.flatten(model), clients)


def expected_of(clients, model):
    layout = ModelLayout.of(model)
    rows = [layout.flatten({n: torch.as_tensor(w[n]).double() for n in w}) for w in clients]
    return torch.stack(rows) - layout.flatten(model)


@given(start=st.integers(0, 22), stop=st.integers(0, 30))
def test_any_range_of_columns_equals_that_of_the_matrix(start, stop):
    model, clients = model_of(0), [model_of(seed) for seed in (1, 2, 3)]
    found = sent_updates(clients, model)[:, start:stop]
    assert torch.equal(found, expected_of(clients, model)[:, start:stop])


@given(rows=st.slices(4), columns=st.tuples(st.integers(0, 22), st.integers(0, 30)))
def test_any_range_of_rows_and_columns_equals_that_of_the_matrix(rows, columns):
    rows = slice(*rows.indices(4)[:2])
    model, clients = model_of(0), [model_of(seed) for seed in (1, 2, 3, 4)]
    found = sent_updates(clients, model)[rows, slice(*columns)]
    assert torch.equal(found, expected_of(clients, model)[rows, slice(*columns)])


@pytest.mark.parametrize("clients", [1, 10, 11, 25])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_weighted_sum_is_correct_and_independent_of_the_number_of_threads(clients, dtype):
    draw = np.random.default_rng(0)
    model = {"w": draw.normal(size=300_000).astype(dtype)}
    sent = [{"w": draw.normal(size=300_000).astype(dtype)} for _ in range(clients)]
    weights = torch.from_numpy(draw.normal(size=clients).astype(dtype))
    updates, threads, found = sent_updates(sent, model), torch.get_num_threads(), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(weighted_sum(updates, weights))
    torch.set_num_threads(threads)
    assert all(torch.equal(found[0], other) for other in found[1:])
    expected = sum(
        float(w) * (array["w"].astype(np.float64) - model["w"]) for w, array in zip(weights, sent, strict=True)
    )
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("block", [1, 7, 1 << 21])
@pytest.mark.parametrize("shares", [[0.5, 0.25, 0.25], [0.0, 0.3, 0.7], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
def test_a_mean_is_correct_for_any_number_of_columns_at_once(dtype, block, shares, monkeypatch):
    monkeypatch.setattr(sent_module, "_MEAN_COLUMNS", block)
    model, clients = model_of(0), [model_of(seed, dtype) for seed in (1, 2, 3)]
    updates = sent_updates(clients, model)
    found = weighted_mean(updates, np.array(shares))
    assert not updates.is_materialised
    assert found.dtype == torch.float32
    expected = torch.tensor(shares, dtype=torch.float64) @ expected_of(clients, model).double()
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-6)
    assert torch.allclose(weighted_mean(updates.matrix, np.array(shares)), found, rtol=0, atol=1e-6)


@pytest.mark.parametrize("clients", [3, 10, 11, 100])
def test_a_mean_of_small_updates_of_large_weights_is_almost_as_exact_as_float32(clients):
    draw = np.random.default_rng(0)
    model = {"w": (draw.normal(size=10_000) / 2).astype(np.float32)}
    sent = [{"w": model["w"] + draw.normal(size=10_000, scale=2e-4).astype(np.float32)} for _ in range(clients)]
    shares = draw.random(clients)
    shares /= shares.sum()
    found = model["w"] + weighted_mean(sent_updates(sent, model), shares).numpy()
    expected = shares @ np.stack([one["w"].astype(np.float64) for one in sent])
    # Storing the result in float32 rounds each weight by at most half a unit in the last place.
    half = np.spacing(np.abs(model["w"])) / 2
    assert np.sqrt(np.mean((found - expected) ** 2)) < 1.5 * np.sqrt(np.mean(half**2))


@given(shares=st.lists(st.floats(0, 1), min_size=1, max_size=30).filter(lambda numbers: sum(numbers) > 0.1))
def test_the_mean_of_identical_weights_is_exact(shares):
    model, sent = model_of(0), model_of(1)
    found = weighted_mean(sent_updates([sent] * len(shares), model), np.array(shares) / sum(shares))
    assert torch.equal(found, sent_updates([sent], model).row(0))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2e18, 1e30])
@pytest.mark.parametrize("examples", [0, 10])
def test_unusable_values_that_cancel_in_the_sum_are_rejected_for_these_clients_only(bad, examples):
    model = {"w": np.ones(5, np.float32)}
    clients = {
        name: {"w": np.full(5, value, np.float32)} for name, value in (("a", 3), ("b", bad), ("c", 2), ("d", -bad))
    }
    result = FedAvg().aggregate(model, clients, {"a": 10, "b": examples, "c": 10, "d": examples})
    assert {name: verdict.decision for name, verdict in result.verdicts.items()} == {
        "a": "accepted",
        "b": "invalid",
        "c": "accepted",
        "d": "invalid",
    }
    np.testing.assert_array_equal(result.weights["w"], np.full(5, 2.5, np.float32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_blocks_rows_and_matrix_are_bitwise_equal_for_any_dtype_of_the_clients(dtype):
    model, clients = model_of(0), [model_of(seed, dtype) for seed in (1, 2)]
    updates = sent_updates(clients, model)
    block, rows = updates[:, :], torch.stack([updates.row(0), updates.row(1)])
    assert block.dtype == torch.float32
    assert torch.equal(block, rows)
    assert torch.equal(block, updates.matrix)
    assert torch.equal(updates[:, 2:7], block[:, 2:7])
    assert torch.equal(updates.row(1), block[1])


def test_arrays_with_unusual_memory_layouts_are_read_in_order():
    model = {"w": np.zeros((3, 4), np.float32)}
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    frozen = values.copy()
    frozen.flags.writeable = False
    clients = [{"w": np.asfortranarray(values)}, {"w": values[:, ::-1][:, ::-1]}, {"w": frozen}]
    assert sent_updates(clients, model)[:, 1:9].tolist() == [list(range(1, 9))] * 3


def test_a_weighted_sum_does_not_compute_the_matrix():
    model, clients = model_of(0), [model_of(seed) for seed in (1, 2, 3)]
    updates = sent_updates(clients, model)
    layout = ModelLayout.of(model)
    round_ = Round(layout, layout.flatten(model), (0, 1, 2), updates, np.ones(3))
    coefficients = np.array([0.5, -1.0, 2.0])
    found = round_.weighted_sum(coefficients)
    assert not updates.is_materialised
    torch.testing.assert_close(found, torch.tensor(coefficients).float() @ expected_of(clients, model))


def test_a_weighted_sum_with_zero_weights_is_zero():
    updates = sent_updates([model_of(1), model_of(2)], model_of(0))
    assert weighted_sum(updates, torch.zeros(2)).eq(0).all()


@pytest.mark.parametrize("rule", [FedAvg(), Krum(malicious_clients=0)])
def test_the_new_model_shares_no_memory_with_the_messages(rule):
    model, clients = model_of(0), {seed: model_of(seed) for seed in (1, 2, 3)}
    kept = {seed: {name: value.clone() for name, value in sent.items()} for seed, sent in clients.items()}
    result = rule.aggregate(model, clients, dict.fromkeys(clients, 1)).weights
    for value in result.values():
        value.fill_(7.0)
    assert all(torch.equal(clients[seed][name], kept[seed][name]) for seed in kept for name in kept[seed])
    assert all(torch.equal(model[name], model_of(0)[name]) for name in model)


@pytest.mark.parametrize("scale", [1e17, 9e17, 1e18])
def test_large_models_with_a_small_difference_are_usable(scale):
    model = {"w": np.array([scale, 1.0], np.float32)}
    clients = {i: {"w": np.array([scale, float(i)], np.float32)} for i in (1, 3)}
    result = FedAvg().aggregate(model, clients, {1: 1, 3: 1})
    assert result.weights["w"].tolist() == [np.float32(scale), 2.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [1, 7, 1 << 17])
@pytest.mark.parametrize("materialised", [False, True])
def test_norms_and_peaks_are_those_of_each_whole_update(dtype, columns, materialised, monkeypatch):
    monkeypatch.setattr(sent_module, "_ROW_COLUMNS", columns)
    model, clients = model_of(0), [model_of(seed, dtype) for seed in (1, 2, 3)]
    updates = sent_updates(clients, model)
    if materialised:
        _ = updates.matrix
    expected = expected_of(clients, model).double()
    np.testing.assert_allclose(updates.norms_and_peaks[:, 0], expected.norm(dim=1), rtol=1e-6)
    np.testing.assert_allclose(updates.norms_and_peaks[:, 1], expected.abs().amax(dim=1), rtol=1e-6)
    np.testing.assert_allclose(norms_and_peaks(updates.matrix), updates.norms_and_peaks, rtol=1e-6)


def test_the_norm_of_an_update_whose_squares_underflow_is_exact():
    values = np.random.default_rng(0).normal(size=1000, scale=1e-25).astype(np.float32)
    updates = sent_updates([{"w": values}, {"w": 0 * values}], {"w": 0 * values})
    norm = np.linalg.norm(values.astype(np.float64))
    np.testing.assert_allclose(updates.norms_and_peaks, [[norm, np.abs(values).max()], [0, 0]], rtol=1e-6)


@pytest.mark.parametrize("position", [0, 70, 99])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_norms_and_peaks_are_not_finite_if_any_value_is_not(bad, position):
    broken = np.ones(100, np.float32)
    broken[position] = bad
    found = sent_updates([{"w": np.ones(100, np.float32)}, {"w": broken}], {"w": np.zeros(100, np.float32)})
    assert found.norms_and_peaks[0].tolist() == [10.0, 1.0]
    assert not np.isfinite(found.norms_and_peaks[1]).any()


@pytest.mark.parametrize("clients", [0, 1, 3])
def test_the_batch_for_a_gpu_equals_the_lazy_matrix(clients):
    model = model_of(0)
    sent = [model_of(seed, torch.float16) for seed in range(1, clients + 1)]
    lazy, batch = sent_updates(sent, model), sent_updates(sent, model)
    batch.matrix = batch._stacked()
    assert torch.equal(batch.matrix, lazy.matrix)
    np.testing.assert_allclose(batch._measured_in_a_batch(), lazy._measured(), rtol=1e-6)


@pytest.mark.parametrize("fraction", [0.99, 1.01])
def test_an_update_is_usable_up_to_the_largest_norm(fraction):
    model = {"w": np.zeros(1000, np.float32)}
    value = fraction * largest_usable(torch.float32) / 1000**0.5
    clients = {"far": {"w": np.full(1000, value, np.float32)}, "near": model}
    result = FedAvg().aggregate(model, clients, {"far": 1, "near": 1})
    assert result.verdicts["far"].decision == ("accepted" if fraction < 1 else "invalid")
