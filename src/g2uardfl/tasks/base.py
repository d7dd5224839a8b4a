"""The interface of tasks: data, model, loss, backdoor and training defaults in one class.

A third party's task subclasses `Task` in its own module and is used as `--task package.module:ClassName`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.errors import ConfigError
from ..core.settings import NoSettings, build
from ..core.text import suggestion


@dataclass(frozen=True)
class Samples:
    """Inputs and labels. Inputs are in compact stored form (`uint8` images, token ids); see `Task.prepare`."""

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
    """Samples divided among clients. A client's samples are copied on access, so that memory holds the data set once.

    Parameters
    ----------
    whole
        All samples.
    shares
        The indices of each client's samples, on the device of `whole`.

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
        """The number of a client's samples."""
        return len(self.shares[client])


def concatenate(first: Samples, second: Samples) -> Samples:
    """The samples of `first` followed by those of `second`."""
    return Samples(torch.cat([first.x, second.x]), torch.cat([first.y, second.y]))


@dataclass(frozen=True)
class TrainingDefaults:
    """A task's default settings for training.

    The recipe is that of Wang et al. (2020), on which the paper builds: SGD with momentum and weight decay, and a
    learning rate that decays every round. The settings `pretrain_*` belong to the central training of the converged
    model.
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
    """The stored form of a task's images: integers from 0 (black), with rows and columns as the last dimensions."""

    white: int
    """The largest value."""
    dba: tuple[int, int, int]
    """Size, gap and shift of DBA's trigger on images of this size, in pixels."""


class Task(ABC):
    """A learning problem with its backdoor.

    Parameters
    ----------
    data_dir
        The folder of the data sets; None means `G2UARDFL_DATA` or the platform's cache folder (default: None).
    model
        One of `models`; None means the first (default: None).
    **settings
        The task's own settings, the fields of `Settings`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for `g2uardfl list tasks`."""
    models: ClassVar[tuple[str, ...]]
    """The names of the task's models; the first is the default."""
    defaults: TrainingDefaults
    num_classes: int
    pixels: ClassVar[Pixels | None] = None
    """Set for tasks with images, for attacks that add a trigger to them."""
    pgd_radius: ClassVar[float] = 2.0
    """The radius of the norm ball that the PGD attacks project onto."""
    attack_defaults: ClassVar[Mapping[str, Mapping[str, float]]] = {}
    """For each attack, the settings that its authors chose for this task's data and that differ from their usual ones
    (`Attack.usual`)."""
    Settings: ClassVar[type] = NoSettings
    """A frozen dataclass of the task's own settings, with the fields of `core/settings.py`."""

    def __init__(self, *, data_dir: Path | str | None = None, model: str | None = None, **settings: Any) -> None:
        self.settings: Any = build(self.Settings, settings, type(self).__name__)
        self.data_dir = None if data_dir is None else Path(data_dir)
        self.model = model or self.models[0]
        if self.model not in self.models:
            raise ConfigError(f"task {self.name} has no model {self.model!r}: {suggestion(self.model, self.models)}")

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in {"model": self.model, **vars(self.settings)}.items())
        return f"{type(self).__name__}({shown})"

    def configuration(self) -> dict[str, Any]:
        """The task's own settings by name, as resolved."""
        return asdict(self.settings)

    @cached_property
    def train(self) -> Samples:
        """The training samples, which are divided among the clients."""
        return self.load_train()

    @cached_property
    def test(self) -> Samples:
        """The samples on which ACC is measured."""
        return self.load_test()

    @cached_property
    def backdoor_train(self) -> Samples:
        """The samples that attackers add to their training: backdoored inputs with the attacker's target label."""
        return self.load_backdoor_train()

    @cached_property
    def backdoor_test(self) -> Samples:
        """The samples on which ASR is measured: backdoored inputs with the attacker's target label."""
        return self.load_backdoor_test()

    @abstractmethod
    def load_train(self) -> Samples:
        """Load the training samples."""

    @abstractmethod
    def load_test(self) -> Samples:
        """Load the test samples."""

    @abstractmethod
    def load_backdoor_train(self) -> Samples:
        """Load or generate the attacker's samples; none of them may occur in `load_backdoor_test`."""

    @abstractmethod
    def load_backdoor_test(self) -> Samples:
        """Load or generate the samples on which ASR is measured."""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """An untrained model, initialised from torch's global generator, which the caller seeds."""

    def prepare(self, x: Tensor) -> Tensor:
        """Convert a batch of stored inputs into model inputs, on the batch's device (default: unchanged)."""
        return x

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Augment a batch of stored training inputs: draw on the CPU, apply on the batch's device."""
        draws = self.draw_augmentation(len(x), generator)
        return x if draws is None else self.apply_augmentation(x, draws.to(x.device))

    def draw_augmentation(self, count: int, generator: torch.Generator) -> Tensor | None:
        """The random choices for `count` inputs, one row per input; None for no augmentation (default: None)."""
        return None

    def apply_augmentation(self, x: Tensor, draws: Tensor) -> Tensor:
        """Augment each input by its row of `draws`; a batch may contain inputs of several clients."""
        return x

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean training loss of a batch."""
        return nn.functional.cross_entropy(outputs, targets)

    def natural_groups(self) -> Tensor | None:
        """The id of each training sample's natural group, such as a thread or writer; None without such groups."""
        return None
