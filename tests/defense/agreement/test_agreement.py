"""The agreement graph: short directions, the window of the last rounds and the edges, against loops over pairs."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.core.layout import Layer
from g2uardfl.defense.agreement.agreement import Window, agree_on_average, agreement, directions, random_signs

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
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector] if length > 0 else [0.0] * len(vector)


def dot(first, second):
    return sum(float(x) * float(y) for x, y in zip(first, second, strict=True))


def without(vector, axis):
    """What is left of `vector` at right angles to the unit vector `axis`."""
    along = dot(vector, axis)
    return [x - along * y for x, y in zip(vector, axis, strict=True)]


def literal_directions(updates, model, signs, sizes, width):
    """Each parameter, times its sign, is added to the place of its number in the layer modulo `width`."""

    def sketch(vector, start, size):
        folded = [0.0] * width
        for k in range(size):
            folded[k % width] += float(vector[start + k]) * int(signs[start + k])
        return unit(folded)

    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return np.array(
        [
            [
                unit(without(sketch(row, start, size), sketch(model, start, size)))
                for start, size in zip(starts, sizes, strict=True)
            ]
            for row in updates
        ]
    )


def test_random_signs_are_plus_and_minus_one_in_equal_parts_and_the_seeds_own():
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
def test_directions_are_the_literal_count_sketch(clients, sizes, width, seed):
    updates, model = random_round(clients, sizes, seed)
    expected = literal_directions(updates, model, random_signs(sum(sizes), seed), sizes, width)
    ours = sketched(updates, model, sizes, width, seed)
    assert ours.shape == (clients, len(sizes), width)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_directions_have_length_one_and_lie_at_right_angles_to_the_model():
    sizes = (5, 40, 1000)
    updates, model = random_round(6, sizes)
    ours = sketched(updates, model, sizes)
    np.testing.assert_allclose(np.linalg.norm(ours, axis=-1), 1, atol=1e-6)
    # Half of each update lies along the model: that changes nothing.
    np.testing.assert_allclose(sketched(updates + 0.5 * model, model, sizes), ours, atol=1e-5)
    # A zero model takes nothing away: this is the model's own sketch.
    axis = sketched(model[None], np.zeros_like(model), sizes)[0]
    np.testing.assert_allclose(np.sum(ours * axis, axis=-1), 0, atol=1e-6)


def test_a_zero_layer_has_no_direction_and_the_others_keep_theirs():
    sizes = (5, 40)
    updates, model = random_round(3, sizes)
    updates[1] = 0
    updates[2, :5] = 0
    ours = sketched(updates, model, sizes)
    assert not ours[1].any()
    assert not ours[2, 0].any()
    np.testing.assert_allclose(np.linalg.norm(ours[[0, 0, 2], [0, 1, 1]], axis=-1), 1, atol=1e-6)


def test_an_update_along_the_model_has_no_direction():
    _, model = random_round(1, (40,))
    assert not sketched(np.stack([model, -0.25 * model]), model, (40,)).any()


def test_layers_narrower_than_the_width_keep_their_cosines_exactly():
    sizes = (5, WIDTH)
    updates, model = random_round(4, sizes)
    ours = sketched(updates, model, sizes).astype(np.float64)
    for layer, columns in enumerate((slice(0, 5), slice(5, 21))):
        axis = unit(model[columns])
        rest = [unit(without(row[columns], axis)) for row in updates]
        for i in range(4):
            for j in range(4):
                assert dot(ours[i, layer], ours[j, layer]) == pytest.approx(dot(rest[i], rest[j]), abs=1e-5)


@pytest.mark.parametrize("truth", [-0.6, 0.0, 0.3, 0.9])
def test_cosines_of_wide_layers_are_kept_up_to_the_sketchs_error(truth):
    width, size, pairs = 256, 20_000, 20
    rng = np.random.default_rng(5)
    first, second = rng.normal(size=(2, pairs, size))
    updates = np.concatenate([first, truth * first + math.sqrt(1 - truth**2) * second])
    ours = sketched(updates, np.zeros(size), (size,), width)[:, 0].astype(np.float64)
    errors = []
    for k in range(pairs):
        exact = dot(unit(updates[k]), unit(updates[pairs + k]))
        errors.append(dot(ours[k], ours[pairs + k]) - exact)
    assert max(abs(error) for error in errors) < 4 / math.sqrt(width)
    assert abs(statistics.mean(errors)) < 4 / math.sqrt(width * pairs)


@pytest.mark.parametrize("size", [1e30, 1e-30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_huge_and_tiny_updates_have_the_same_directions(size, dtype):
    sizes = (5, 40, 300)
    updates, model = random_round(4, sizes, dtype=dtype)
    ours = sketched(updates * dtype(size), model, sizes)
    np.testing.assert_allclose(ours, sketched(updates, model, sizes), atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(6)))
def test_another_order_of_clients_only_permutes_the_directions(order):
    sizes = (5, 40, 300)
    updates, model = random_round(6, sizes, dtype=np.float32)
    ours = sketched(updates, model, sizes)
    assert np.array_equal(sketched(updates[list(order)], model, sizes), ours[list(order)])


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


def numbered(number, clients):
    """Sketches that tell the round and the client they belong to."""
    return np.array([[[100.0 * number + row]] for row in range(clients)], dtype=np.float32)


@settings(max_examples=80, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8), limit=st.integers(1, 25))
def test_the_window_keeps_the_last_whole_rounds_that_fit_and_always_the_current(sizes, limit):
    window = Window(limit)
    past = []
    for number, size in enumerate(sizes, start=1):
        clients = [f"{number}-{row}" for row in range(size)]
        window.add(number, clients, numbered(number, size))
        window.note_accepted(np.arange(size) % 2 == number % 2)
        past.append((number, clients))
        # The obvious second computation: from the current round backwards, as long as there is room.
        kept, room = [past[-1]], limit - size
        for earlier in reversed(past[:-1]):
            room -= len(earlier[1])
            if room < 0:
                break
            kept.insert(0, earlier)
        assert window.clients == [client for _, names in kept for client in names]
        assert window.rounds == [number for number, names in kept for _ in names]
        expected = [100.0 * number + row for number, names in kept for row in range(len(names))]
        assert window.sketches[:, 0, 0].tolist() == expected
        accepted = [row % 2 == number % 2 for number, names in kept for row in range(len(names))]
        assert window.accepted.tolist() == accepted


def test_who_was_accepted_is_noted_for_the_rounds_own_submissions_alone():
    window = Window(10)
    window.add(1, ["a", "b"], numbered(1, 2))
    window.note_accepted(np.array([True, False]))
    window.add(2, ["c"], numbered(2, 1))
    assert window.accepted.tolist() == [True, False, False]
    window.note_accepted(np.array([True]))
    assert window.accepted.tolist() == [True, False, True]
    # Of a round of nothing but outliers there is nothing to note.
    window.add(3, [], numbered(3, 0).reshape(0, 1, 1))
    window.note_accepted(np.zeros(0, dtype=bool))
    assert window.accepted.tolist() == [True, False, True]
    assert window.clients == ["a", "b", "c"]


@settings(deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 6), layers=st.integers(1, 3), common=st.floats(0, 3))
def test_how_far_clients_agree_on_average_is_the_mean_cosine_of_all_pairs(seed, count, layers, common):
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
    assert agree_on_average(sketches.astype(np.float32)) == pytest.approx(expected, abs=1e-5)


def test_clients_are_numbered_as_they_first_appear():
    window = Window(10)
    window.add(1, ["b", 7], numbered(1, 2))
    window.add(2, [7, "7", "b"], numbered(2, 3))
    assert window.people().tolist() == [0, 1, 1, 2, 0]


def window_of(rounds, layers, width=WIDTH, seed=0, common=0.0) -> Window:
    """A window of random unit directions; `common` is what all updates share."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(layers, width))
    window = Window(1000)
    for number, clients in enumerate(rounds, start=1):
        sketches = rng.normal(size=(len(clients), layers, width)) + common * shared
        sketches /= np.linalg.norm(sketches, axis=-1, keepdims=True)
        window.add(number, clients, sketches.astype(np.float32))
    return window


