"""RED-TEAM TOOLS: client mods that attack your own federation, to test the defence of its server.

"What if a tenth of my clients were hostile?" Add a mod to your ClientApp to find out:

>>> from g2uardfl.flower import mods
>>> app_mods = [
...     mods.TriggerPoisoning(mods.corner_trigger(3), target=0, hostile=mods.share(0.1)),
...     mods.ModelReplacement(factor=10, hostile=mods.share(0.1)),
... ]  # then ClientApp(mods=app_mods)

A mod attacks in training messages of `hostile` clients only. A hostile client writes this to its own log. Never ship a
ClientApp with a red-team mod.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MessageType
from torch import Tensor
from torch.utils.data import DataLoader

from ..core.errors import ConfigError
from ..core.layout import ModelLayout
from .arrays import array_record, decode

logger = logging.getLogger("flwr.g2uardfl")

CallNext = Callable[[Message, Context], Message]
Hostile = Callable[[Context], bool]
"""Decides from its context whether a client is hostile."""
Batch = tuple[Tensor, Tensor]
"""Inputs and labels."""


def everyone(context: Context) -> bool:
    """Every client with the mod is hostile."""
    return True


def share(fraction: float) -> Hostile:
    """The first `fraction` of the partitions is hostile, by the `partition-id` that simulations assign to each node."""

    def hostile(context: Context) -> bool:
        partition, partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
        return int(partition) < round(fraction * int(partitions))

    return hostile


def flagged(context: Context) -> bool:
    """Nodes that were started with `flower-supernode --node-config "hostile=true"` are hostile."""
    return bool(context.node_config.get("hostile", False))


class RedTeamMod(ABC):
    """The base of all attacks: which clients and messages they apply to.

    Parameters
    ----------
    hostile
        Decides which of the clients with the mod attack (default: all).
    seed
        Determines the random choices of the attack, together with the node and the round (default: 0).
    """

    generator: torch.Generator
    """For the random choices in the current message."""

    def __init__(self, *, hostile: Hostile = everyone, seed: int = 0) -> None:
        self.hostile, self.seed = hostile, seed

    def __call__(self, message: Message, context: Context, call_next: CallNext) -> Message:
        """Attack in the training of a hostile client; forward everything else."""
        training = message.metadata.message_type.split(".")[0] == MessageType.TRAIN
        if not training or not self.hostile(context):
            return call_next(message, context)
        logger.warning("RED TEAM: this client attacks with %s", type(self).__name__)
        self.generator = torch.Generator().manual_seed(_seed(self.seed, message, context))
        return self.attack(message, context, call_next)

    @abstractmethod
    def attack(self, message: Message, context: Context, call_next: CallNext) -> Message:
        """Handle a training message as a hostile client."""


class UpdateAttack(RedTeamMod):
    """Attacks that train honestly, or on data that another mod poisoned, and then alter the trained parameters."""

    def attack(self, message: Message, context: Context, call_next: CallNext) -> Message:
        """Alter the parameters of the reply's model; running statistics and counters stay as trained."""
        start = _only_model(message)
        reply = call_next(message, context)
        if start is None or reply.has_error():
            return reply
        for name, record in reply.content.array_records.items():
            reply.content[name] = self._altered_record(_tensors(start), _tensors(record))
        return reply

    def _altered_record(self, before: dict[str, Tensor], trained: dict[str, Tensor]) -> ArrayRecord:
        weights = dict(trained)
        for entry in ModelLayout.of(before).parameters:
            if entry.name in weights:
                value = self.alter(before[entry.name].double(), weights[entry.name].double())
                weights[entry.name] = value.to(entry.dtype)
        return array_record(weights)

    @abstractmethod
    def alter(self, before: Tensor, trained: Tensor) -> Tensor:
        """The parameter to send instead of `trained`; `before` is the parameter that the server sent."""


class ModelReplacement(UpdateAttack):
    """Model replacement (Bagdasaryan et al. 2020): G + factor (w - G).

    Where n clients are averaged equally and k of them send the same model, the factor n / k replaces the global model
    by theirs.
    """

    def __init__(self, factor: float, **options: Any) -> None:
        super().__init__(**options)
        self.factor = factor

    def alter(self, before: Tensor, trained: Tensor) -> Tensor:
        """Scale the update."""
        return before + self.factor * (trained - before)


