"""Client attributes against the measures of the paper's table, computed one client and one layer at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.core.layout import Layer
from g2uardfl.core.numerics import inner_products
from g2uardfl.defense.paper.attributes import (
    MEASURES,
    attribute_names,
    client_attributes,
    measures,
    normalised_attributes,
)
from helpers import reference


def layers_of(*sizes: int) -> list[Layer]:
    stops = np.cumsum(sizes).tolist()
    return [
        Layer(f"layer{k}", slice(stop - size, stop)) for k, (size, stop) in enumerate(zip(sizes, stops, strict=True))
    ]


def both(weights, global_model, previous, layers, dtype=np.float32):
    """The raw attributes by the library and by the reference, from the same stored numbers."""
    g = np.asarray(global_model, dtype)
    updates = np.asarray(weights, dtype) - g
    p = np.asarray(previous, dtype)
    tensors = torch.from_numpy(updates), torch.from_numpy(g)
    products = inner_products(*tensors, [layer.columns for layer in layers])
    ours = client_attributes(*tensors, list(torch.from_numpy(p)), layers, products)
    wide_g = g.astype(np.float64)
    expected = reference.attributes(
        wide_g + updates.astype(np.float64),
        wide_g,
        p.astype(np.float64),
        [list(range(layer.columns.start, layer.columns.stop)) for layer in layers],
    )
    return ours, expected


def random_federation(clients: int, parameters: int, seed: int = 0, size: float = 0.3):
    rng = np.random.default_rng(seed)
    g = rng.normal(size=parameters)
    return g + size * rng.normal(size=(clients, parameters)), g, size * rng.normal(size=(clients, parameters))


def names_of(layers: list[Layer]) -> list[str]:
    return attribute_names([layer.name for layer in layers])


def column(names: list[str], name: str) -> int:
    assert name in names
    return names.index(name)


def test_the_measures_of_two_numbers_worked_by_hand():
    found = dict(zip(MEASURES, measures(torch.tensor([[3.0, 4.0]]))[0].tolist(), strict=True))
    assert found == pytest.approx(
        {
            "norm": 5.0,
            "minimum": 3.0,
            "maximum": 4.0,
            "mean": 3.5,
            "standard deviation": 0.5,
            "sum": 7.0,
            "median": 3.5,
            "5th percentile": 3.05,
            "95th percentile": 3.95,
        }
    )


@given(st.lists(st.integers(-(10**6), 10**6).map(lambda n: n / 1024), min_size=1, max_size=30))
def test_the_measures_of_any_numbers_are_those_of_the_table(numbers):
    row = np.array(numbers, dtype=np.float32)
    expected = reference.measures(row)
    scale = float(np.abs(row).sum())
    np.testing.assert_allclose(measures(torch.from_numpy(row)[None])[0], expected, rtol=1e-5, atol=1e-6 * scale)


def test_the_deviation_is_exact_where_the_mean_dominates():
    row = (1000 + np.random.default_rng(0).normal(size=500)).astype(np.float32)
    found = measures(torch.from_numpy(row)[None])[0, MEASURES.index("standard deviation")]
    assert found == pytest.approx(reference.std(row.astype(np.float64)), rel=1e-5)


@pytest.mark.parametrize("num_layers", [1, 2, 5])
def test_there_are_19_attributes_and_29_for_each_layer(num_layers):
    layers = layers_of(*[3] * num_layers)
    ours, _ = both(*random_federation(2, 3 * num_layers), layers)
    assert ours.shape == (2, 19 + 29 * num_layers)
    assert len(set(names_of(layers))) == 19 + 29 * num_layers


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_attributes_of_a_random_round_are_the_papers(dtype):
    ours, expected = both(*random_federation(5, 40), layers_of(24, 1, 15), dtype)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=2e-5)


def test_the_attributes_of_layers_whose_quantiles_are_sampled_are_the_papers():
    ours, expected = both(*random_federation(2, 20_007), layers_of(20_000, 7))
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=2e-3)  # a sum of 20,000 numbers of size 1


def test_attributes_do_not_depend_on_how_many_clients_are_computed_together():
    """Forty updates of 30,000 parameters are more than is computed at a time."""
    weights, g, previous = (torch.from_numpy(array).float() for array in random_federation(40, 30_000))
    layers = layers_of(29_000, 1000)

    def found(rows: slice):
        updates = weights[rows] - g
        products = inner_products(updates, g, [layer.columns for layer in layers])
        return client_attributes(updates, g, list(previous[rows]), layers, products)

    alone = np.concatenate([found(slice(row, row + 1)) for row in range(40)])
    np.testing.assert_allclose(found(slice(0, 40)), alone, rtol=1e-5, atol=2e-3)


def test_inputs_are_not_changed():
    weights, g, previous = (torch.from_numpy(array) for array in random_federation(3, 10))
    updates = weights - g
    before = updates.clone(), g.clone(), previous.clone()
    products = inner_products(updates, g, [slice(0, 10)])
    client_attributes(updates, g, list(previous), layers_of(10), products)
    assert all(torch.equal(*pair) for pair in zip((updates, g, previous), before, strict=True))


def test_the_name_of_a_column_describes_its_values():
    weights, g, previous = random_federation(3, 20, seed=4)
    layers = layers_of(12, 8)
    ours, _ = both(weights, g, previous, layers, np.float64)
    names = names_of(layers)
    w, u, p = weights[1], weights[1] - g, previous[1]
    said = {
        "norm of the weights": reference.norm(w),
        "5th percentile of the update": np.percentile(u, 5),
        "cosine similarity of the weights and the global model": reference.cos(w, g),
        "median of the weights in layer layer1": np.median(w[12:]),
        "sum of the update in layer layer0": sum(u[:12]),
        "cosine similarity of the weights and the global model in layer layer1": reference.cos(w[12:], g[12:]),
        "cosine similarity of the update and the previous one in layer layer0": reference.cos(u[:12], p[:12]),
        "maximum of the change of the update since the previous one in layer layer1": max((u - p)[12:]),
    }
    found = {name: ours[1, column(names, name)] for name in said}
    assert found == pytest.approx(said)


def test_an_update_like_the_previous_one_has_angle_one_and_no_change():
    weights, g, _ = random_federation(1, 10)
    ours, _ = both(weights, g, weights - g, layers_of(10), np.float64)
    names = names_of(layers_of(10))
    assert ours[
        0, column(names, "cosine similarity of the update and the previous one in layer layer0")
    ] == pytest.approx(1)
    assert ours[0, column(names, "norm of the change of the update since the previous one in layer layer0")] < 1e-12


def test_all_zero_updates_give_the_papers_finite_attributes():
    _, g, previous = random_federation(3, 12)
    ours, expected = both(np.stack([g] * 3), g, previous, layers_of(6, 6))
    assert np.isfinite(ours).all()
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def test_a_global_model_of_zeros_has_angle_zero_with_every_client():
    weights, _, previous = random_federation(3, 12)
    ours, expected = both(weights, np.zeros(12), previous, layers_of(6, 6))
    assert ours[:, 18].tolist() == [0.0] * 3
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def test_a_layer_with_one_parameter_has_no_deviation():
    weights, g, previous = random_federation(6, 9, seed=3)
    layers = layers_of(8, 1)
    ours, expected = both(weights, g, previous, layers)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)
    names = names_of(layers)
    for vector in ("the weights", "the update", "the change of the update since the previous one"):
        assert ours[:, column(names, f"standard deviation of {vector} in layer layer1")].tolist() == [0.0] * 6


def test_the_direction_of_a_single_parameter_is_no_rounding_error():
    """Updates of one number point the same way as the previous ones, so their cosines do not differ."""
    weights, g, previous = random_federation(8, 9, seed=3)
    layers = layers_of(8, 1)
    previous[:, 8] = 0.7 * (weights[:, 8] - g[8])
    ours, _ = both(weights, g, previous, layers)
    same = column(names_of(layers), "cosine similarity of the update and the previous one in layer layer1")
    assert ours[:, same].tolist() == [1.0] * 8
    assert not normalised_attributes(ours)[:, same].any()


def test_a_single_client_has_no_normalised_attributes():
    ours, _ = both(*random_federation(1, 10), layers_of(10))
    assert not normalised_attributes(ours).any()


def test_identical_clients_have_no_normalised_attributes():
    weights, g, previous = random_federation(1, 30)
    ours, _ = both(np.repeat(weights, 5, axis=0), g, np.repeat(previous, 5, axis=0), layers_of(20, 10))
    assert not normalised_attributes(ours).any()


def test_two_clients_differ_by_plus_and_minus_one_standard_deviation():
    ours, _ = both(*random_federation(2, 30), layers_of(30), np.float64)
    normalised = normalised_attributes(ours)
    np.testing.assert_allclose(np.abs(normalised), 1, atol=1e-6)
    np.testing.assert_allclose(normalised[0], -normalised[1], atol=1e-9)


def test_normalised_attributes_are_z_scores_over_the_clients_of_the_round():
    ours, expected = both(*random_federation(6, 40), layers_of(25, 15))
    np.testing.assert_allclose(normalised_attributes(ours), reference.z_score_columns(expected), atol=2e-4)


def tiny_updates_on_large_weights(parameters: int, mean: float):
    """Ten clients whose float32 weights have norm 50 and moved by 0.02."""
    rng = np.random.default_rng(1)
    g = mean + 0.1 * rng.normal(size=parameters)
    g = (50 * g / np.linalg.norm(g)).astype(np.float32)
    moved = rng.normal(size=(10, parameters))
    moved *= 0.02 / np.linalg.norm(moved, axis=1, keepdims=True)
    previous = 0.02 / math.sqrt(parameters) * rng.normal(size=(10, parameters))
    return (g + moved).astype(np.float32), g, previous


def test_attributes_of_tiny_updates_on_large_weights_keep_their_differences():
    ours, expected = both(*tiny_updates_on_large_weights(3000, mean=0.0), layers_of(2000, 1, 999))
    np.testing.assert_allclose(normalised_attributes(ours), reference.z_score_columns(expected), atol=1e-3)


def test_the_deviation_of_weights_around_one_keeps_its_differences_under_tiny_updates():
    weights, g, previous = tiny_updates_on_large_weights(40_000, mean=1.0)
    layers = layers_of(40_000)
    tensors = torch.from_numpy(weights - g), torch.from_numpy(g)
    products = inner_products(*tensors, [layer.columns for layer in layers])
    raw = client_attributes(*tensors, list(torch.from_numpy(previous)), layers, products)
    ours = normalised_attributes(raw)[:, column(names_of(layers), "standard deviation of the weights")]
    expected = reference.z_score([reference.std(w.astype(np.float64)) for w in weights])
    np.testing.assert_allclose(ours, expected, atol=2e-3)


def test_a_layer_moved_by_one_constant_has_no_deviation_to_normalise():
    rng = np.random.default_rng(0)
    g = np.full(1000, 0.1, np.float32)
    weights = np.stack([np.full(1000, 0.1 + 0.01 * rng.normal(), np.float32) for _ in range(8)])
    ours, _ = both(weights, g, np.zeros((8, 1000)), layers_of(1000))
    deviations = ["deviation of" in name for name in names_of(layers_of(1000))]
    assert sum(deviations) == 5
    assert not normalised_attributes(ours)[:, deviations].any()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(1, 6), shift=st.integers(1, 5))
def test_the_attributes_of_a_client_do_not_depend_on_the_order_of_clients(seed, clients, shift):
    weights, g, previous = random_federation(clients, 14, seed)
    order = np.roll(np.arange(clients), shift)
    straight, _ = both(weights, g, previous, layers_of(9, 5), np.float64)
    rolled, _ = both(weights[order], g, previous[order], layers_of(9, 5), np.float64)
    np.testing.assert_allclose(rolled, straight[order], rtol=1e-12, atol=1e-12)
