"""How far clients learn the same, and the smallest change that nearly all of them support."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from g2uardfl.core.layout import ModelLayout
from g2uardfl.core.updates import SentUpdates
from g2uardfl.defense.agreement.consensus import Learning, consensus
from helpers.graphs import drawn_sketches, unit

# Learning.


def sketches_with(cosine: float, clients: int = 10, seed: int = 0) -> np.ndarray:
    """Sketches of clients whose cosines with each other are about that, in each of twenty layers."""
    return drawn_sketches(seed, clients, 20, 1024, common=math.sqrt(cosine / (1 - cosine)))


def learning_after(*rounds: np.ndarray) -> Learning:
    learning = Learning()
    for sketches in rounds:
        learning.add(sketches)
    return learning


@pytest.mark.parametrize(("cosine", "share"), [(0.0, 0.0), (0.02, 0.0), (0.055, 0.5), (0.09, 1.0), (0.5, 1.0)])
def test_learning_grows_from_0_to_1_between_cosines_of_a_converged_and_of_a_new_model(cosine, share):
    sketches = [sketches_with(cosine, seed=seed) for seed in range(5)]
    assert learning_after(*sketches).share == pytest.approx(share, abs=0.1)


def test_before_five_rounds_are_known_nothing_is_learnt():
    found = [learning_after(*[sketches_with(0.2)] * rounds) for rounds in range(7)]
    assert [one.share for one in found] == [0, 0, 0, 0, 0, 1, 1]
    assert [one.has_history for one in found] == [False] * 5 + [True] * 2


def test_learning_is_the_median_of_the_last_five_rounds():
    before, after = sketches_with(0.5), sketches_with(0.0)
    assert learning_after(*[before] * 9, *[after] * 2).share == 1
    assert learning_after(*[before] * 9, *[after] * 3).share == 0


def test_learning_is_a_median_over_clients():
    """A client's cosine is the mean over the nine others; worked by hand for orthogonal and equal directions."""
    sketches = np.eye(10, dtype=np.float32)[[0, 0, 0, 0, 0, 0, 6, 7, 8, 9]][:, None]
    # Six clients have a mean cosine of 5/9, four of 0.
    assert learning_after(sketches).cosines == pytest.approx([5 / 9])
    sketches = np.eye(10, dtype=np.float32)[[0, 0, 0, 0, 4, 5, 6, 7, 8, 9]][:, None]
    assert learning_after(sketches).cosines == [0.0]


@given(st.integers(1, 4), st.integers(0, 100))
def test_a_minority_with_one_direction_does_not_look_like_learning(attackers, seed):
    sketches = unit(np.random.default_rng(seed).normal(size=(10, 2, 4096)))
    sketches[:attackers] = sketches[0]
    assert learning_after(*[sketches] * 5).share == 0


@given(st.permutations(range(6)))
def test_the_order_of_clients_does_not_change_learning(order):
    sketches = drawn_sketches(0, 6, 2, 64, common=0.3)
    assert learning_after(sketches[order]).cosines == pytest.approx(learning_after(sketches).cosines)


@pytest.mark.parametrize("clients", [0, 1])
def test_fewer_than_two_clients_have_nothing_in_common(clients):
    assert learning_after(*[sketches_with(0.9, clients=clients)] * 5).share == 0


# Consensus.


def slow_consensus(updates, factors, dissent: float) -> list[float]:
    """For each parameter the largest t >= 0, or the smallest t <= 0, that enough clients support.

    A client supports the changes between 0 and its own.
    """
    rows = [[factor * x for x in row] for row, factor in zip(updates, factors, strict=True) if factor]
    if not rows:
        return [0.0] * len(updates[0])
    dissenting = min(int(dissent * len(rows) + 1e-9), (len(rows) - 1) // 2)
    required = len(rows) - dissenting
    result = []
    for column in zip(*rows, strict=True):
        up = [t for t in column if t > 0 and sum(x >= t for x in column) >= required]
        down = [t for t in column if t < 0 and sum(x <= t for x in column) >= required]
        assert not (up and down)
        result.append(max(up, default=0.0) + min(down, default=0.0))
    return result


values = st.integers(-4, 4).map(float)
rounds = st.integers(1, 20).flatmap(
    lambda clients: st.lists(st.lists(values, min_size=3, max_size=3), min_size=clients, max_size=clients)
)
dissents = st.sampled_from([0.0, 0.1, 0.15, 0.2, 0.3, 0.45, 0.5])


def found(updates, factors, dissent: float) -> torch.Tensor:
    return consensus(torch.tensor(updates, dtype=torch.float64), np.array(factors, dtype=float), dissent)


@given(rounds, dissents, st.data())
def test_the_consensus_is_the_largest_change_that_enough_clients_support(updates, dissent, data):
    factors = data.draw(
        st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=len(updates), max_size=len(updates)), label="factors"
    )
    assert found(updates, factors, dissent).tolist() == slow_consensus(updates, factors, dissent)


