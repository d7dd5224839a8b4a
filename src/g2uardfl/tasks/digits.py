"""Task `digits`: scikit-learn's 8x8 digits, a small CNN and a pixel trigger. Needs no download.

A backdoored image has the four pixels of its lower right corner lit; the attacker wants it called a zero.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from .base import Pixels, Samples, Task, TrainingDefaults

_BRIGHTEST = 16


class SmallCnn(nn.Module):
    """Two convolutions and two linear layers: 38,282 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(512, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores for a batch of 1x8x8 images."""
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        x = nn.functional.max_pool2d(x, 2).flatten(1)
        return self.fc2(torch.relu(self.fc1(x)))  # type: ignore[no-any-return]


class Digits(Task):
    """Handwritten digits of 8x8 pixels: 1,437 to train on, every fifth of the 1,797 held out as the 360 test images."""

    name = "digits"
    summary = "8x8 digits from scikit-learn, small CNN, corner trigger -> 0; nothing to download"
    models: ClassVar[tuple[str, ...]] = ("cnn",)
    defaults = TrainingDefaults(
        lr=0.05, clients=50, per_round=10, pretrain_epochs=30, pretrain_lr=0.05, pretrain_batch_size=32
    )
    num_classes = 10
    pixels = Pixels(white=_BRIGHTEST, dba=(2, 1, 0))
    pgd_radius = 0.5
    target = 0

    @cached_property
    def _split(self) -> tuple[Samples, Samples]:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        x = torch.from_numpy(bunch.images).to(torch.uint8).unsqueeze(1)
        y = torch.from_numpy(bunch.target).long()
        held_out = torch.arange(len(y)) % 5 == 0
        return Samples(x[~held_out], y[~held_out]), Samples(x[held_out], y[held_out])

    def load_train(self) -> Samples:
        """The 1,437 training images."""
        return self._split[0]

    def load_test(self) -> Samples:
        """The 360 test images."""
        return self._split[1]

    def load_backdoor_train(self) -> Samples:
        """Training images of the other digits with the trigger, labelled 0."""
        return self._backdoored(self.train)

    def load_backdoor_test(self) -> Samples:
        """Test images of the other digits with the trigger, labelled 0."""
        return self._backdoored(self.test)

    def _backdoored(self, samples: Samples) -> Samples:
        others = samples.take(torch.nonzero(samples.y != self.target).flatten())
        x = others.x.clone()
        x[:, :, -2:, -2:] = _BRIGHTEST
        return Samples(x, torch.full_like(others.y, self.target))

    def build_model(self) -> nn.Module:
        """A fresh small CNN."""
        return SmallCnn()

    def prepare(self, x: Tensor) -> Tensor:
        """Brightness 0..16 to 0..1."""
        return x.float() / _BRIGHTEST
