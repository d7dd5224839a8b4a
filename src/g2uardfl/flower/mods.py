"""RED-TEAM TOOLS: client mods that attack your own federation, to see what its server makes of it.

"What if a tenth of my clients were hostile?" Add a mod to your ClientApp and find out:

>>> from g2uardfl.flower import mods
>>> app_mods = [
...     mods.TriggerPoisoning(mods.corner_trigger(3), target=0, hostile=mods.share(0.1)),
...     mods.ModelReplacement(factor=10, hostile=mods.share(0.1)),
... ]  # then ClientApp(mods=app_mods)

A mod leaves clients alone that are not `hostile`, and messages that are not for training. A hostile client says so in
its own log. Never ship a ClientApp that carries one.
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
from .arrays import RecordWeights, array_record

logger = logging.getLogger("flwr.g2uardfl")

CallNext = Callable[[Message, Context], Message]
Hostile = Callable[[Context], bool]
"""Tells from its context whether a client is hostile."""
Batch = tuple[Tensor, Tensor]
"""Inputs and labels."""


def everyone(context: Context) -> bool:
    """Each client that carries the mod is hostile."""
    return True


def share(fraction: float) -> Hostile:
    """The first `fraction` of the partitions are hostile, by the `partition-id` that simulations give each node."""

    def hostile(context: Context) -> bool:
        partition, partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
        return int(partition) < round(fraction * int(partitions))

    return hostile


def flagged(context: Context) -> bool:
    """Nodes started with `flower-supernode --node-config "hostile=true"` are hostile."""
    return bool(context.node_config.get("hostile", False))


class RedTeamMod(ABC):
    """What the attacks have in common: whom and what they apply to.

    Parameters
    ----------
    hostile
        Tells which of the clients that carry the mod attack.
    seed
        Decides the attack's random choices, together with the node and the round.
    """

    generator: torch.Generator
    """For the random choices of the message at hand."""

    def __init__(self, *, hostile: Hostile = everyone, seed: int = 0) -> None:
        self.hostile, self.seed = hostile, seed

    def __call__(self, message: Message, context: Context, call_next: CallNext) -> Message:
        """Attack in a hostile client's training; pass everything else on."""
        training = message.metadata.message_type.split(".")[0] == MessageType.TRAIN
        if not training or not self.hostile(context):
            return call_next(message, context)
        logger.warning("RED TEAM: this client attacks with %s", type(self).__name__)
        self.generator = torch.Generator().manual_seed(_seed(self.seed, message, context))
        return self.attack(message, context, call_next)

    @abstractmethod
    def attack(self, message: Message, context: Context, call_next: CallNext) -> Message:
        """Do what a hostile client does with a training message."""


class UpdateAttack(RedTeamMod):
    """Attacks that train honestly, or on data another mod poisoned, and then alter what is sent."""

    def attack(self, message: Message, context: Context, call_next: CallNext) -> Message:
        """Alter the learnt parameters of the reply's model; running statistics and counters stay as trained."""
        start = _only_model(message)
        reply = call_next(message, context)
        if start is None or reply.has_error():
            return reply
        for name, record in reply.content.array_records.items():
            reply.content[name] = self._altered_record(RecordWeights(start), RecordWeights(record))
        return reply

    def _altered_record(self, before: RecordWeights, trained: RecordWeights) -> ArrayRecord:
        weights = dict(trained)
        for entry in ModelLayout.of(before).parameters:
            if entry.name in weights:
                value = self.alter(before[entry.name].double(), weights[entry.name].double())
                weights[entry.name] = value.to(entry.dtype)
        return array_record(weights)

    @abstractmethod
    def alter(self, before: Tensor, trained: Tensor) -> Tensor:
        """What to send in the place of `trained`, given the parameter as the server sent it."""


class ModelReplacement(UpdateAttack):
    """Model replacement (Bagdasaryan et al. 2020): G + factor (w - G).

    Among n clients that are averaged equally, of which k attack alike, n / k puts their model in the global one's
    place.
    """

    def __init__(self, factor: float, **options: Any) -> None:
        super().__init__(**options)
        self.factor = factor

    def alter(self, before: Tensor, trained: Tensor) -> Tensor:
        """The update, scaled."""
        return before + self.factor * (trained - before)


class Obfuscation(UpdateAttack):
    """Model obfuscation: noise of the given standard deviation on every parameter, against defences that compare."""

    def __init__(self, deviation: float = 0.034, **options: Any) -> None:
        super().__init__(**options)
        self.deviation = deviation

    def alter(self, before: Tensor, trained: Tensor) -> Tensor:
        """The parameter with noise that is another for each client and round."""
        return trained + self.deviation * torch.randn(trained.shape, generator=self.generator, dtype=trained.dtype)


class DataPoisoning(RedTeamMod):
    """Attacks on the data: every batch that a torch `DataLoader` yields while the client trains is partly poisoned.

    Parameters
    ----------
    rate
        The share of each batch that is poisoned (PDR).
    keys
        Where inputs and labels are in a batch: positions in a tuple or list, or names in a dictionary.
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
        """The attacker's version of some samples."""


class LabelFlipping(DataPoisoning):
    """Samples of class `source` (None: of every class) are relabelled as `target`."""

    def __init__(self, target: int, source: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.target, self.source = target, source

    def poison(self, batch: Batch) -> Batch:
        """The same inputs under another label."""
        inputs, labels = batch
        affected = torch.ones_like(labels, dtype=torch.bool) if self.source is None else labels == self.source
        return inputs, torch.where(affected, self.target, labels)


class TriggerPoisoning(DataPoisoning):
    """A backdoor: inputs with a trigger drawn on them, labelled `target`."""

    def __init__(self, trigger: Callable[[Tensor], Tensor], target: int, rate: float = 0.5, **options: Any) -> None:
        super().__init__(rate, **options)
        self.trigger, self.target = trigger, target

    def poison(self, batch: Batch) -> Batch:
        """Triggered inputs, all of the target class."""
        inputs, labels = batch
        return self.trigger(inputs), torch.full_like(labels, self.target)


def corner_trigger(size: int, value: float | None = None) -> Callable[[Tensor], Tensor]:
    """A trigger for pictures: a square of `size` pixels in the lower right corner, of the batch's brightest value.

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
    """Let `change` have every batch that a `DataLoader` yields to this thread."""
    original, thread = DataLoader.__iter__, threading.get_ident()

    def changed(self: DataLoader[Any]) -> Any:
        batches = original(self)
        return batches if threading.get_ident() != thread else map(change, batches)

    DataLoader.__iter__ = changed  # type: ignore[method-assign]
    try:
        yield
    finally:
        DataLoader.__iter__ = original  # type: ignore[method-assign]


def _only_model(message: Message) -> ArrayRecord | None:
    records = list(message.content.array_records.values())
    return records[0] if len(records) == 1 else None


def _seed(seed: int, message: Message, context: Context) -> int:
    rounds = [record.get("server-round", 0) for record in message.content.config_records.values()]
    digest = hashlib.blake2b(f"{seed}:{context.node_id}:{rounds}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")