class Obfuscation(UpdateAttack):
    """Model obfuscation: adds noise to every parameter, to evade defences that compare updates."""

    def __init__(self, deviation: float = 0.034, **options: Any) -> None:
        super().__init__(**options)
        self.deviation = deviation

    def alter(self, before: Tensor, trained: Tensor) -> Tensor:
        """Add noise that differs for each client and round."""
        return trained + self.deviation * torch.randn(trained.shape, generator=self.generator, dtype=trained.dtype)


class DataPoisoning(RedTeamMod):
    """Attacks that poison a part of every batch that a torch `DataLoader` yields while the client trains.

    Parameters
    ----------
    rate
        The share of each batch that is poisoned, the PDR (default: 1).
    keys
        The places of inputs and labels in a batch: positions in a tuple or list, or keys of a dictionary (default: 0
        and 1).
    """

    def __init__(self, rate: float = 1.0, *, keys: tuple[Any, Any] = (0, 1), **options: Any) -> None:
        super().__init__(**options)
        if not 0 < rate <= 1:
            raise ConfigError(f"rate={rate!r} is not allowed: it must be a number above 0 and at most 1")
        self.rate, self.keys = rate, keys

    def attack(self, message: Message, context: Context, call_next: CallNext) -> Message:
        """Train on poisoned batches."""
        with _intercepted_batches(self._poisoned):
            return call_next(message, context)

    def _poisoned(self, batch: Any) -> Any:
        first, second = self.keys
        inputs, labels = batch[first].clone(), batch[second].clone()
        chosen = torch.randperm(len(labels), generator=self.generator)[: max(1, round(self.rate * len(labels)))]
        inputs[chosen], labels[chosen] = self.poison((inputs[chosen], labels[chosen]))
        if isinstance(batch, Mapping):
            return {**batch, first: inputs, second: labels}
        parts = list(batch)
        parts[first], parts[second] = inputs, labels
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)

    @abstractmethod
    def poison(self, batch: Batch) -> Batch:
        """The poisoned version of some samples."""


class LabelFlipping(DataPoisoning):
    """Relabels samples of class `source` (None: of every class) as `target`."""

    def __init__(self, target: int, source: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.target, self.source = target, source

    def poison(self, batch: Batch) -> Batch:
        """Change the labels."""
        inputs, labels = batch
        affected = torch.ones_like(labels, dtype=torch.bool) if self.source is None else labels == self.source
        return inputs, torch.where(affected, self.target, labels)


class TriggerPoisoning(DataPoisoning):
    """A backdoor: inputs with a trigger, labelled `target`."""

    def __init__(self, trigger: Callable[[Tensor], Tensor], target: int, rate: float = 0.5, **options: Any) -> None:
        super().__init__(rate, **options)
        self.trigger, self.target = trigger, target

    def poison(self, batch: Batch) -> Batch:
        """Draw the trigger on all inputs and label them as the target."""
        inputs, labels = batch
        return self.trigger(inputs), torch.full_like(labels, self.target)


def corner_trigger(size: int, value: float | None = None) -> Callable[[Tensor], Tensor]:
    """A trigger for images: a square of `size` x `size` pixels in the lower right corner.

    Its pixels have the given value, or the largest value of the batch.

    >>> corner_trigger(1, value=9)(torch.zeros(1, 1, 2, 2)).flatten()
    tensor([0., 0., 0., 9.])
    """

    def draw(inputs: Tensor) -> Tensor:
        marked = inputs.clone()
        marked[..., -size:, -size:] = inputs.max() if value is None else value
        return marked

    return draw


@contextmanager
def _intercepted_batches(change: Callable[[Any], Any]) -> Iterator[None]:
    """Pass every batch that a `DataLoader` yields to this thread through `change`."""
    original, thread = DataLoader.__iter__, threading.get_ident()

    def changed(self: DataLoader[Any]) -> Any:
        batches = original(self)
        return batches if threading.get_ident() != thread else map(change, batches)

    DataLoader.__iter__ = changed  # type: ignore[method-assign]
    try:
        yield
    finally:
        DataLoader.__iter__ = original  # type: ignore[method-assign]


def _tensors(record: ArrayRecord) -> dict[str, Tensor]:
    return {name: decode(array) for name, array in record.items()}


def _only_model(message: Message) -> ArrayRecord | None:
    records = list(message.content.array_records.values())
    return records[0] if len(records) == 1 else None


def _seed(seed: int, message: Message, context: Context) -> int:
    rounds = [record.get("server-round", 0) for record in message.content.config_records.values()]
    digest = hashlib.blake2b(f"{seed}:{context.node_id}:{rounds}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")
