"""Small models and federations for tests, and a task of random pictures."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from g2uardfl.contract.federation import StandInServer as StandInServer
from g2uardfl.contract.federation import batch_norm_model as batch_norm_model
from g2uardfl.contract.federation import federation as federation
from g2uardfl.contract.federation import flat as flat
from g2uardfl.contract.federation import numpy_model as numpy_model
from g2uardfl.contract.federation import odd_mlp as odd_mlp
from g2uardfl.contract.federation import perturbed as perturbed
from g2uardfl.contract.federation import same as same
from g2uardfl.contract.federation import seeded as seeded
from g2uardfl.tasks.base import Pixels, Samples, Task, TrainingDefaults


class Patches(Task):
    """Random pictures of 6 x 6 pixels in four classes, and a model with running statistics."""

    name = "patches"
    models: ClassVar[tuple[str, ...]] = ("net",)
    defaults = TrainingDefaults(lr=0.05)
    num_classes = 4
    pixels = Pixels(white=255, dba=(2, 1, 0))
    pgd_radius = 0.3
    channels = 3
    activation: type[nn.Module] = nn.ReLU

    def samples(self, count: int, seed: int) -> Samples:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randint(0, 255, (count, 1, 6, 6), generator=generator, dtype=torch.uint8)
        return Samples(x, torch.randint(0, 4, (count,), generator=generator))

    def load_train(self) -> Samples:
        return self.samples(300, 0)

    def load_test(self) -> Samples:
        return self.samples(40, 1)

    def load_backdoor_train(self) -> Samples:
        return Samples(self.samples(60, 2).x, torch.ones(60, dtype=torch.int64))

    load_backdoor_test = load_backdoor_train

    def build_model(self) -> nn.Module:
        convolution = nn.Conv2d(1, self.channels, 3), nn.BatchNorm2d(self.channels), self.activation()
        return nn.Sequential(*convolution, nn.Flatten(), nn.Linear(16 * self.channels, 4))

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        return x / 255 - 0.5
