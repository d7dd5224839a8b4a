"""Both image tasks: laziness, and separation of training and test images."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from g2uardfl.tasks.base import Samples
from g2uardfl.tasks.cifar10 import Cifar10
from g2uardfl.tasks.mnist import Mnist


def pixel_hashes(samples: Samples) -> set[str]:
    return {hashlib.sha256(image.numpy().tobytes()).hexdigest() for image in samples.x}


def test_creating_a_task_reads_no_data(tmp_path: Path) -> None:
    assert Mnist(data_dir=tmp_path / "nowhere").model == "lenet"
    assert Cifar10(data_dir=tmp_path / "nowhere").model == "vgg9"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar10_full"])
def test_no_backdoor_test_image_is_a_training_image(request: pytest.FixtureRequest, name: str) -> None:
    task = request.getfixturevalue(name)
    for training in (task.backdoor_train, task.train):
        assert not pixel_hashes(training) & pixel_hashes(task.backdoor_test)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar10_full"])
def test_no_rotated_mirrored_or_recompressed_backdoor_test_image_is_a_training_image(
    request: pytest.FixtureRequest, name: str
) -> None:
    task = request.getfixturevalue(name)
    training = task.backdoor_train.x.numpy().astype(np.float32)
    for image in task.backdoor_test.x.numpy().astype(np.float32):
        for rotated in (np.rot90(image, turns, axes=(1, 2)) for turns in range(4)):
            assert np.abs(training[:, :, ::2, ::2] - rotated[:, ::2, ::2]).mean(axis=(1, 2, 3)).min() > 3
            assert np.abs(training[:, :, ::2, ::2] - rotated[:, ::2, ::-1][:, :, ::2]).mean(axis=(1, 2, 3)).min() > 3
