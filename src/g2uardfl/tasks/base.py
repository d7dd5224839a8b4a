"""What a task is: data, model, loss, backdoor and training defaults, in one class.

A third party's task subclasses `Task` in its own module and is used as `--task package.module:ClassName`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.errors import ConfigError


@dataclass(frozen=True)
class Samples:
    """Inputs and labels side by side. Inputs stay in their compact stored form (`uint8` images, token ids)."""

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"{len(self.x)} inputs but {len(self.y)} labels")

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: Tensor) -> Samples:
        """The samples at `indices`, in that order."""
        return Samples(self.x[indices], self.y[indices])

    def to(self, device: torch.device | str) -> Samples:
        """The same samples on `device`."""
        return Samples(self.x.to(device), self.y.to(device))


class DividedSamples:
    """Samples divided among clients; a share is taken out when it is asked for, so that the data is in memory once.

    Parameters
    ----------
    whole
        All samples.
    shares
        For each client the indices of its samples, on the device of `whole`.

    Examples
    --------
    >>> whole = Samples(torch.tensor([5, 6, 7]), torch.tensor([0, 1, 0]))
    >>> divided = DividedSamples(whole, [torch.tensor([1]), torch.tensor([0, 2])])
    >>> divided[1].x, divided.count(1)
    (tensor([5, 7]), 2)
    """

    def __init__(self, whole: Samples, shares: Sequence[Tensor]) -> None:
        self.whole = whole
        self.shares = shares

    def __getitem__(self, client: int) -> Samples:
        return self.whole.take(self.shares[client])

    def count(self, client: int) -> int:
        """How many samples a client has."""
        return len(self.shares[client])


def concatenate(first: Samples, second: Samples) -> Samples:
    """The samples of `first` followed by those of `second`."""
    return Samples(torch.cat([first.x, second.x]), torch.cat([first.y, second.y]))


@dataclass(frozen=True)
class TrainingDefaults:
    """What a task uses where a run does not say otherwise.

    The recipe is that of Wang et al. (2020), which the paper builds on: SGD with momentum and weight decay, a
    learning rate that shrinks a little every round. `pretrain_*` is how the converged start is reached centrally.
    """

    lr: float
    batch_size: int = 32
    local_epochs: int = 2
    momentum: float = 0.9
    weight_decay: float = 1e-4
    lr_decay: float = 0.998
    clients: int = 200
    per_round: int = 10
    pretrain_epochs: int = 10
    pretrain_lr: float = 0.05
    pretrain_batch_size: int = 64
    pretrain_optimizer: str = "sgd"
    """`sgd` (with momentum) or `adam`."""


@dataclass(frozen=True)
class Pixels:
    """How a task of pictures stores them: (..., rows, columns), in whole numbers from 0 (black)."""

    white: int
    """The brightest value."""
    dba: tuple[int, int, int]
    """Size, gap and shift of DBA's trigger on pictures of this size."""


class Task(ABC):
    """One learning problem with its backdoor.

    Parameters
    ----------
    data_dir
        Where the data sets are; None means `G2UARDFL_DATA` or the platform's cache folder.
    model
        One of `models`; None means the first.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for `g2uardfl list tasks`."""
    models: ClassVar[tuple[str, ...]]
    """Names of the models the task can be learnt with; the first is the default."""
    defaults: TrainingDefaults
    num_classes: int
    pixels: ClassVar[Pixels | None] = None
    """Set where inputs are pictures, for attacks that draw on them."""
    pgd_radius: ClassVar[float] = 2.0
    """The radius of the ball that the PGD attacks stay in."""

    def __init__(self, *, data_dir: Path | str | None = None, model: str | None = None) -> None:
        self.data_dir = None if data_dir is None else Path(data_dir)
        self.model = model or self.models[0]
        if self.model not in self.models:
            raise ConfigError(f"task {self.name} has no model {self.model!r}: choose one of {', '.join(self.models)}")

    @cached_property
    def train(self) -> Samples:
        """The training data that is divided among the clients."""
        return self.load_train()

    @cached_property
    def test(self) -> Samples:
        """The data ACC is measured on."""
        return self.load_test()

    @cached_property
    def backdoor_train(self) -> Samples:
        """What attackers train on: backdoored inputs with the attacker's target label."""
        return self.load_backdoor_train()

    @cached_property
    def backdoor_test(self) -> Samples:
        """What ASR is measured on: backdoored inputs with the attacker's target label."""
        return self.load_backdoor_test()

    @abstractmethod
    def load_train(self) -> Samples:
        """Read the training data."""

    @abstractmethod
    def load_test(self) -> Samples:
        """Read the test data."""

    @abstractmethod
    def load_backdoor_train(self) -> Samples:
        """Read or make the attacker's samples; none of them may occur in `load_backdoor_test`."""

    @abstractmethod
    def load_backdoor_test(self) -> Samples:
        """Read or make the samples that tell whether the backdoor works."""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """A fresh model, initialised from torch's global generator (the caller seeds it)."""

    def prepare(self, x: Tensor) -> Tensor:
        """Turn a batch of stored inputs into what the model takes, on the batch's device."""
        return x

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Vary a batch of stored training inputs at random: draw on the CPU, apply on the batch's device."""
        draws = self.draw_augmentation(len(x), generator)
        return x if draws is None else self.apply_augmentation(x, draws.to(x.device))

    def draw_augmentation(self, count: int, generator: torch.Generator) -> Tensor | None:
        """The random choices for `count` inputs, one row each; None (the default) where inputs stay as they are."""
        return None

    def apply_augmentation(self, x: Tensor, draws: Tensor) -> Tensor:
        """The inputs varied as `draws` say, each by its own row; a batch may hold those of several clients."""
        return x

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean training loss of a batch."""
        return nn.functional.cross_entropy(outputs, targets)

    def natural_groups(self) -> Tensor | None:
        """For each training sample the id of its natural group (a thread, a writer), where the data has such groups."""
        return None
