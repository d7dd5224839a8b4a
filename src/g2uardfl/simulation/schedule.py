"""The schedule of a run, drawn from the seed before the first round: every defence meets the same rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Ids = npt.NDArray[np.int64]

# Each kind of random choice has its own stream, so that changing one does not move the others.
_PARTITION, _MALICIOUS, _SELECTION, _TRAINING, _POISONING, _START = range(6)


@dataclass(frozen=True)
class Schedule:
    """Who is malicious, who is selected when, and the seeds of all that is drawn on the way."""

    seed: int
    malicious: frozenset[int]
    selected: Ids
    """(rounds x per_round): the clients of each round, ascending."""

    @staticmethod
    def draw(seed: int, rounds: int, clients: int, per_round: int, pmr: float) -> Schedule:
        """Draw a schedule; `pmr` is the share of clients that are malicious."""
        attackers = stream(seed, _MALICIOUS).choice(clients, size=round(pmr * clients), replace=False)
        generator = stream(seed, _SELECTION)
        selected = np.stack([np.sort(generator.choice(clients, size=per_round, replace=False)) for _ in range(rounds)])
        return Schedule(seed, frozenset(int(client) for client in attackers), selected)

    def training_seed(self, round_number: int, client: int) -> int:
        """The seed of a client's batch order, dropout and augmentation in one round."""
        return derived_seed(self.seed, _TRAINING, round_number, client)

    def poisoning_seed(self, client: int) -> int:
        """The seed of a malicious client's choice of backdoored samples."""
        return derived_seed(self.seed, _POISONING, client)


def partition_seed(seed: int) -> int:
    """The seed by which data is divided among clients."""
    return derived_seed(seed, _PARTITION)


def start_seed(seed: int) -> int:
    """The seed of the model's first weights and of its central training."""
    return derived_seed(seed, _START)


def stream(seed: int, *keys: int) -> np.random.Generator:
    """An independent NumPy generator for each combination of keys."""
    return np.random.default_rng([seed, *keys])


def derived_seed(seed: int, *keys: int) -> int:
    """An independent seed for torch for each combination of keys."""
    return int(np.random.SeedSequence([seed, *keys]).generate_state(1, np.uint64)[0] >> 1)


def torch_generator(seed: int) -> torch.Generator:
    """A CPU generator with this seed."""
    return torch.Generator().manual_seed(seed)
