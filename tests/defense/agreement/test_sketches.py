"""Sketches of update directions against a literal count sketch, and what they keep of cosines."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.core.layout import Layer, ModelLayout
from g2uardfl.core.sent import SentUpdates
from g2uardfl.defense.agreement.sketches import (
    _folded,
    _folded_together,
    cosines_with_others,
    directions,
    sketch_layout,
)
from helpers.graphs import drawn_sketches
from helpers.sketches import buckets_of

WIDTH = 16
HALF = 1e-3
"""Sketches are rounded to half precision: a relative error of up to 2^-11 of each number."""


def layers_of(*sizes: int) -> tuple[Layer, ...]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(Layer("", slice(start, start + size)) for start, size in zip(starts, sizes, strict=True))


def sketched(updates, model, sizes, width=WIDTH, seed=0):
    updates, model = torch.as_tensor(updates), torch.as_tensor(model)
    [found] = directions(updates, model, [sketch_layout(layers_of(*sizes), width, seed)])
    return found


def random_round(clients, sizes, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(clients, sum(sizes))).astype(dtype), rng.normal(size=sum(sizes)).astype(dtype)


def unit(vector):
    norm = math.sqrt(sum(x * x for x in vector))
    return [x / norm for x in vector] if norm > 0 else [0.0] * len(vector)


def dot(first, second):
    return sum(float(x) * float(y) for x, y in zip(first, second, strict=True))


def orthogonal_part(vector, axis):
    """What remains of `vector` after its component along the unit vector `axis` is removed."""
    along = dot(vector, axis)
    return [x - along * y for x, y in zip(vector, axis, strict=True)]


def literal_directions(updates, model, layout, width):
    """Each parameter, times its sign, is added to the entry of its bucket."""

    def sketch(vector, layer):
        folded = [0.0] * width
        for value, sign, bucket in zip(vector[layer.columns], layer.signs, buckets_of(layer), strict=True):
            folded[bucket] += float(value) * int(sign)
        return unit(folded)

    return np.array(
        [[unit(orthogonal_part(sketch(row, layer), sketch(model, layer))) for layer in layout] for row in updates]
    )


def test_signs_and_buckets_are_determined_by_the_secret_and_the_number_of_its_renewals():
    layers = layers_of(5, 40_000)
    [small, large], [_, again] = (sketch_layout(layers, 512, 3, 1) for _ in range(2))
    for tensor in ("signs", "classes", "order"):
        assert torch.equal(getattr(large, tensor), getattr(again, tensor))
    others = [sketch_layout(layers, 512, *secret) for secret in ((3, 2), (4, 1), (3 + 2**64, 1), (2**127 + 3, 1))]
    for _, other in others:
        for tensor in ("signs", "classes", "order"):
            assert not torch.equal(getattr(large, tensor), getattr(other, tensor))
    assert len({tuple(buckets_of(one)) for one in (small, *(first for first, _ in others))}) == 5


def test_signs_are_balanced_and_independent_of_their_place():
    [layer] = sketch_layout(layers_of(100_000), 512, 3)
    signs = layer.signs.double()
    assert set(signs.tolist()) == {-1, 1}
    assert abs(float(signs.mean())) < 4 / math.sqrt(100_000)
    for distance in (1, 2, 8, 512, 1024):
        assert abs(float((signs[distance:] * signs[:-distance]).mean())) < 4 / math.sqrt(100_000 - distance)


def test_buckets_are_used_equally_and_entries_a_width_apart_seldom_share_one():
    width = 64
    [layer] = sketch_layout(layers_of(64 * 4000), width, 3)
    buckets = np.array(buckets_of(layer))
    assert (np.bincount(buckets) == 4000).all()
    shared = np.mean(buckets[width:] == buckets[:-width])
    # Rows of the same class, one of sixteen, share all buckets, and others one of 64.
    assert shared == pytest.approx(1 / 16 + 15 / 16 / width, abs=0.02)


@pytest.mark.parametrize("size", [2, 5, 100, 511, 512])
def test_entries_of_a_layer_not_wider_than_the_sketch_have_buckets_of_their_own_that_differ_between_secrets(size):
    layouts = [sketch_layout(layers_of(size), 512, secret)[0] for secret in range(8)]
    buckets = [buckets_of(layer) for layer in layouts]
    assert all(len(set(one)) == size for one in buckets)
    assert len({tuple(one) for one in buckets}) == 8
    assert len({tuple(layer.signs.tolist()) for layer in layouts}) > 1


@settings(max_examples=40, deadline=None)
@given(
    clients=st.integers(1, 5),
    sizes=st.lists(st.integers(2, 70), min_size=1, max_size=4),
    width=st.sampled_from([16, 17, 33]),
    seed=st.integers(0, 2**128 - 1),
)
def test_directions_equal_the_literal_count_sketch(clients, sizes, width, seed):
    updates, model = random_round(clients, sizes, seed % 2**32)
    expected = literal_directions(updates, model, sketch_layout(layers_of(*sizes), width, seed), width)
    found = sketched(updates, model, sizes, width, seed)
    assert found.shape == (clients, len(sizes), width)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=HALF)


def test_rows_that_are_added_up_in_several_blocks_equal_the_literal_count_sketch():
    """A block has 131,072 entries."""
    sizes, width = (300_001,), 16
    updates, _ = random_round(1, sizes)
    [layer] = sketch_layout(layers_of(*sizes), width, 3)
    folded = np.zeros(width)
    np.add.at(folded, buckets_of(layer), updates[0] * layer.signs.numpy())
    found = sketched(updates, np.zeros(300_001), sizes, width, 3)
    np.testing.assert_allclose(found[0, 0], unit(folded), atol=HALF)


def test_sketches_under_two_secrets_equal_those_under_either_alone():
    sizes = (5, 40, 1000)
    updates, model = map(torch.from_numpy, random_round(3, sizes))
    layouts = [sketch_layout(layers_of(*sizes), WIDTH, 7, renewals) for renewals in (0, 1)]
    both = directions(updates, model, layouts)
    for layout, found in zip(layouts, both, strict=True):
        assert np.array_equal(found, directions(updates, model, [layout])[0])


def test_directions_are_unit_vectors_orthogonal_to_the_global_model():
    sizes = (5, 40, 1000)
    updates, model = random_round(6, sizes)
    found = sketched(updates, model, sizes)
    np.testing.assert_allclose(np.linalg.norm(found, axis=-1), 1, atol=HALF)
    # A component along the model changes nothing.
    np.testing.assert_allclose(sketched(updates + 0.5 * model, model, sizes), found, atol=HALF)
    # Nothing is removed along a zero model: this is the sketch of the model itself.
    axis = sketched(model[None], np.zeros_like(model), sizes)[0]
    np.testing.assert_allclose(np.sum(found * axis, axis=-1), 0, atol=HALF)


def test_a_zero_layer_has_the_direction_zero_and_the_other_layers_are_unaffected():
    sizes = (5, 40)
    updates, model = random_round(3, sizes)
    updates[1] = 0
    updates[2, :5] = 0
    found = sketched(updates, model, sizes)
    assert not found[1].any()
    assert not found[2, 0].any()
    np.testing.assert_allclose(np.linalg.norm(found[[0, 0, 2], [0, 1, 1]], axis=-1), 1, atol=HALF)


@pytest.mark.parametrize("seed", range(5))
def test_an_update_along_the_model_has_the_direction_zero(seed):
    _, model = random_round(1, (40,), seed)
    assert not sketched(np.stack([model, -0.25 * model]), model, (40,)).any()


def test_layers_not_wider_than_the_sketch_keep_their_cosines_exactly():
    sizes = (5, WIDTH)
    updates, model = random_round(4, sizes)
    found = sketched(updates, model, sizes).astype(np.float64)
    for layer, columns in enumerate((slice(0, 5), slice(5, 21))):
        axis = unit(model[columns])
        rest = [unit(orthogonal_part(row[columns], axis)) for row in updates]
        for i in range(4):
            for j in range(4):
                assert dot(found[i, layer], found[j, layer]) == pytest.approx(dot(rest[i], rest[j]), abs=HALF)


@pytest.mark.parametrize("kind", ["independent", "low rank", "outer product"])
@pytest.mark.parametrize("truth", [-0.6, 0.0, 0.3, 0.9])
def test_cosines_of_wide_layers_are_unbiased_with_an_error_of_one_over_the_root_of_the_width(truth, kind):
    width, size, pairs, rng = 256, 20_480, 20, np.random.default_rng(5)
    # The rows of a matrix of rank 1 are a width long, so that all are parallel.
    factors = [rng.normal(size=(2, pairs, length)) for length in (size // width, width)]
    first, second = {
        "independent": lambda: rng.normal(size=(2, pairs, size)),
        "low rank": lambda: np.repeat(rng.normal(size=(2, pairs, size // 80)), 80, axis=2),
        "outer product": lambda: np.einsum("kpi,kpj->kpij", *factors).reshape(2, pairs, size),
    }[kind]()
    second -= first * (np.sum(first * second, axis=1) / np.sum(first**2, axis=1))[:, None]
    first, second = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (first, second))
    updates = np.concatenate([first, truth * first + math.sqrt(1 - truth**2) * second])
    found = sketched(updates, np.zeros(size), (size,), width)[:, 0].astype(np.float64)
    errors = [dot(found[k], found[pairs + k]) - truth for k in range(pairs)]
    assert max(abs(error) for error in errors) < 4 / math.sqrt(width)
    assert abs(statistics.mean(errors)) < 4 / math.sqrt(width * pairs)
    assert statistics.stdev(errors) < 1.5 / math.sqrt(width)


@pytest.mark.parametrize("scale", [1e30, 1e-30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_directions_do_not_depend_on_the_scale_of_the_updates(scale, dtype):
    sizes = (5, 40, 300)
    updates, model = random_round(4, sizes, dtype=dtype)
    found = sketched(updates * dtype(scale), model, sizes)
    np.testing.assert_allclose(found, sketched(updates, model, sizes), atol=HALF)


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(6)))
def test_the_order_of_clients_permutes_the_directions_and_changes_no_bit(order):
    sizes = (5, 40, 300)
    updates, model = random_round(6, sizes, dtype=np.float32)
    found = sketched(updates, model, sizes)
    assert np.array_equal(sketched(updates[list(order)], model, sizes), found[list(order)])


def test_directions_do_not_depend_on_the_number_of_threads():
    sizes = (5, 4000)
    updates, model = random_round(6, sizes, dtype=np.float32)
    threads = torch.get_num_threads()
    found = []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            found.append(sketched(updates, model, sizes))
    finally:
        torch.set_num_threads(threads)
    assert np.array_equal(*found)


@given(clients=st.integers(2, 7), layers=st.integers(1, 3), seed=st.integers(0, 2**32 - 1))
def test_the_cosine_with_the_others_is_the_mean_over_pairs_and_layers(clients, layers, seed):
    sketches = drawn_sketches(seed, clients, layers, 8, common=0.5)
    for one, found in enumerate(cosines_with_others(sketches)):
        others = [other for other in range(clients) if other != one]
        cosines = [dot(sketches[one, layer], sketches[other, layer]) for other in others for layer in range(layers)]
        assert found == pytest.approx(statistics.fmean(cosines), abs=1e-6)


@pytest.mark.parametrize("sizes", [(1,), (WIDTH,), (5, 3 * WIDTH + 2, 40 * WIDTH)])
@pytest.mark.parametrize("clients", [1, 4])
def test_the_sums_for_a_gpu_equal_those_of_one_client_after_the_other(sizes, clients):
    updates = torch.from_numpy(random_round(clients, sizes)[0])
    for layer in sketch_layout(layers_of(*sizes), WIDTH, 0):
        one_by_one = torch.cat([_folded(updates, slice(client, client + 1), layer)[0] for client in range(clients)])
        torch.testing.assert_close(_folded_together(updates, layer), one_by_one, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sizes", [(2, 70, 5), (600, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_norms_and_peaks_are_measured_in_the_same_pass(sizes, dtype, monkeypatch):
    """Also of layers that are read in several blocks, and while a secret is renewed."""
    monkeypatch.setattr("g2uardfl.defense.agreement.sketches._BLOCK_SIZE", 100)
    layers = layers_of(*sizes)
    sent, model = random_round(5, sizes, dtype=dtype)
    layout = ModelLayout.of({"w": model})
    measured, alone = (SentUpdates(layout, torch.from_numpy(model), [{"w": row} for row in sent]) for _ in range(2))
    directions(measured, torch.from_numpy(model), [sketch_layout(layers, WIDTH, secret) for secret in (1, 2)])
    assert "norms_and_peaks" in vars(measured)
    np.testing.assert_allclose(measured.norms_and_peaks, alone.norms_and_peaks, rtol=1e-6)


def test_norms_that_underflow_are_measured_again_in_double_precision():
    layout = ModelLayout.of({"w": np.zeros(50, np.float32)})
    updates = SentUpdates(layout, torch.zeros(50), [{"w": np.full(50, 1e-30, np.float32)}])
    directions(updates, torch.zeros(50), [sketch_layout(layers_of(50), WIDTH, 1)])
    assert updates.norms_and_peaks[0].tolist() == pytest.approx([math.sqrt(50) * 1e-30, 1e-30])
