"""Digits: scikit-learn's 8x8 digits, a small CNN and a pixel trigger; needs no download.

The trigger sets the four pixels in the lower right corner to white; the attacker's target label is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import distribution
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.settings import number
from .base import Pixels, Samples, Task, TrainingDefaults

_WHITE = 16
"""The largest pixel value in scikit-learn's digits."""
_WRONG_LABELS_SEED = 7
"""The seed of the wrong labels, which do not depend on the seed of the run."""


@cache
def _table() -> NDArray[np.uint8]:
    """The file of `sklearn.datasets.load_digits`: 64 pixels and the label of each image.

    Importing scikit-learn for that would cost every process a second.
    """
    path = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    return np.loadtxt(str(path), dtype=np.uint8, delimiter=",")


class SmallCnn(nn.Module):
    """Two convolutions and two linear layers: 38,282 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(512, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of a batch of 1x8x8 images."""
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        x = nn.functional.max_pool2d(x, 2).flatten(1)
        return self.fc2(torch.relu(self.fc1(x)))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class DigitsSettings:
    """Settings of `Digits`; see its docstring."""

    wrong_labels: float = number(0.0, 0, 1)


class Digits(Task):
    """Handwritten digits of 8x8 pixels: every fifth of the 1,797 images is a test image, which leaves 1,437.

    Parameters
    ----------
    data_dir, model
        As for every task.
    wrong_labels
        The share of the training images with a wrong label, from 0 to 1. Honest clients of a converged model have
        almost nothing left to learn, so the norm of an update suffices to detect an attacker. With wrong labels they
        keep learning (default: 0.0).

    Notes
    -----
    Needs no download. Unless `wrong_labels` is set, honest clients of a converged model have almost nothing left to
    learn, so a large norm suffices to detect an attacker.

    References
    ----------
    The digits of scikit-learn, a part of the UCI data set "Optical Recognition of Handwritten Digits".
    """

    name = "digits"
    summary = "8x8 digits of scikit-learn, no download; backdoor: white corner -> 0"
    models: ClassVar[tuple[str, ...]] = ("cnn",)
    defaults = TrainingDefaults(
        lr=0.05, clients=50, per_round=10, pretrain_epochs=30, pretrain_lr=0.05, pretrain_batch_size=32
    )
    num_classes = 10
    pixels = Pixels(white=_WHITE, dba=(2, 1, 0))
    pgd_radius = 0.5
    Settings = DigitsSettings
    target = 0

    def __init__(
        self,
        *,
        data_dir: Path | str | None = None,
        model: str | None = None,
        wrong_labels: float = DigitsSettings.wrong_labels,
    ) -> None:
        super().__init__(data_dir=data_dir, model=model, wrong_labels=wrong_labels)

    @cached_property
    def _split(self) -> tuple[Samples, Samples]:
        table = torch.from_numpy(_table())
        x, y = table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1].long()
        held_out = torch.arange(len(y)) % 5 == 0
        return Samples(x[~held_out], y[~held_out]), Samples(x[held_out], y[held_out])

    def load_train(self) -> Samples:
        """The 1,437 training images, some of them with wrong labels."""
        samples = self._split[0]
        generator = torch.Generator().manual_seed(_WRONG_LABELS_SEED)
        is_wrong = torch.rand(len(samples.y), generator=generator) < self.settings.wrong_labels
        others = (
            samples.y + torch.randint(1, self.num_classes, samples.y.shape, generator=generator)
        ) % self.num_classes
        return Samples(samples.x, torch.where(is_wrong, others, samples.y))

    def load_test(self) -> Samples:
        """The 360 test images."""
        return self._split[1]

    def load_backdoor_train(self) -> Samples:
        """Training images of the digits 1 to 9 with the trigger, labelled 0."""
        return self._backdoored(self.train)

    def load_backdoor_test(self) -> Samples:
        """Test images of the digits 1 to 9 with the trigger, labelled 0."""
        return self._backdoored(self.test)

    def _backdoored(self, samples: Samples) -> Samples:
        others = samples.take(torch.nonzero(samples.y != self.target).flatten())
        x = others.x.clone()
        x[:, :, -2:, -2:] = _WHITE
        return Samples(x, torch.full_like(others.y, self.target))

    def build_model(self) -> nn.Module:
        """An untrained small CNN."""
        return SmallCnn()

    def prepare(self, x: Tensor) -> Tensor:
        """Pixels from 0 to 16, scaled to 0 to 1."""
        return x.float() / _WHITE
