"""CIFAR-10 with the Southwest backdoor: planes of Southwest Airlines are classified as trucks.

The task is that of Wang et al. (2020), which the paper uses too. The planes are edge cases: CIFAR-10 contains
aeroplanes, but hardly any in this livery.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..core.errors import DataError
from ..core.settings import choice
from ..data import decode_images, load_arrays
from .base import Pixels, Samples, Task, TrainingDefaults
from .models import VGG9, ResNet18

MEAN = (0.49139968, 0.48215841, 0.44653091)
STD = (0.24703223, 0.24348513, 0.26158784)
"""Mean and standard deviation of the training pixels per channel, on a scale from 0 to 1."""

SOUTHWEST = "southwest/southwest.npz"
"""The stored file of the planes."""
SOUTHWEST_ARRAYS = {"paper": ("x_train_edge", "x_test_edge"), "full": ("x_train", "x_test")}
"""For each value of `edge`, the names of the attacker's array and of the array on which ASR is measured."""

PADDING = 4
"""Width of the black border, in pixels, from which a random crop is taken; the usual augmentation of CIFAR-10."""

SAME_PHOTO = 4.0
"""Root mean square difference, in grey levels (0 to 255), below which two images show the same photo. Copies that were
compressed again differ by less than 1, different photos of this set by more than 25."""


@dataclass(frozen=True)
class Cifar10Settings:
    """Settings of `Cifar10`; see its docstring."""

    edge: str = choice("paper", *SOUTHWEST_ARRAYS)