@pytest.mark.parametrize(
    ("column", "dissent", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0.0, 1),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0.15, 2),
        ([-1, -2, -3, -4, -5, -6, -7, -8, -9, -10], 0.15, -2),
        ([-9, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0.15, 2),
        ([-9, -1, 3, 4, 5, 6, 7, 8, 9, 10], 0.15, 0),
        ([-9, -1, 3, 4, 5, 6, 7, 8, 9, 10], 0.2, 3),
        ([0, 0, 3, 4, 5, 6, 7, 8, 9, 10], 0.15, 0),
        ([-1, 5, 7], 0.15, 0),
        ([-1, 5, 7], 0.5, 5),
        ([-1, 5], 0.5, 0),
        ([4], 0.5, 4),
    ],
)
def test_consensus_worked_by_hand(column, dissent, expected):
    assert found([[float(x)] for x in column], [1.0] * len(column), dissent).tolist() == [expected]


@given(rounds, dissents, st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(updates, dissent, random):
    shuffled = random.sample(updates, len(updates))
    ones = [1.0] * len(updates)
    assert torch.equal(found(updates, ones, dissent), found(shuffled, ones, dissent))


def test_the_consensus_is_that_of_values_sorted_by_numpy():
    updates = np.random.default_rng(0).normal(0.5, 1.0, size=(20, 500))
    ordered = np.sort(updates, axis=0)
    for dissent, dissenting in ((0.0, 0), (0.15, 3), (0.5, 9)):
        low, high = ordered[dissenting], ordered[19 - dissenting]
        expected = np.where(low > 0, low, np.where(high < 0, high, 0.0))
        assert found(updates.tolist(), [1.0] * 20, dissent).tolist() == expected.tolist()


@given(rounds, dissents, st.sampled_from([-4.0, -1.0, 0.5, 8.0]))
def test_the_consensus_scales_with_the_updates(updates, dissent, factor):
    scaled = [[factor * x for x in row] for row in updates]
    ones = [1.0] * len(updates)
    assert torch.equal(found(scaled, ones, dissent), factor * found(updates, ones, dissent))


@given(rounds, dissents)
def test_a_change_is_that_of_one_of_the_clients_or_none(updates, dissent):
    changes = found(updates, [1.0] * len(updates), dissent).tolist()
    for column, change in zip(zip(*updates, strict=True), changes, strict=True):
        assert change == 0 or change in column


@st.composite
def attacked(draw):
    """Honest updates, arbitrary updates of a minority that may dissent, and the share that may."""
    clients, dissent = draw(st.integers(2, 20)), draw(dissents)
    attackers = draw(st.integers(0, min(int(dissent * clients + 1e-9), (clients - 1) // 2)))

    def rows_of(count: int, of: st.SearchStrategy) -> list[list[float]]:
        return draw(st.lists(st.lists(of, min_size=3, max_size=3), min_size=count, max_size=count))

    return rows_of(clients - attackers, values), rows_of(attackers, st.floats(-1e6, 1e6)), dissent


@given(attacked())
def test_attackers_within_the_dissent_move_no_parameter_further_than_honest_clients_support(drawn):
    """All but k of the honest clients support each change, where k clients may dissent."""
    honest, hostile, dissent = drawn
    clients = len(honest) + len(hostile)
    dissenting = min(int(dissent * clients + 1e-9), (clients - 1) // 2)
    changes = found(honest + hostile, [1.0] * clients, dissent).tolist()
    for column, change in zip(zip(*honest, strict=True), changes, strict=True):
        ordered = sorted(column)
        assert min(0.0, ordered[-1 - dissenting]) <= change <= max(0.0, ordered[dissenting])


@given(attacked())
def test_attackers_within_the_dissent_cause_no_change_in_a_direction_that_no_honest_client_supports(drawn):
    honest, hostile, dissent = drawn
    changes = found(honest + hostile, [1.0] * (len(honest) + len(hostile)), dissent).tolist()
    for column, change in zip(zip(*honest, strict=True), changes, strict=True):
        assert change <= 0 or any(x > 0 for x in column)
        assert change >= 0 or any(x < 0 for x in column)


def test_of_few_clients_a_majority_must_support_a_change_for_any_dissent():
    assert found([[5.0], [-5.0]], [1.0, 1.0], 0.5).tolist() == [0.0]
    assert found([[5.0], [-5.0], [2.0]], [1.0] * 3, 0.5).tolist() == [2.0]


@pytest.mark.parametrize("dissent", [0.0, 0.5])
def test_without_clients_nothing_changes(dissent):
    assert found([[1.0, 2.0], [3.0, 4.0]], [0.0, 0.0], dissent).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clients", [3, 10, 25])
def test_messages_that_are_read_in_blocks_give_the_same(dtype, clients):
    """An update is subtracted while it is read; more columns than fit into one block."""
    rng = np.random.default_rng(0)
    start = torch.from_numpy(rng.normal(size=300_000)).to(dtype)
    updates = torch.from_numpy(rng.normal(0.3, 1.0, size=(clients, len(start)))).to(dtype)
    layout = ModelLayout.of({"w": start.numpy()})
    lazy = SentUpdates(layout, start, [{"w": (start + row).numpy()} for row in updates])
    factors = rng.uniform(0, 1, size=clients)
    factors[1] = 0.0
    assert torch.equal(consensus(lazy, factors, 0.15), consensus(lazy.matrix, factors, 0.15))
    assert consensus(lazy, factors, 0.15).dtype == dtype
