"""Snapshots of earlier models: few, spaced over the rounds, and exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.aggregators.base import Round
from g2uardfl.core.layout import ModelLayout
from g2uardfl.defense.agreement.rollback import Snapshots
from helpers.models import batch_norm_model, same


def round_of(number: int | None, weights) -> Round:
    layout = ModelLayout.of(weights)
    empty = torch.zeros(0, layout.num_parameters)
    return Round(layout, layout.flatten(weights), (), empty, np.zeros(0), global_weights=weights, number=number)


def model_of(number: int):
    """A model from which the round can be read."""
    return {"w": np.full(3, number, np.float32)}


def filled(rounds: int, first: int = 1) -> Snapshots:
    snapshots = Snapshots()
    for number in range(first, first + rounds):
        snapshots.add(number, round_of(number, model_of(number)))
    return snapshots


def spans(snapshots: Snapshots) -> list[int]:
    return [len(one.rounds) for one in snapshots.kept]


@pytest.mark.parametrize(
    ("rounds", "expected"), [(1, [1]), (2, [1, 1]), (3, [2, 1]), (4, [2, 1, 1]), (6, [2, 2, 1, 1]), (7, [4, 2, 1])]
)
def test_of_three_spans_of_equal_length_the_older_two_are_merged(rounds, expected):
    assert spans(filled(rounds)) == expected


@pytest.mark.parametrize("rounds", [1, 2, 3, 10, 64, 100, 255])
def test_few_snapshots_cover_all_rounds_and_are_spaced_the_wider_the_older(rounds):
    snapshots = filled(rounds)
    assert [number for one in snapshots.kept for number in one.rounds] == list(range(1, rounds + 1))
    assert len(snapshots.kept) <= 2 * math.log2(rounds) + 2
    lengths = spans(snapshots)
    assert lengths == sorted(lengths, reverse=True)
    # Going back from any round to the snapshot before it loses no more rounds than have passed since.
    for one in snapshots.kept:
        assert len(one.rounds) <= rounds - one.rounds[-1] + 1
    assert all(one.model.vector[0] == one.rounds[0] == one.number for one in snapshots.kept)


@pytest.mark.parametrize("window", [1, 2, 7, 30])
@pytest.mark.parametrize("rounds", [1, 5, 100])
def test_a_window_of_rounds_bounds_the_snapshots(rounds, window):
    snapshots = Snapshots()
    for number in range(1, rounds + 1):
        snapshots.forget(before=max(1, number - window + 1))
        snapshots.add(number, round_of(number, model_of(number)))
        assert len(snapshots.kept) <= 2 * math.log2(window) + 3
    snapshots.forget(before=max(1, rounds - window + 1))
    assert len(snapshots.kept) <= 2 * math.log2(window) + 2
    covered = {number for one in snapshots.kept for number in one.rounds}
    assert covered >= set(range(max(1, rounds - window + 1), rounds + 1))


@settings(deadline=None)
@given(st.lists(st.sets(st.integers(1, 60), max_size=2), min_size=1, max_size=60))
def test_the_snapshot_found_is_the_latest_before_all_of_the_rounds(wishes):
    snapshots = Snapshots()
    for number, wanted in enumerate(wishes, start=1):
        snapshots.add(number, round_of(number, model_of(number)))
        kept = list(snapshots.kept)
        found = snapshots.before(wanted)
        # The obvious second computation, over single rounds: those since the first wanted one that is covered.
        covered = sorted({each for one in kept for each in one.rounds} & wanted)
        if not covered:
            assert found is None
            continue
        starts = [one.rounds[0] for one in kept]
        start = max(each for each in starts if each <= covered[0])
        assert found.rounds[0] == found.number == start
        assert found.model.vector.tolist() == [start] * 3
        assert snapshots.kept == kept
        snapshots.drop_from(found)
        assert [one.rounds[0] for one in snapshots.kept] == [each for each in starts if each < start]


def test_snapshots_of_rounds_before_the_window_are_forgotten():
    snapshots = filled(7)  # rounds 1 to 4, 5 and 6, 7
    snapshots.forget(before=4)
    assert [one.rounds for one in snapshots.kept] == [(1, 2, 3, 4), (5, 6), (7,)]
    snapshots.forget(before=5)
    assert [one.rounds for one in snapshots.kept] == [(5, 6), (7,)]
    assert snapshots.before([1, 2]) is None


def test_the_callers_number_names_the_round_where_there_is_one():
    snapshots = Snapshots()
    for number, callers in ((1, 40), (2, 41), (3, None)):
        snapshots.add(number, round_of(callers, model_of(number)))
    assert [(one.rounds, one.number) for one in snapshots.kept] == [((1, 2), 40), ((3,), 3)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("saved", [False, True])
def test_a_snapshot_rebuilds_the_whole_model_bit_for_bit(dtype, saved):
    weights = {name: value.to(dtype) if value.is_floating_point() else value for name, value in
               batch_norm_model().items()}  # fmt: skip
    weights["1.running_mean"] += torch.randn(4, generator=torch.Generator().manual_seed(0)).to(dtype)
    weights["1.num_batches_tracked"] += 2**40
    snapshots, round_ = Snapshots(), round_of(1, weights)
    snapshots.add(1, round_)
    if saved:
        state, snapshots = snapshots.state(), Snapshots()
        snapshots.restore(state)
    found = snapshots.before([1])
    rebuilt = round_.layout.rebuild(weights, found.model.vector, found.model.buffers)
    assert {name: value.dtype for name, value in rebuilt.items()} == {n: v.dtype for n, v in weights.items()}
    assert same({n: v.double() for n, v in rebuilt.items()}, {n: v.double() for n, v in weights.items()})


def test_later_changes_of_the_model_do_not_reach_its_snapshot():
    weights, snapshots = batch_norm_model(), Snapshots()
    expected = {name: value.clone() for name, value in weights.items()}
    round_ = round_of(1, weights)
    snapshots.add(1, round_)
    for value in weights.values():
        value += 1
    found = snapshots.before([1])
    assert same(round_.layout.rebuild(weights, found.model.vector, found.model.buffers), expected)
