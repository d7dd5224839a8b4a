"""DBA: where the bars are, who trains with which, and what ASR is measured on."""

from __future__ import annotations

import pytest
import torch

from g2uardfl import tasks
from g2uardfl.core.errors import ConfigError
from g2uardfl.tasks.base import Samples, Task
from g2uardfl.tasks.cifar10 import Cifar10
from g2uardfl.tasks.mnist import Mnist
from helpers.attacking import enlisted

MNIST_BARS = [(row, column) for row in (0, 3) for column in (0, 1, 2, 3, 6, 7, 8, 9)]
CIFAR_BARS = [(row, column) for row in (0, 4) for column in (0, 1, 2, 3, 4, 5, 9, 10, 11, 12, 13, 14)]


def with_pictures(task: Task, channels: int, side: int, count: int = 60) -> Task:
    """The task with random pictures without white pixels instead of its data."""
    generator = torch.Generator().manual_seed(0)
    for part in ("train", "test"):
        x = torch.randint(0, 255, (count, channels, side, side), generator=generator, dtype=torch.uint8)
        setattr(task, part, Samples(x, torch.arange(count) % 10))
    return task


MNIST_AND_CIFAR = pytest.mark.parametrize(
    ("task", "pixels"),
    [(with_pictures(Mnist(), 1, 28), MNIST_BARS), (with_pictures(Cifar10(), 3, 32), CIFAR_BARS)],
    ids=["mnist", "cifar10"],
)


@MNIST_AND_CIFAR
def test_the_global_trigger_is_white_at_the_papers_pixels_and_nowhere_else(task, pixels):
    attack = enlisted("dba", task)
    found = attack.backdoor_test()
    expected = task.test.x[task.test.y != 2].clone()
    for row, column in pixels:
        expected[:, :, row, column] = 255
    assert torch.equal(found.x, expected)
    assert (found.y == 2).all()


@MNIST_AND_CIFAR
def test_the_bars_are_1_before_normalisation(task, pixels):
    triggered = enlisted("dba", task).backdoor_test().x
    normalised, white = task.prepare(triggered), task.prepare(torch.full_like(triggered, 255))
    for row, column in pixels:
        assert torch.equal(normalised[:, :, row, column], white[:, :, row, column])
        assert (triggered[:, :, row, column].float() / 255 == 1).all()


@MNIST_AND_CIFAR
def test_four_attackers_train_with_one_bar_each_and_together_with_the_whole_trigger(task, pixels):
    attack = enlisted("dba", task, team=[30, 4, 17, 21, 40, 55, 60, 61, 99])
    clean = task.train
    bars = []
    for client in sorted([30, 4, 17, 21, 40, 55, 60, 61, 99]):
        own = attack.training_data(client, clean, 1.0, torch.Generator().manual_seed(client))
        white = (own.x == 255).all(dim=0).all(dim=0)
        bars.append({(int(row), int(column)) for row, column in white.nonzero()})
        assert (own.y == 2).all()
    half = len(pixels) // 4
    assert bars[:4] == [set(pixels[i * half : (i + 1) * half]) for i in range(4)]
    assert sum(len(bar) for bar in bars[:4]) == len(set.union(*bars[:4])) == len(pixels)
    assert set.union(*bars[:4]) == set(pixels)
    assert bars[4:8] == bars[:4]
    assert bars[8] == bars[0]


def test_a_share_of_the_pictures_has_the_bar_and_the_others_are_unchanged():
    task = with_pictures(Mnist(), 1, 28)
    attack = enlisted("dba", task)
    mixed = attack.training_data(0, task.train, 0.25, torch.Generator().manual_seed(0))
    triggered = (mixed.x[:, 0, 0, :4] == 255).all(dim=1)
    assert len(mixed) == 60
    assert int(triggered.sum()) == 15
    own = {(image.numpy().tobytes(), int(label)) for image, label in zip(task.train.x, task.train.y, strict=True)}
    for image, label, marked in zip(mixed.x, mixed.y, triggered, strict=True):
        assert label == 2 if marked else (image.numpy().tobytes(), int(label)) in own
    without_bar = mixed.x[triggered].clone()
    without_bar[:, :, 0, :4] = 0
    originals = task.train.x.clone()
    originals[:, :, 0, :4] = 0
    assert {image.numpy().tobytes() for image in without_bar} <= {image.numpy().tobytes() for image in originals}
    assert not (task.train.x == 255).any()


@pytest.mark.parametrize("target", [0, 7])
def test_asr_is_measured_without_the_target_class(target):
    digits = tasks.create("digits")
    found = enlisted("dba", digits, target=target).backdoor_test()
    assert len(found) == int((digits.test.y != target).sum())
    assert torch.equal(found.x[:, :, 5:], digits.test.x[digits.test.y != target][:, :, 5:])
    assert (found.y == target).all()


def test_size_gap_and_shift_place_the_bars():
    task = with_pictures(Mnist(), 1, 28)
    found = enlisted("dba", task, size=5, gap=4, shift=2).backdoor_test().x
    white = {(int(row), int(column)) for row, column in (found == 255).all(dim=0).all(dim=0).nonzero()}
    assert white == {(row, column) for row in (2, 7) for column in (2, 3, 4, 5, 6, 11, 12, 13, 14, 15)}


@pytest.mark.parametrize("given", [{"size": 14, "gap": 1}, {"gap": 27}, {"shift": 19}])
def test_bars_that_do_not_fit_are_rejected(given):
    with pytest.raises(ConfigError, match="do not fit 28x28"):
        enlisted("dba", with_pictures(Mnist(), 1, 28), **given)
