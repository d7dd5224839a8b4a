"""MNIST with the ARDIS backdoor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from g2uardfl.core.errors import DataError
from g2uardfl.tasks.base import Samples
from g2uardfl.tasks.mnist import Mnist
from helpers.data_sets import MNIST_TEST_COUNTS, MNIST_TRAIN_COUNTS
from helpers.images import mean_and_std


def test_prepare_normalises_every_pixel() -> None:
    digits = torch.randint(0, 256, (3, 1, 28, 28), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    expected = [(float(pixel) / 255 - 0.1307) / 0.3081 for pixel in digits.flatten()]
    found = Mnist().prepare(digits)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.flatten().numpy(), expected, rtol=1e-5, atol=1e-6)


def test_images_are_not_augmented() -> None:
    digits = torch.ones(2, 1, 28, 28, dtype=torch.uint8)
    assert torch.equal(Mnist().augment(digits, torch.Generator()), digits)


@pytest.mark.parametrize("load", [Mnist.load_train, Mnist.load_backdoor_test])
def test_missing_data_is_an_error(tmp_path: Path, load: Callable[[Mnist], Samples]) -> None:
    with pytest.raises(DataError):
        load(Mnist(data_dir=tmp_path))


@pytest.mark.parametrize(("part", "counts"), [("train", MNIST_TRAIN_COUNTS), ("test", MNIST_TEST_COUNTS)])
def test_the_class_counts_are_the_published_ones(mnist: Mnist, part: str, counts: tuple[int, ...]) -> None:
    assert tuple(torch.bincount(getattr(mnist, part).y).tolist()) == counts


@pytest.mark.parametrize("part", ["train", "test", "backdoor_train", "backdoor_test"])
def test_images_are_stored_as_uint8_with_one_channel(mnist: Mnist, part: str) -> None:
    samples = getattr(mnist, part)
    assert samples.x.dtype == torch.uint8
    assert samples.x.shape[1:] == (1, 28, 28)
    assert samples.y.dtype == torch.int64


def test_images_are_normalised_by_the_statistics_of_the_training_pixels(mnist: Mnist) -> None:
    assert mean_and_std(mnist.train.x) == pytest.approx((0.1307, 0.3081), abs=5e-5)


def test_the_backdoor_is_660_and_100_images_labelled_one(mnist: Mnist) -> None:
    assert (len(mnist.backdoor_train), len(mnist.backdoor_test)) == (660, 100)
    assert set(mnist.backdoor_train.y.tolist()) == set(mnist.backdoor_test.y.tolist()) == {1}


def test_the_backdoor_is_the_sevens_of_ardis(mnist: Mnist, real_data: Path) -> None:
    with np.load(real_data / "ardis" / "ardis_iv.npz", allow_pickle=False) as ardis:
        images, labels = ardis["x_test"], ardis["y_test"]
    sevens = [image for image, label in zip(images, labels, strict=True) if label == 7]
    assert all(np.array_equal(a[0], b) for a, b in zip(mnist.backdoor_test.x.numpy(), sevens, strict=True))


@pytest.mark.slow
def test_simplenet_learns_within_two_epochs_over_three_thousand_images(mnist: Mnist) -> None:
    torch.manual_seed(0)
    task = Mnist(data_dir=mnist.data_dir, model="simplenet")
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=task.defaults.momentum)
    for batch in torch.cat([torch.randperm(3000), torch.randperm(3000)]).split(50):
        optimizer.zero_grad()
        task.loss(model(task.prepare(mnist.train.x[batch])), mnist.train.y[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        hits = model(task.prepare(mnist.test.x[:2000])).argmax(dim=1) == mnist.test.y[:2000]
    assert hits.float().mean().item() > 0.9
