"""MNIST with ARDIS and CIFAR-10 with Southwest: the models, the data behind them, and no test image in training."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from g2uardfl.core.errors import ConfigError, DataError
from g2uardfl.tasks import cifar10 as cifar10_module
from g2uardfl.tasks.base import Samples, Task
from g2uardfl.tasks.cifar10 import Cifar10, without_pictures_of
from g2uardfl.tasks.mnist import Mnist
from g2uardfl.tasks.models import VGG9, LeNet, ResNet18, SimpleNet

LENET = {"conv1": 320, "conv2": 18_496, "fc1": 1_179_776, "fc2": 1_290}
SIMPLENET = {"conv1": 520, "conv2": 25_050, "fc1": 400_500, "fc2": 5_010}
VGG = {
    "conv1": 1_792,
    "conv2": 73_856,
    "conv3": 295_168,
    "conv4": 590_080,
    "conv5": 1_180_160,
    "conv6": 2_359_808,
    "conv7": 2_359_808,
    "conv8": 2_359_808,
    "fc": 5_130,
}
MNIST_TRAIN_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST_COUNTS = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.fixture(scope="session")
def mnist(real_data: Path) -> Mnist:
    return Mnist(data_dir=real_data)


@pytest.fixture(scope="session")
def cifar10(real_data: Path) -> Cifar10:
    return Cifar10(data_dir=real_data)


@pytest.fixture(scope="session")
def cifar10_full(real_data: Path) -> Cifar10:
    return Cifar10(data_dir=real_data, edge="full")


def random_pictures(count: int, seed: int = 0) -> Tensor:
    return torch.randint(1, 256, (count, 3, 32, 32), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def parameters_per_layer(model: nn.Module) -> dict[str, int]:
    counts = {name: sum(p.numel() for p in module.parameters()) for name, module in model.named_children()}
    return {name: count for name, count in counts.items() if count}


def pixel_hashes(samples: Samples) -> set[str]:
    return {hashlib.sha256(picture.numpy().tobytes()).hexdigest() for picture in samples.x}


def mean_and_std(images: Tensor) -> tuple[float, float]:
    """Exact mean and standard deviation of byte images in the range 0 to 1, from their histogram."""
    counts = np.bincount(images.flatten().numpy(), minlength=256)
    levels = np.arange(256) / 255
    mean = (counts * levels).sum() / counts.sum()
    return mean, math.sqrt((counts * (levels - mean) ** 2).sum() / counts.sum())


def southwest_stand_in(**arrays: np.ndarray) -> Callable[..., dict[str, np.ndarray]]:
    def load_arrays(file: str, data_dir: Path | None, *, only: Collection[str]) -> dict[str, np.ndarray]:
        assert file == "southwest/southwest.npz"
        return {name: array for name, array in arrays.items() if name in only}

    return load_arrays


# Models


@pytest.mark.parametrize(
    ("model", "layers", "total"),
    [(LeNet(), LENET, 1_199_882), (SimpleNet(), SIMPLENET, 431_080), (VGG9(), VGG, 9_225_610)],
    ids=["lenet", "simplenet", "vgg9"],
)
def test_a_model_has_the_parameters_of_the_paper_in_every_layer(
    model: nn.Module, layers: dict[str, int], total: int
) -> None:
    assert parameters_per_layer(model) == layers
    assert sum(layers.values()) == total


def test_resnet18_has_the_parameters_of_its_paper_for_32x32_pictures() -> None:
    def block(wide_in: int, wide: int) -> int:
        shortcut = wide_in * wide + 2 * wide if wide_in != wide else 0
        return 9 * wide_in * wide + 9 * wide * wide + 4 * wide + shortcut

    widths = [(64, 64), (64, 128), (128, 256), (256, 512)]
    expected = {f"layer{i}": block(a, b) + block(b, b) for i, (a, b) in enumerate(widths, start=1)}
    expected |= {"conv1": 3 * 64 * 9, "bn1": 2 * 64, "fc": 512 * 10 + 10}
    assert parameters_per_layer(ResNet18()) == expected
    assert sum(expected.values()) == 11_173_962


def test_vgg9_has_no_batch_norm() -> None:
    assert not any(isinstance(module, nn.BatchNorm2d) for module in VGG9().modules())


def test_resnet18_carries_its_batch_norm_buffers_in_its_state() -> None:
    names = ResNet18().state_dict().keys()
    assert sum(name.endswith("running_mean") for name in names) == 20
    assert sum(name.endswith("running_var") for name in names) == 20


@pytest.mark.parametrize("task", [Mnist(model="lenet"), Mnist(model="simplenet")], ids=lambda task: task.model)
def test_a_digit_model_maps_28x28_digits_to_ten_logits(task: Task) -> None:
    digits = torch.zeros(2, 1, 28, 28, dtype=torch.uint8)
    assert task.build_model()(task.prepare(digits)).shape == (2, 10)


@pytest.mark.parametrize("task", [Cifar10(model="vgg9"), Cifar10(model="resnet18")], ids=lambda task: task.model)
def test_a_picture_model_maps_32x32_pictures_to_ten_logits(task: Task) -> None:
    assert task.build_model()(task.prepare(random_pictures(2))).shape == (2, 10)


@pytest.mark.parametrize(
    ("task_class", "model", "expected"),
    [
        (Mnist, None, LeNet),
        (Mnist, "simplenet", SimpleNet),
        (Cifar10, None, VGG9),
        (Cifar10, "resnet18", ResNet18),
    ],
)
def test_the_model_is_chosen_by_name_and_the_first_is_the_default(
    task_class: type[Task], model: str | None, expected: type[nn.Module]
) -> None:
    assert type(task_class(model=model).build_model()) is expected


def test_the_same_torch_seed_builds_the_same_model() -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(5)
        states.append(Cifar10().build_model().state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_vgg9_starts_at_the_loss_of_guessing() -> None:
    torch.manual_seed(0)
    task = Cifar10()
    with torch.no_grad():
        loss = task.loss(task.build_model()(task.prepare(random_pictures(16))), torch.arange(16) % 10)
    assert loss.item() == pytest.approx(math.log(10), abs=0.05)


def test_vgg9_gradients_reach_the_first_layer_undiminished() -> None:
    torch.manual_seed(0)
    task = Cifar10()
    model = task.build_model()
    task.loss(model(task.prepare(random_pictures(16))), torch.arange(16) % 10).backward()
    norms = [p.grad.norm().item() for name, p in model.named_parameters() if "conv" in name and "weight" in name]
    assert max(norms) / min(norms) < 30


# Stored inputs to model inputs


def test_mnist_prepare_normalises_as_a_loop_over_pixels_does() -> None:
    digits = torch.randint(0, 256, (3, 1, 28, 28), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    expected = [(float(pixel) / 255 - 0.1307) / 0.3081 for pixel in digits.flatten()]
    found = Mnist().prepare(digits)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.flatten().numpy(), expected, rtol=1e-5, atol=1e-6)


def test_cifar10_prepare_normalises_each_channel_as_numpy_does() -> None:
    pictures = random_pictures(5)
    mean, std = (0.49139968, 0.48215841, 0.44653091), (0.24703223, 0.24348513, 0.26158784)
    found = Cifar10().prepare(pictures)
    assert found.dtype == torch.float32
    for channel in range(3):
        expected = (pictures[:, channel].numpy().astype(np.float64) / 255 - mean[channel]) / std[channel]
        np.testing.assert_allclose(found[:, channel].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_prepare_leaves_the_stored_inputs_alone() -> None:
    pictures = random_pictures(2)
    before = pictures.clone()
    Cifar10().prepare(pictures)
    assert torch.equal(pictures, before)


# Augmentation


def every_crop_and_mirror(picture: np.ndarray) -> dict[bytes, tuple[int, int, bool]]:
    """All 162 pictures that a 4-pixel crop and a flip can make of one picture, by their bytes."""
    padded = np.zeros((3, 40, 40), dtype=np.uint8)
    padded[:, 4:36, 4:36] = picture
    made = {}
    for top in range(9):
        for left in range(9):
            crop = padded[:, top : top + 32, left : left + 32]
            made[crop.tobytes()] = (top, left, False)
            made[crop[:, :, ::-1].tobytes()] = (top, left, True)
    return made


def test_augment_keeps_shape_and_type() -> None:
    pictures = random_pictures(7)
    varied = Cifar10().augment(pictures, torch.Generator().manual_seed(0))
    assert varied.shape == pictures.shape
    assert varied.dtype == torch.uint8


def test_augment_makes_crops_and_mirror_images_and_nothing_else() -> None:
    pictures = random_pictures(100)
    varied = Cifar10().augment(pictures, torch.Generator().manual_seed(0))
    for picture, result in zip(pictures.numpy(), varied.numpy(), strict=True):
        assert result.tobytes() in every_crop_and_mirror(picture)


def test_augment_draws_every_shift_and_both_directions_evenly() -> None:
    pictures = random_pictures(450)
    varied = Cifar10().augment(pictures, torch.Generator().manual_seed(0))
    drawn = [every_crop_and_mirror(a)[b.tobytes()] for a, b in zip(pictures.numpy(), varied.numpy(), strict=True)]
    tops, lefts, mirrored = (np.array(values, dtype=np.int64) for values in zip(*drawn, strict=True))
    # 450 draws of 9 values: 50 each, deviation 6.7; of 2 values: 225 each, deviation 10.6.
    assert np.abs(np.bincount(tops, minlength=9) - 50).max() < 27
    assert np.abs(np.bincount(lefts, minlength=9) - 50).max() < 27
    assert abs(mirrored.sum() - 225) < 43
    assert abs(np.corrcoef(tops, lefts)[0, 1]) < 0.2


def test_augment_is_the_same_for_the_same_generator_seed() -> None:
    pictures, task = random_pictures(20), Cifar10()
    first, second = (task.augment(pictures, torch.Generator().manual_seed(9)) for _ in range(2))
    assert torch.equal(first, second)


def test_augment_goes_on_drawing_from_its_generator() -> None:
    pictures, task, generator = random_pictures(20), Cifar10(), torch.Generator().manual_seed(9)
    assert not torch.equal(task.augment(pictures, generator), task.augment(pictures, generator))


def test_augment_does_not_touch_the_global_generator() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    Cifar10().augment(random_pictures(5), torch.Generator().manual_seed(1))
    assert torch.equal(torch.get_rng_state(), before)


def test_augment_leaves_the_stored_pictures_alone() -> None:
    pictures = random_pictures(5)
    before = pictures.clone()
    Cifar10().augment(pictures, torch.Generator().manual_seed(1))
    assert torch.equal(pictures, before)


def test_draws_of_several_clients_can_be_applied_at_once() -> None:
    task, pictures = Cifar10(), random_pictures(12)
    apart = [task.augment(part, torch.Generator().manual_seed(seed)) for seed, part in enumerate(pictures.split(4))]
    draws = [task.draw_augmentation(4, torch.Generator().manual_seed(seed)) for seed in range(3)]
    assert torch.equal(task.apply_augmentation(pictures, torch.cat(draws)), torch.cat(apart))


def test_augment_takes_an_empty_batch() -> None:
    assert Cifar10().augment(random_pictures(0), torch.Generator()).shape == (0, 3, 32, 32)


def test_mnist_is_not_augmented() -> None:
    digits = torch.ones(2, 1, 28, 28, dtype=torch.uint8)
    assert torch.equal(Mnist().augment(digits, torch.Generator()), digits)


# The choice of the edge-case pictures, on pictures made up here


def test_an_unknown_edge_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match="paper, full"):
        Cifar10(edge="half")


@pytest.mark.parametrize("load", [Cifar10.load_backdoor_train, Cifar10.load_backdoor_test])
def test_a_file_without_the_edge_pictures_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, load: Callable[[Cifar10], Samples]
) -> None:
    pictures = np.zeros((4, 32, 32, 3), dtype=np.uint8)
    monkeypatch.setattr(cifar10_module, "load_arrays", southwest_stand_in(x_train=pictures, x_test=pictures))
    with pytest.raises(DataError, match=r"no x_train_edge and no x_test_edge.*set edge to 'full'"):
        load(Cifar10())


def test_a_photo_that_was_saved_anew_counts_as_the_same_picture() -> None:
    test = random_pictures(3, seed=1)
    saved_anew = test[1:2] - (random_pictures(1, seed=2) % 2)
    assert not torch.equal(saved_anew, test[1:2])
    train = torch.cat([random_pictures(4, seed=3), test[2:3], saved_anew])
    assert torch.equal(without_pictures_of(test, train), train[:4])


# The real data


@pytest.mark.parametrize(("part", "counts"), [("train", MNIST_TRAIN_COUNTS), ("test", MNIST_TEST_COUNTS)])
def test_mnist_has_its_published_class_counts(mnist: Mnist, part: str, counts: list[int]) -> None:
    assert torch.bincount(getattr(mnist, part).y).tolist() == counts


@pytest.mark.parametrize(("part", "count"), [("train", 5000), ("test", 1000)])
def test_cifar10_has_its_published_class_counts(cifar10: Cifar10, part: str, count: int) -> None:
    assert torch.bincount(getattr(cifar10, part).y).tolist() == [count] * 10


@pytest.mark.parametrize(
    ("part", "checksum"),
    [
        ("train", "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a"),
        ("test", "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04"),
    ],
)
def test_cifar10_pictures_are_the_original_ones(cifar10: Cifar10, part: str, checksum: str) -> None:
    pictures = getattr(cifar10, part).x.permute(0, 2, 3, 1).contiguous()
    assert hashlib.sha256(pictures.numpy().tobytes()).hexdigest() == checksum


@pytest.mark.parametrize("part", ["train", "test", "backdoor_train", "backdoor_test"])
def test_digits_are_stored_as_bytes_with_one_channel(mnist: Mnist, part: str) -> None:
    samples = getattr(mnist, part)
    assert samples.x.dtype == torch.uint8
    assert samples.x.shape[1:] == (1, 28, 28)
    assert samples.y.dtype == torch.int64


@pytest.mark.parametrize("part", ["train", "test", "backdoor_train", "backdoor_test"])
def test_pictures_are_stored_as_bytes_with_the_channels_first(cifar10: Cifar10, part: str) -> None:
    samples = getattr(cifar10, part)
    assert samples.x.dtype == torch.uint8
    assert samples.x.shape[1:] == (3, 32, 32)
    assert samples.x.is_contiguous()
    assert samples.y.dtype == torch.int64


def test_mnist_is_normalised_by_the_statistics_of_its_training_pixels(mnist: Mnist) -> None:
    assert mean_and_std(mnist.train.x) == pytest.approx((0.1307, 0.3081), abs=5e-5)


@pytest.mark.parametrize("channel", [0, 1, 2])
def test_cifar10_is_normalised_by_the_statistics_of_its_training_pixels(cifar10: Cifar10, channel: int) -> None:
    expected = cifar10_module.MEAN[channel], cifar10_module.STD[channel]
    assert mean_and_std(cifar10.train.x[:, channel]) == pytest.approx(expected, abs=5e-9)


def test_the_mnist_backdoor_is_660_sevens_to_train_and_100_to_test_labelled_one(mnist: Mnist) -> None:
    assert (len(mnist.backdoor_train), len(mnist.backdoor_test)) == (660, 100)
    assert set(mnist.backdoor_train.y.tolist()) == set(mnist.backdoor_test.y.tolist()) == {1}


def test_the_mnist_backdoor_is_the_sevens_of_ardis_found_one_by_one(mnist: Mnist, real_data: Path) -> None:
    with np.load(real_data / "ardis" / "ardis_iv.npz", allow_pickle=False) as ardis:
        images, labels = ardis["x_test"], ardis["y_test"]
    sevens = [image for image, label in zip(images, labels, strict=True) if label == 7]
    assert all(np.array_equal(a[0], b) for a, b in zip(mnist.backdoor_test.x.numpy(), sevens, strict=True))


def test_the_paper_edge_pictures_are_100_to_train_and_180_to_test_labelled_truck(cifar10: Cifar10) -> None:
    assert (len(cifar10.backdoor_train), len(cifar10.backdoor_test)) == (100, 180)
    assert set(cifar10.backdoor_train.y.tolist()) == set(cifar10.backdoor_test.y.tolist()) == {9}


def test_the_full_edge_pictures_are_776_to_train_and_196_to_test(cifar10_full: Cifar10) -> None:
    # 784 less the four rotations each of two photos that are also among the test pictures.
    assert (len(cifar10_full.backdoor_train), len(cifar10_full.backdoor_test)) == (776, 196)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar10_full"])
def test_no_backdoor_test_picture_is_trained_on(request: pytest.FixtureRequest, name: str) -> None:
    task = request.getfixturevalue(name)
    for training in (task.backdoor_train, task.train):
        assert not pixel_hashes(training) & pixel_hashes(task.backdoor_test)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar10_full"])
def test_no_backdoor_test_picture_is_trained_on_turned_mirrored_or_saved_anew(
    request: pytest.FixtureRequest, name: str
) -> None:
    task = request.getfixturevalue(name)
    training = task.backdoor_train.x.numpy().astype(np.float32)
    for picture in task.backdoor_test.x.numpy().astype(np.float32):
        for turned in (np.rot90(picture, turns, axes=(1, 2)) for turns in range(4)):
            assert np.abs(training[:, :, ::2, ::2] - turned[:, ::2, ::2]).mean(axis=(1, 2, 3)).min() > 3
            assert np.abs(training[:, :, ::2, ::2] - turned[:, ::2, ::-1][:, :, ::2]).mean(axis=(1, 2, 3)).min() > 3


def test_making_a_task_reads_no_data(tmp_path: Path) -> None:
    assert Mnist(data_dir=tmp_path / "nowhere").model == "lenet"
    assert Cifar10(data_dir=tmp_path / "nowhere").model == "vgg9"


@pytest.mark.parametrize("load", [Mnist.load_train, Mnist.load_backdoor_test])
def test_mnist_data_that_is_not_there_is_a_data_error(tmp_path: Path, load: Callable[[Mnist], Samples]) -> None:
    with pytest.raises(DataError):
        load(Mnist(data_dir=tmp_path))


@pytest.mark.slow
def test_simplenet_reads_most_test_digits_after_two_passes_over_three_thousand(mnist: Mnist) -> None:
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