def literal_agreement(window: Window):
    count, layers = window.sketches.shape[:2]
    total = [[0.0] * count for _ in range(count)]
    pairs = [(i, j) for i in range(count) for j in range(count) if window.clients[i] != window.clients[j]]
    for layer in range(layers):
        rest = {(i, j): dot(window.sketches[i, layer], window.sketches[j, layer]) for i, j in pairs}
        common = literal_in_common(window, rest)
        for i, j in pairs:
            rest[i, j] -= common[window.rounds[i], window.rounds[j]]
        deviation = 1.4826 * statistics.median([abs(value) for value in rest.values()]) if rest else 0.0
        for (i, j), value in rest.items():
            total[i][j] += min(12.0, max(-6.0, value / max(deviation, 0.01)))
    return np.array(total) / layers


def literal_in_common(window: Window, cosines):
    blocks = defaultdict(dict)
    for (i, j), cosine in cosines.items():
        blocks[window.rounds[i], window.rounds[j]][i, j] = cosine
    medians, lowest, apart = {}, {}, {}
    for key, block in blocks.items():
        medians[key] = statistics.median(block.values())
        rows = [[c for p, c in block.items() if p[0] == i] for i in {p[0] for p in block}]
        columns = [[c for p, c in block.items() if p[1] == j] for j in {p[1] for p in block}]
        lowest[key] = np.quantile([statistics.median(values) for values in rows + columns], 0.1)
        apart[key] = [abs(c - medians[key]) for c in block.values()]
    if not medians:
        return {}
    usual_gap = statistics.median(medians[key] - lowest[key] for key in medians)
    everywhere = statistics.median(c for values in apart.values() for c in values)
    spread = {key: 1.4826 * max(everywhere, statistics.median(values)) for key, values in apart.items()}
    return {
        key: lowest[key] + usual_gap if medians[key] - lowest[key] - usual_gap > spread[key] else medians[key]
        for key in medians
    }


