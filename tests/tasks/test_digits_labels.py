"""Wrong labels in the training images of `digits`."""

from __future__ import annotations

import pytest
import torch

from g2uardfl import tasks
from g2uardfl.core.errors import ConfigError


def test_without_the_setting_all_labels_are_those_of_the_data_set():
    task = tasks.create("digits")
    assert torch.equal(task.train.y, task.load_train().y)
    assert torch.equal(task.train.y, tasks.create("digits", wrong_labels=0).train.y)


def test_about_the_given_share_of_the_training_labels_is_wrong_and_always_the_same():
    clean, noisy = tasks.create("digits"), tasks.create("digits", wrong_labels=0.15)
    share = (clean.train.y != noisy.train.y).double().mean().item()
    assert 0.12 < share < 0.18  # 1,437 images: three standard errors are 0.03
    assert torch.equal(noisy.train.y, tasks.create("digits", wrong_labels=0.15).train.y)
    assert torch.equal(clean.test.y, noisy.test.y)
    assert torch.equal(clean.train.x, noisy.train.x)


def test_a_wrong_label_is_another_digit():
    clean, noisy = tasks.create("digits"), tasks.create("digits", wrong_labels=1.0)
    assert not (clean.train.y == noisy.train.y).any()
    assert set(noisy.train.y.tolist()) == set(range(10))


@pytest.mark.parametrize("share", [-0.1, 1.1, True, "many", None, float("nan")])
def test_a_share_outside_0_to_1_is_rejected(share):
    with pytest.raises(ConfigError, match=r"wrong_labels=.* is not allowed: it must be a number from 0 to 1"):
        tasks.create("digits", wrong_labels=share)
