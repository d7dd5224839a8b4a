"""The steps that are kept of the last rounds, so that the model can go back."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.defense.agreement.undoing import Steps


def step_of(number: int) -> torch.Tensor:
    return torch.tensor([float(number), -1.0, 0.5**number])


def filled(last: int) -> Steps:
    steps = Steps()
    for number in range(1, last + 1):
        steps.add(number, step_of(number))
    return steps


@pytest.mark.parametrize(
    ("rounds", "lengths"), [(1, [1]), (2, [1, 1]), (3, [2, 1]), (4, [2, 1, 1]), (6, [2, 2, 1, 1]), (7, [4, 2, 1])]
)
def test_the_longer_ago_the_coarser(rounds, lengths):
    assert [len(block.rounds) for block in filled(rounds).blocks] == lengths


@settings(deadline=None)
@given(st.integers(1, 200))
def test_few_blocks_hold_all_rounds_in_order(last):
    steps = filled(last)
    assert [number for block in steps.blocks for number in block.rounds] == list(range(1, last + 1))
    assert len(steps.blocks) <= 2 * math.log2(last + 1)


@settings(deadline=None)
@given(st.lists(st.sets(st.integers(1, 60), max_size=2), min_size=1, max_size=60))
def test_going_back_takes_every_step_since_the_first_of_the_rounds(wishes):
    steps, kept = Steps(), []
    for number, wanted in enumerate(wishes, start=1):
        steps.add(number, step_of(number))
        kept.append(number)
        blocks = [block.rounds for block in steps.blocks]
        taken = steps.take_since(wanted)
        # The obvious second computation: everything from the first block on that holds one of the rounds.
        holding = [place for place, rounds in enumerate(blocks) if wanted & set(rounds)]
        expected = [each for rounds in blocks[min(holding) :] for each in rounds] if holding else []
        if taken is None:
            assert expected == []
        else:
            assert list(taken.rounds) == expected
            moved = torch.stack([step_of(each) for each in taken.rounds]).sum(dim=0)
            torch.testing.assert_close(taken.step.float(), moved, rtol=0.02, atol=1e-2)
        kept = [each for each in kept if each not in expected]
        assert [each for block in steps.blocks for each in block.rounds] == kept
        assert not wanted & set(kept)


def test_what_ended_long_ago_is_forgotten():
    steps = filled(7)  # rounds 1 to 4, 5 and 6, 7
    steps.forget(before=4)
    assert [block.rounds for block in steps.blocks] == [(1, 2, 3, 4), (5, 6), (7,)]
    steps.forget(before=5)
    assert [block.rounds for block in steps.blocks] == [(5, 6), (7,)]
    assert steps.take_since([1, 2]) is None


def test_blocks_of_a_resumed_guard_join_those_of_its_device():
    steps = Steps()
    for number, device in enumerate(["cpu", "cpu", "meta"], start=1):  # "meta" stands for a GPU
        steps.add(number, torch.zeros(3, device=device))
    assert {block.step.device.type for block in steps.blocks} == {"meta"}
    joined = steps.take_since([1])
    assert joined.rounds == (1, 2, 3)
    assert joined.step.device.type == "meta"
