"""CIFAR-10 with the Southwest backdoor."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import pytest
import torch

from g2uardfl.core.errors import ConfigError, DataError
from g2uardfl.tasks import cifar10 as cifar10_module
from g2uardfl.tasks.base import Samples
from g2uardfl.tasks.cifar10 import Cifar10, without_photos_of
from helpers.images import mean_and_std, random_images


def southwest_stand_in(**arrays: np.ndarray) -> Callable[..., dict[str, np.ndarray]]:
    """A function like `load_arrays` for a Southwest file with these arrays."""

    def load_arrays(file: str, data_dir: Path | None, *, only: Collection[str]) -> dict[str, np.ndarray]:
        assert file == "southwest/southwest.npz"
        return {name: array for name, array in arrays.items() if name in only}

    return load_arrays


def every_crop_and_mirror(image: np.ndarray) -> dict[bytes, tuple[int, int, bool]]:
    """All 162 crops and mirrored crops of an image by their bytes, with row, column and mirroring."""
    padded = np.zeros((3, 40, 40), dtype=np.uint8)
    padded[:, 4:36, 4:36] = image
    found = {}
    for top in range(9):
        for left in range(9):
            crop = padded[:, top : top + 32, left : left + 32]
            found[crop.tobytes()] = (top, left, False)
            found[crop[:, :, ::-1].tobytes()] = (top, left, True)
    return found


def test_prepare_normalises_each_channel() -> None:
    images = random_images(5)
    mean, std = (0.49139968, 0.48215841, 0.44653091), (0.24703223, 0.24348513, 0.26158784)
    found = Cifar10().prepare(images)
    assert found.dtype == torch.float32
    for channel in range(3):
        expected = (images[:, channel].numpy().astype(np.float64) / 255 - mean[channel]) / std[channel]
        np.testing.assert_allclose(found[:, channel].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_prepare_does_not_change_the_stored_images() -> None:
    images = random_images(2)
    before = images.clone()
    Cifar10().prepare(images)
    assert torch.equal(images, before)


def test_augment_keeps_shape_and_type() -> None:
    images = random_images(7)
    augmented = Cifar10().augment(images, torch.Generator().manual_seed(0))
    assert augmented.shape == images.shape
    assert augmented.dtype == torch.uint8


def test_augment_crops_and_mirrors_and_does_nothing_else() -> None:
    images = random_images(100)
    augmented = Cifar10().augment(images, torch.Generator().manual_seed(0))
    for image, result in zip(images.numpy(), augmented.numpy(), strict=True):
        assert result.tobytes() in every_crop_and_mirror(image)


def test_augment_draws_shifts_and_mirroring_uniformly() -> None:
    images = random_images(450)
    augmented = Cifar10().augment(images, torch.Generator().manual_seed(0))
    drawn = [every_crop_and_mirror(a)[b.tobytes()] for a, b in zip(images.numpy(), augmented.numpy(), strict=True)]
    tops, lefts, mirrored = (np.array(values, dtype=np.int64) for values in zip(*drawn, strict=True))
    # 450 draws of 9 values: 50 each, deviation 6.7; of 2 values: 225 each, deviation 10.6.
    assert np.abs(np.bincount(tops, minlength=9) - 50).max() < 27
    assert np.abs(np.bincount(lefts, minlength=9) - 50).max() < 27
    assert abs(mirrored.sum() - 225) < 43
    assert abs(np.corrcoef(tops, lefts)[0, 1]) < 0.2


def test_augment_is_the_same_for_the_same_generator_seed() -> None:
    images, task = random_images(20), Cifar10()
    first, second = (task.augment(images, torch.Generator().manual_seed(9)) for _ in range(2))
    assert torch.equal(first, second)


def test_augment_advances_its_generator() -> None:
    images, task, generator = random_images(20), Cifar10(), torch.Generator().manual_seed(9)
    assert not torch.equal(task.augment(images, generator), task.augment(images, generator))


def test_augment_does_not_use_the_global_generator() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    Cifar10().augment(random_images(5), torch.Generator().manual_seed(1))
    assert torch.equal(torch.get_rng_state(), before)


def test_augment_does_not_change_the_stored_images() -> None:
    images = random_images(5)
    before = images.clone()
    Cifar10().augment(images, torch.Generator().manual_seed(1))
    assert torch.equal(images, before)


def test_the_draws_of_several_clients_can_be_applied_to_one_batch() -> None:
    task, images = Cifar10(), random_images(12)
    apart = [task.augment(part, torch.Generator().manual_seed(seed)) for seed, part in enumerate(images.split(4))]
    draws = [task.draw_augmentation(4, torch.Generator().manual_seed(seed)) for seed in range(3)]
    assert torch.equal(task.apply_augmentation(images, torch.cat(draws)), torch.cat(apart))


def test_an_empty_batch_can_be_augmented() -> None:
    assert Cifar10().augment(random_images(0), torch.Generator()).shape == (0, 3, 32, 32)


def test_an_unknown_edge_is_rejected_with_the_choices() -> None:
    with pytest.raises(ConfigError, match="'paper', 'full'"):
        Cifar10(edge="half")


@pytest.mark.parametrize("load", [Cifar10.load_backdoor_train, Cifar10.load_backdoor_test])
def test_a_file_without_the_edge_cases_is_rejected_with_advice(
    monkeypatch: pytest.MonkeyPatch, load: Callable[[Cifar10], Samples]
) -> None:
    images = np.zeros((4, 32, 32, 3), dtype=np.uint8)
    monkeypatch.setattr(cifar10_module, "load_arrays", southwest_stand_in(x_train=images, x_test=images))
    with pytest.raises(DataError, match=r"no x_train_edge and no x_test_edge.*set edge to 'full'"):
        load(Cifar10())


def test_a_photo_that_was_compressed_again_is_the_same_photo() -> None:
    test = random_images(3, seed=1)
    compressed_again = test[1:2] - (random_images(1, seed=2) % 2)
    assert not torch.equal(compressed_again, test[1:2])
    train = torch.cat([random_images(4, seed=3), test[2:3], compressed_again])
    assert torch.equal(without_photos_of(test, train), train[:4])


@pytest.mark.parametrize(("part", "count"), [("train", 5000), ("test", 1000)])
def test_the_class_counts_are_the_published_ones(cifar10: Cifar10, part: str, count: int) -> None:
    assert torch.bincount(getattr(cifar10, part).y).tolist() == [count] * 10


@pytest.mark.parametrize(
    ("part", "checksum"),
    [
        ("train", "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a"),
        ("test", "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04"),
    ],
)
def test_the_images_are_the_published_ones(cifar10: Cifar10, part: str, checksum: str) -> None:
    images = getattr(cifar10, part).x.permute(0, 2, 3, 1).contiguous()
    assert hashlib.sha256(images.numpy().tobytes()).hexdigest() == checksum


@pytest.mark.parametrize("part", ["train", "test", "backdoor_train", "backdoor_test"])
def test_images_are_stored_as_uint8_with_channels_first(cifar10: Cifar10, part: str) -> None:
    samples = getattr(cifar10, part)
    assert samples.x.dtype == torch.uint8
    assert samples.x.shape[1:] == (3, 32, 32)
    assert samples.x.is_contiguous()
    assert samples.y.dtype == torch.int64


@pytest.mark.parametrize("channel", [0, 1, 2])
def test_images_are_normalised_by_the_statistics_of_the_training_pixels(cifar10: Cifar10, channel: int) -> None:
    expected = cifar10_module.MEAN[channel], cifar10_module.STD[channel]
    assert mean_and_std(cifar10.train.x[:, channel]) == pytest.approx(expected, abs=5e-9)


def test_the_papers_edge_cases_are_100_and_180_trucks(cifar10: Cifar10) -> None:
    assert (len(cifar10.backdoor_train), len(cifar10.backdoor_test)) == (100, 180)
    assert set(cifar10.backdoor_train.y.tolist()) == set(cifar10.backdoor_test.y.tolist()) == {9}


def test_all_edge_cases_are_776_and_196(cifar10_full: Cifar10) -> None:
    # 784 minus four rotations each of two photos that are also in the test images.
    assert (len(cifar10_full.backdoor_train), len(cifar10_full.backdoor_test)) == (776, 196)