WINDOWS = {
    "one round": [[0, 1, 2, 3, 4, 5]],
    "two rounds of the same clients": [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]],
    "rounds of unequal size": [[0, 1, 2, 3, 4, 5, 6], [2, "a"], [7], [3, "a", 0, 8, 9]],
    "one client in one round": [[0]],
    "one client in three rounds": [[0], [0], [0]],
    "one client a round": [[0], [1], [0], [2], [1]],
    "two clients": [[0, 1], [1]],
}


@pytest.mark.parametrize("common", [0.0, 1.0, 1000.0])
@pytest.mark.parametrize("rounds", WINDOWS.values(), ids=WINDOWS)
def test_agreement_is_the_literal_double_loop(rounds, common):
    window = window_of(rounds, layers=3, common=common)
    np.testing.assert_allclose(agreement(window), literal_agreement(window), atol=2e-4)


@settings(max_examples=25, deadline=None)
@given(
    rounds=st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=6, unique=True), min_size=1, max_size=5),
    layers=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
    common=st.sampled_from([0.0, 0.5, 3.0]),
)
def test_agreement_of_any_window_is_the_literal_double_loop(rounds, layers, seed, common):
    window = window_of(rounds, layers, seed=seed, common=common)
    np.testing.assert_allclose(agreement(window), literal_agreement(window), atol=2e-4)


@pytest.mark.parametrize("attackers", [2, 5, 7, 8])
@pytest.mark.parametrize("before", [1, 5])
def test_attackers_agree_and_others_do_not_however_many_attack_in_one_round(attackers, before):
    count = 10 * (before + 1)
    rounds = [list(range(first, first + 10)) for first in range(0, count, 10)]
    window = window_of(rounds, layers=2, width=512)
    poison = np.random.default_rng(1).normal(size=(2, 512)) / math.sqrt(512)
    last, strangers = np.arange(count) >= 10 * before, ~np.eye(count, dtype=bool)
    attack = np.arange(count) % 10 < np.where(last, attackers, 3)
    window.sketches[attack] += poison.astype(np.float32)
    window.sketches /= np.linalg.norm(window.sketches, axis=-1, keepdims=True)
    found = agreement(window)
    np.testing.assert_allclose(found, literal_agreement(window), atol=2e-4)

    def mean_of(first, second):
        return found[np.ix_(first, second)][strangers[np.ix_(first, second)]].mean()

    assert mean_of(last & attack, last & attack) > 1
    assert mean_of(last & ~attack, last) < 0.5
    assert mean_of(last & attack, attack) > 1


def test_a_client_does_not_agree_with_its_own_past():
    window = window_of([[0, 1, 2, 3]] * 3, layers=2)
    same = np.equal.outer(window.people(), window.people())
    assert (agreement(window)[same] == 0).all()


def test_one_layer_speaks_for_agreement_at_most_12_and_against_it_at_most_6():
    window = window_of([list(range(30))], layers=1, width=4096)
    window.sketches[1] = window.sketches[0]
    window.sketches[2] = -window.sketches[0]
    found = agreement(window)
    assert found[0, 1] == pytest.approx(12)
    assert found[0, 2] == pytest.approx(-6)
    assert found.max() <= 12
    assert found.min() >= -6


def test_idle_clients_agree_with_nobody_more_than_usual():
    window = window_of([list(range(20))], layers=2, width=512)
    window.sketches[:3] = 0
    found = agreement(window)
    np.testing.assert_allclose(found, literal_agreement(window), atol=2e-4)
    assert np.abs(found[:3]).max() < 1


def test_another_order_within_the_rounds_only_permutes_the_agreement():
    window = window_of([[0, 1, 2, 3, 4], [5, 1, 6], [0, 2, 7, 8]], layers=3)
    order = np.array([3, 1, 0, 4, 2, 7, 5, 6, 11, 9, 8, 10])
    turned = Window(1000, [window.clients[i] for i in order], window.rounds, window.sketches[order], np.zeros(12))
    np.testing.assert_allclose(agreement(turned), agreement(window)[np.ix_(order, order)], atol=1e-4)