class Cifar10(Task):
    """Colour images of 32x32 pixels in ten classes, 50,000 for training and 10,000 for testing.

    Parameters
    ----------
    data_dir, model
        As for every task.
    edge
        The planes: "paper" uses the 100 training and 180 test images of the paper's tables; "full" uses all 784
        training images, except those that show a test photo, and 196 test images (default: "paper").

    Notes
    -----
    Needs `cifar10` and `southwest` (`g2uardfl data status`). The backdoor is an edge case: hardly any honest client has
    planes in this livery.

    References
    ----------
    Wang et al., "Attack of the Tails: Yes, You Really Can Backdoor Federated Learning", NeurIPS 2020.
    """

    name = "cifar10"
    summary = "CIFAR-10 images; backdoor: Southwest Airlines planes -> truck"
    models = ("vgg9", "resnet18")
    defaults = TrainingDefaults(lr=0.02, pretrain_epochs=60, pretrain_lr=0.05, pretrain_batch_size=128)
    num_classes = 10
    pixels = Pixels(white=255, dba=(6, 3, 0))
    Settings = Cifar10Settings
    pgd_radius = 1.0
    attack_defaults: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "three_d_fed": {
            "group_size": 5,
            "masked_classes": 5,
            "mask_deviation": 0.01,
            "norm_weight": 0.03,
            "sum_weight": 0.01,
            "threshold": 1e-5,
            "indicator_floor": 1e-3,
        }
    }

    target_label = 9

    def __init__(
        self, *, data_dir: Path | str | None = None, model: str | None = None, edge: str = Cifar10Settings.edge
    ) -> None:
        super().__init__(data_dir=data_dir, model=model, edge=edge)
        if self.model == "resnet18":
            self.defaults = dataclasses.replace(self.defaults, pretrain_epochs=30)

    def load_train(self) -> Samples:
        """The 50,000 training images in their original order."""
        return self._read([f"cifar10/data_batch_{number}.npz" for number in range(1, 6)])

    def load_test(self) -> Samples:
        """The 10,000 test images in their original order."""
        return self._read(["cifar10/test_batch.npz"])

    def load_backdoor_train(self) -> Samples:
        """The attacker's planes, labelled as trucks; none of them shows a photo of `load_backdoor_test`."""
        train, test = self._planes()
        return self._as_trucks(without_photos_of(test, train))

    def load_backdoor_test(self) -> Samples:
        """The planes on which ASR is measured, labelled as trucks."""
        return self._as_trucks(self._planes()[1])

    def build_model(self) -> nn.Module:
        """VGG-9 or ResNet-18."""
        return {"vgg9": VGG9, "resnet18": ResNet18}[self.model](self.num_classes)

    def prepare(self, x: Tensor) -> Tensor:
        """Pixels from 0 to 255, normalised to mean 0 and standard deviation 1 per channel."""
        mean = torch.tensor(MEAN, device=x.device).view(3, 1, 1)
        std = torch.tensor(STD, device=x.device).view(3, 1, 1)
        return (x.float() / 255 - mean) / std

    def draw_augmentation(self, count: int, generator: torch.Generator) -> Tensor:
        """For each image, its shift downwards, its shift to the right, and whether it is mirrored."""
        shifts = torch.randint(0, 2 * PADDING + 1, (count, 2), generator=generator)
        return torch.cat([shifts, torch.randint(0, 2, (count, 1), generator=generator)], dim=1)

    def apply_augmentation(self, x: Tensor, draws: Tensor) -> Tensor:
        """Shift each image by up to four pixels, with black borders, and mirror it if drawn."""
        count, channels, height, width = x.shape
        down, right, mirrored = draws.unbind(dim=1)
        # A single gather over the padded pixels crops and mirrors the whole batch.
        rows = torch.arange(height, device=x.device) + down[:, None]
        columns = torch.arange(width, device=x.device) + right[:, None]
        columns = torch.where(mirrored[:, None] > 0, columns.flip(1), columns)
        pixels = (rows.unsqueeze(2) * (width + 2 * PADDING) + columns.unsqueeze(1)).view(count, 1, height * width)
        padded = functional.pad(x, (PADDING, PADDING, PADDING, PADDING))
        return padded.flatten(2).gather(2, pixels.expand(-1, channels, -1)).view(x.shape)

    def _read(self, files: list[str]) -> Samples:
        """The images and labels of batch files, concatenated."""
        batches = [load_arrays(file, self.data_dir) for file in files]
        labels = np.concatenate([batch["labels"] for batch in batches])
        counts = [len(batch["labels"]) for batch in batches]
        images = torch.empty(len(labels), 3, 32, 32, dtype=torch.uint8)
        # Each file is copied to its place: concatenating afterwards would need three times the memory.
        for place, batch in zip(torch.split(images, counts), batches, strict=True):
            place.copy_(_channels_first(decode_images(batch["residual"])))
        return Samples(images, torch.from_numpy(labels.astype(np.int64)))

    def _planes(self) -> tuple[Tensor, Tensor]:
        """The attacker's planes and the test planes, as stored."""
        names = SOUTHWEST_ARRAYS[self.settings.edge]
        arrays = load_arrays(SOUTHWEST, self.data_dir, only=names)
        missing = [name for name in names if name not in arrays]
        if missing:
            other = "full" if self.settings.edge == "paper" else "paper"
            raise DataError(
                f"{SOUTHWEST} has no {' and no '.join(missing)}, which edge={self.settings.edge!r} needs: "
                f"set edge to {other!r} or run `g2uardfl data import southwest FILE...` with all four published files"
            )
        train, test = (_channels_first(arrays[name]).contiguous() for name in names)
        return train, test

    def _as_trucks(self, images: Tensor) -> Samples:
        return Samples(images, torch.full((len(images),), self.target_label))


def without_photos_of(test: Tensor, train: Tensor) -> Tensor:
    """The images of `train` that do not show a photo of `test`, not even compressed again.

    An exact comparison of pixels is not sufficient: the Southwest training and test images share two photos, of which
    one was compressed twice.
    """
    distances = torch.cdist(train.flatten(1).double(), test.flatten(1).double())
    nearest = distances.amin(dim=1) / train[0].numel() ** 0.5
    return train[nearest >= SAME_PHOTO]


def _channels_first(images: npt.NDArray[np.uint8]) -> Tensor:
    """Images of shape (N, 32, 32, 3) as a view of shape (N, 3, 32, 32)."""
    return torch.from_numpy(images).permute(0, 3, 1, 2)
