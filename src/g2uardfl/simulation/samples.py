"""All samples of a simulated federation: the clients' shares, the poisoned data, the test data and the root data."""

from __future__ import annotations

import torch

from ..attacks.base import Attack
from ..tasks.base import DividedSamples, Samples, Task
from .config import RunConfig
from .partition import partition
from .schedule import Schedule, partition_seed, torch_generator
from .server import split_root


class FederatedSamples:
    """Divides a task's training data among the clients, and its test data between evaluation and server.

    Parameters
    ----------
    task, attack, config, schedule
        Those of the run.
    device
        The device of all samples.
    with_root
        Whether the server gets root data from the test data (default: False).

    Attributes
    ----------
    clients
        The training samples of each client.
    test
        The samples on which ACC is measured.
    backdoor_test
        The samples on which ASR is measured.
    root
        The server's own samples; empty without `with_root`.
    """

    def __init__(
        self,
        task: Task,
        attack: Attack,
        config: RunConfig,
        schedule: Schedule,
        device: torch.device,
        *,
        with_root: bool = False,
    ) -> None:
        self._attack = attack
        self._pdr = config.pdr
        self._schedule = schedule
        self._device = device
        self._poisoned: dict[int, Samples] = {}
        shares = partition(
            task.train.y.numpy(),
            config.clients,
            config.alpha,
            partition_seed(config.seed),
            task.natural_groups() if config.partition == "natural" else None,
            config.partition,
        )
        own = [torch.from_numpy(indices).to(device) for indices in shares]
        self.clients = DividedSamples(task.train.to(device), own)
        self.backdoor_test = attack.backdoor_test().to(device)
        nothing = Samples(task.test.x[:0], task.test.y[:0])
        self.root, test = split_root(task.test, config.seed) if with_root else (nothing, task.test)
        self.test = test.to(device)

    def poisoned(self, client: int) -> Samples:
        """The training samples of a malicious client, made once per run."""
        if client not in self._poisoned:
            generator = torch_generator(self._schedule.poisoning_seed(client))
            clean = self.clients[client].to("cpu")
            self._poisoned[client] = self._attack.training_data(client, clean, self._pdr, generator).to(self._device)
        return self._poisoned[client]


def limit_samples(task: Task, limit: int) -> None:
    """Keep at most `limit` samples of each of the task's sets; which ones does not depend on the run."""
    parts = ("train", "test", "backdoor_train", "backdoor_test")
    wholes: dict[str, Samples] = {part: getattr(task, part) for part in parts}
    for part, whole in wholes.items():
        order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))
        setattr(task, part, whole.take(order[:limit].sort().values))
