"""Sketches of update directions against a literal count sketch, and what they keep of cosines."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.core.layout import Layer
from g2uardfl.defense.agreement.sketches import directions, mean_cosine, random_signs

WIDTH = 16


def layers_of(*sizes: int) -> tuple[Layer, ...]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(Layer("", slice(start, start + size)) for start, size in zip(starts, sizes, strict=True))


def sketched(updates, model, sizes, width=WIDTH, seed=0):
    updates, model = torch.as_tensor(updates), torch.as_tensor(model)
    return directions(updates, model, random_signs(updates.shape[1], seed), layers_of(*sizes), width)


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


def literal_directions(updates, model, signs, sizes, width):
    """Each parameter, times its sign, is added to the entry of its number in the layer modulo `width`."""

    def sketch(vector, start, size):
        folded = [0.0] * width
        for k in range(size):
            folded[k % width] += float(vector[start + k]) * int(signs[start + k])
        return unit(folded)

    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return np.array(
        [
            [
                unit(orthogonal_part(sketch(row, start, size), sketch(model, start, size)))
                for start, size in zip(starts, sizes, strict=True)
            ]
            for row in updates
        ]
    )


def test_random_signs_are_balanced_and_determined_by_the_seed():
    signs = random_signs(10_000, 3)
    assert set(signs.tolist()) == {-1, 1}
    assert abs(int(signs.sum())) < 500
    assert torch.equal(signs, random_signs(10_000, 3))
    assert not torch.equal(signs, random_signs(10_000, 4))


@settings(max_examples=40, deadline=None)
@given(
    clients=st.integers(1, 5),
    sizes=st.lists(st.integers(2, 70), min_size=1, max_size=4),
    width=st.sampled_from([16, 17, 33]),
    seed=st.integers(0, 2**32 - 1),
)
def test_directions_equal_the_literal_count_sketch(clients, sizes, width, seed):
    updates, model = random_round(clients, sizes, seed)
    expected = literal_directions(updates, model, random_signs(sum(sizes), seed), sizes, width)
    found = sketched(updates, model, sizes, width, seed)
    assert found.shape == (clients, len(sizes), width)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_directions_are_unit_vectors_orthogonal_to_the_global_model():
    sizes = (5, 40, 1000)
    updates, model = random_round(6, sizes)
    found = sketched(updates, model, sizes)
    np.testing.assert_allclose(np.linalg.norm(found, axis=-1), 1, atol=1e-6)
    # A component along the model changes nothing.
    np.testing.assert_allclose(sketched(updates + 0.5 * model, model, sizes), found, atol=1e-5)
    # Nothing is removed along a zero model: this is the sketch of the model itself.
    axis = sketched(model[None], np.zeros_like(model), sizes)[0]
    np.testing.assert_allclose(np.sum(found * axis, axis=-1), 0, atol=1e-6)


def test_a_zero_layer_has_the_direction_zero_and_the_other_layers_are_unaffected():
    sizes = (5, 40)
    updates, model = random_round(3, sizes)
    updates[1] = 0
    updates[2, :5] = 0
    found = sketched(updates, model, sizes)
    assert not found[1].any()
    assert not found[2, 0].any()
    np.testing.assert_allclose(np.linalg.norm(found[[0, 0, 2], [0, 1, 1]], axis=-1), 1, atol=1e-6)


def test_an_update_along_the_model_has_the_direction_zero():
    _, model = random_round(1, (40,))
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
                assert dot(found[i, layer], found[j, layer]) == pytest.approx(dot(rest[i], rest[j]), abs=1e-5)


@pytest.mark.parametrize("truth", [-0.6, 0.0, 0.3, 0.9])
def test_cosines_of_wide_layers_are_unbiased_with_an_error_of_one_over_the_root_of_the_width(truth):
    width, size, pairs = 256, 20_000, 20
    first, second = np.random.default_rng(5).normal(size=(2, pairs, size))
    updates = np.concatenate([first, truth * first + math.sqrt(1 - truth**2) * second])
    found = sketched(updates, np.zeros(size), (size,), width)[:, 0].astype(np.float64)
    errors = [dot(found[k], found[pairs + k]) - dot(unit(updates[k]), unit(updates[pairs + k])) for k in range(pairs)]
    assert max(abs(error) for error in errors) < 4 / math.sqrt(width)
    assert abs(statistics.mean(errors)) < 4 / math.sqrt(width * pairs)


@pytest.mark.parametrize("scale", [1e30, 1e-30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_directions_do_not_depend_on_the_scale_of_the_updates(scale, dtype):
    sizes = (5, 40, 300)
    updates, model = random_round(4, sizes, dtype=dtype)
    found = sketched(updates * dtype(scale), model, sizes)
    np.testing.assert_allclose(found, sketched(updates, model, sizes), atol=1e-5)


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


@settings(deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 6), layers=st.integers(1, 3), common=st.floats(0, 3))
def test_the_mean_cosine_is_the_mean_over_all_pairs_and_layers(seed, count, layers, common):
    rng = np.random.default_rng(seed)
    sketches = rng.normal(size=(count, layers, 8)) + common * rng.normal(size=(layers, 8))
    sketches /= np.linalg.norm(sketches, axis=-1, keepdims=True)
    cosines = [
        float(first[layer] @ second[layer])
        for place, first in enumerate(sketches)
        for second in sketches[place + 1 :]
        for layer in range(layers)
    ]
    expected = statistics.fmean(cosines) if cosines else 0.0
    assert mean_cosine(sketches.astype(np.float32)) == pytest.approx(expected, abs=1e-5)
