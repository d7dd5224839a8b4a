"""`mix_backdoor`: the share of backdoored samples in an attacker's training data."""

from __future__ import annotations

import pytest
import torch

from g2uardfl import tasks
from g2uardfl.attacks.base import mix_backdoor

DIGITS = tasks.create("digits")


def has_trigger(samples):
    return (samples.x[:, :, 6:, 6:] == 16).flatten(1).all(dim=1)


@pytest.mark.parametrize("pdr", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_pdr_is_the_fraction_of_backdoored_samples(pdr):
    clean = DIGITS.train.take(torch.arange(40))
    mixed = mix_backdoor(DIGITS, clean, pdr, torch.Generator().manual_seed(0))
    assert len(mixed) == 40
    assert int((has_trigger(mixed) & (mixed.y == 0)).sum()) == round(pdr * 40)


def test_a_client_with_two_samples_has_one_of_each_kind():
    mixed = mix_backdoor(DIGITS, DIGITS.train.take(torch.arange(2)), 0.1, torch.Generator())
    assert len(mixed) == 2
    assert int(has_trigger(mixed).sum()) == 1


def test_backdoored_samples_repeat_only_when_all_have_been_used():
    pool = len(DIGITS.backdoor_train)
    clean = DIGITS.train.take(torch.arange(pool + 10) % len(DIGITS.train))
    mixed = mix_backdoor(DIGITS, clean, 1.0, torch.Generator().manual_seed(0))
    counts = torch.unique(mixed.x.flatten(1), dim=0, return_counts=True)[1]
    most_in_pool = torch.unique(DIGITS.backdoor_train.x.flatten(1), dim=0, return_counts=True)[1].max()
    assert counts.max() <= 2 * most_in_pool
