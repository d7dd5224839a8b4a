"""The schedule of a run, drawn from the seed before the first round: every defence meets the same rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Ids = npt.NDArray[np.int64]

# Each kind of random choice has its own stream, so that changing one does not move the others.
_PARTITION, _MALICIOUS, _SELECTION, _TRAINING, _POISONING, _START, _CHURN, _ATTACK = range(8)


@dataclass(frozen=True)
class Schedule:
    """Who is malicious, who is selected when, and the seeds of all that is drawn on the way."""

    seed: int
    malicious: frozenset[int]
    selected: list[Ids]
    """For each round its clients, ascending."""

    @staticmethod
    def draw(seed: int, rounds: int, clients: int, per_round: int, pmr: float, churn: float = 0.0) -> Schedule:
        """Draw a schedule; `pmr` is the share of malicious clients, `churn` the share of those that come or go.

        A client that goes is never selected after some round, one that comes is never selected before. When fewer than
        `per_round` are there, all of them are selected.
        """
        attackers = stream(seed, _MALICIOUS).choice(clients, size=round(pmr * clients), replace=False)
        arrives, leaves = _presence(stream(seed, _CHURN), rounds, clients, churn)
        generator = stream(seed, _SELECTION)
        selected = []
        for number in range(1, rounds + 1):
            present = np.flatnonzero((arrives <= number) & (number < leaves))
            size = min(per_round, len(present))
            selected.append(np.sort(generator.choice(present, size=size, replace=False)))
        return Schedule(seed, frozenset(int(client) for client in attackers), selected)

    def training_seed(self, round_number: int, client: int) -> int:
        """The seed of a client's batch order, dropout and augmentation in one round."""
        return derived_seed(self.seed, _TRAINING, round_number, client)

    def poisoning_seed(self, client: int) -> int:
        """The seed of a malicious client's choice of backdoored samples."""
        return derived_seed(self.seed, _POISONING, client)

    def attack_seed(self, round_number: int) -> int:
        """The seed of the attacker's own random choices in one round."""
        return derived_seed(self.seed, _ATTACK, round_number)


def _presence(generator: np.random.Generator, rounds: int, clients: int, churn: float) -> tuple[Ids, Ids]:
    """The round in which each client arrives and the one from which it is gone; at least one client always stays."""
    arrives, leaves = np.ones(clients, dtype=np.int64), np.full(clients, rounds + 1)
    moving = generator.choice(clients, size=min(round(churn * clients), clients - 1), replace=False)
    moments = generator.integers(2, rounds + 1, size=len(moving)) if rounds > 1 else np.ones(len(moving), dtype=int)
    joins = generator.random(len(moving)) < 0.5
    arrives[moving[joins]] = moments[joins]
    leaves[moving[~joins]] = moments[~joins]
    return arrives, leaves


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
