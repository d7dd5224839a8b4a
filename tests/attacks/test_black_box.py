"""Poisoned data and the black-box attack, against literal SGD on the mixed samples."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from g2uardfl import tasks
from g2uardfl.attacks.base import poisoned_count
from g2uardfl.training.local import Job
from helpers.attacking import RECIPE, act, assert_close, enlisted, train_by_hand, training_turn


@given(total=st.integers(0, 300), pdr=st.floats(0, 1))
def test_the_number_of_poisoned_samples_is_the_rounded_share_with_at_least_one_of_each_kind(total, pdr):
    count = poisoned_count(total, pdr)
    assert 0 <= count <= total
    if pdr in (0, 1):
        assert count == pdr * total
    elif total >= 2:
        assert 1 <= count <= total - 1
        assert abs(count - pdr * total) <= 1


def test_black_box_mixes_different_backdoored_samples_with_unchanged_own_samples():
    digits = tasks.create("digits")
    attack = enlisted("black_box", digits)
    clean = digits.train.take(torch.arange(100, 160))
    mixed = attack.training_data(0, clean, 0.3, torch.Generator().manual_seed(1))
    own = Counter((image.numpy().tobytes(), int(label)) for image, label in zip(clean.x, clean.y, strict=True))
    pool = Counter(image.numpy().tobytes() for image in digits.backdoor_train.x)
    poisoned = Counter(image.numpy().tobytes() for image in mixed.x[42:])
    kept = Counter(
        (image.numpy().tobytes(), int(label)) for image, label in zip(mixed.x[:42], mixed.y[:42], strict=True)
    )
    assert len(mixed) == 60
    assert kept <= own
    assert poisoned <= pool
    assert (mixed.y[42:] == 0).all()


def test_black_box_sends_the_result_of_honest_training_on_the_mixed_data(patches, start):
    attack = enlisted("black_box", patches)
    turn = training_turn(attack, start, {1: 40, 9: 50})
    _, sent = act(attack, turn)
    (member,) = turn.members
    assert_close(sent[1], train_by_hand(patches, start, Job(1, member.poisoned, RECIPE, member.seed)))


@pytest.mark.parametrize("name", ["black_box", "pgd", "pgd_replacement", "constrain_and_scale"])
def test_edge_case_attacks_are_measured_on_the_tasks_backdoor(patches, name):
    assert enlisted(name, patches).backdoor_test() is patches.backdoor_test
