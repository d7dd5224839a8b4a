"""The image models: layers, outputs and initialisation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from g2uardfl.tasks.base import Task
from g2uardfl.tasks.cifar10 import Cifar10
from g2uardfl.tasks.mnist import Mnist
from g2uardfl.tasks.models import VGG9, LeNet, ResNet18, SimpleNet
from helpers.images import random_images

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


def parameters_per_layer(model: nn.Module) -> dict[str, int]:
    counts = {name: sum(p.numel() for p in module.parameters()) for name, module in model.named_children()}
    return {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize(
    ("model", "layers", "total"),
    [(LeNet(), LENET, 1_199_882), (SimpleNet(), SIMPLENET, 431_080), (VGG9(), VGG, 9_225_610)],
    ids=["lenet", "simplenet", "vgg9"],
)
def test_every_layer_has_the_parameters_of_the_paper(model: nn.Module, layers: dict[str, int], total: int) -> None:
    assert parameters_per_layer(model) == layers
    assert sum(layers.values()) == total


def test_resnet18_has_the_parameters_of_its_paper() -> None:
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


def test_the_state_of_resnet18_contains_its_batch_norm_buffers() -> None:
    names = ResNet18().state_dict().keys()
    assert sum(name.endswith("running_mean") for name in names) == 20
    assert sum(name.endswith("running_var") for name in names) == 20


@pytest.mark.parametrize("task", [Mnist(model="lenet"), Mnist(model="simplenet")], ids=lambda task: task.model)
def test_a_model_of_mnist_maps_28x28_pixels_to_ten_logits(task: Task) -> None:
    digits = torch.zeros(2, 1, 28, 28, dtype=torch.uint8)
    assert task.build_model()(task.prepare(digits)).shape == (2, 10)


@pytest.mark.parametrize("task", [Cifar10(model="vgg9"), Cifar10(model="resnet18")], ids=lambda task: task.model)
def test_a_model_of_cifar10_maps_32x32_pixels_to_ten_logits(task: Task) -> None:
    assert task.build_model()(task.prepare(random_images(2))).shape == (2, 10)


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


def test_the_initial_loss_of_vgg9_is_that_of_random_guessing() -> None:
    torch.manual_seed(0)
    task = Cifar10()
    with torch.no_grad():
        loss = task.loss(task.build_model()(task.prepare(random_images(16))), torch.arange(16) % 10)
    assert loss.item() == pytest.approx(math.log(10), abs=0.05)


def test_the_gradients_of_vgg9_have_similar_norms_in_all_layers() -> None:
    torch.manual_seed(0)
    task = Cifar10()
    model = task.build_model()
    task.loss(model(task.prepare(random_images(16))), torch.arange(16) % 10).backward()
    norms = [p.grad.norm().item() for name, p in model.named_parameters() if "conv" in name and "weight" in name]
    assert max(norms) / min(norms) < 30
