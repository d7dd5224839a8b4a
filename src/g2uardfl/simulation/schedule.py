"""The schedule of a run, drawn from the seed before the first round, so that every defence faces the same rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Ids = npt.NDArray[np.int64]
"""Client ids, or one round number per client."""

_PARTITION, _MALICIOUS, _SELECTION, _TRAINING, _POISONING, _START, _CHURN, _ATTACK = range(8)
"""One random stream for each kind of random choice, so that a change of one does not affect the others."""


@dataclass(frozen=True)
class Schedule:
    """The malicious clients, the selected clients of each round, and the seeds of all random choices in the rounds."""

    seed: int
    malicious: frozenset[int]
    selected: list[Ids]
    """The clients of each round, in ascending order."""

    @staticmethod
    def draw(seed: int, rounds: int, clients: int, per_round: int, pmr: float, churn: float = 0.0) -> Schedule:
        """Draw a schedule.

        Parameters
        ----------
        seed
            Determines the schedule, together with the other arguments.
        rounds, clients, per_round
            Numbers of rounds, clients, and clients selected per round. All present clients are selected if there are
            fewer than `per_round`.
        pmr
            The fraction of clients that are malicious.
        churn
            The fraction of clients that join or leave at a random round; they are selected only while present
            (default: 0).
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
        """The seed of a client's batch order, dropout and augmentation in a round."""
        return derived_seed(self.seed, _TRAINING, round_number, client)

    def poisoning_seed(self, client: int) -> int:
        """The seed of a malicious client's backdoored samples."""
        return derived_seed(self.seed, _POISONING, client)

    def attack_seed(self, round_number: int) -> int:
        """The seed of the attack's own random choices in a round."""
        return derived_seed(self.seed, _ATTACK, round_number)


def _presence(generator: np.random.Generator, rounds: int, clients: int, churn: float) -> tuple[Ids, Ids]:
    """The first round of each client, and the first round without it; at least one client is always present."""
    arrives, leaves = np.ones(clients, dtype=np.int64), np.full(clients, rounds + 1)
    moving = generator.choice(clients, size=min(round(churn * clients), clients - 1), replace=False)
    moments = generator.integers(2, rounds + 1, size=len(moving)) if rounds > 1 else np.ones(len(moving), dtype=int)
    joins = generator.random(len(moving)) < 0.5
    arrives[moving[joins]] = moments[joins]
    leaves[moving[~joins]] = moments[~joins]
    return arrives, leaves


def partition_seed(seed: int) -> int:
    """The seed of the partition of the training data."""
    return derived_seed(seed, _PARTITION)


def start_seed(seed: int) -> int:
    """The seed of the weights of an untrained model."""
    return derived_seed(seed, _START)


def stream(seed: int, *keys: int) -> np.random.Generator:
    """A NumPy generator, independent for each combination of keys."""
    return np.random.default_rng([seed, *keys])


def derived_seed(seed: int, *keys: int) -> int:
    """A seed for torch, independent for each combination of keys."""
    return int(np.random.SeedSequence([seed, *keys]).generate_state(1, np.uint64)[0] >> 1)


def torch_generator(seed: int) -> torch.Generator:
    """A torch generator on the CPU, seeded with `seed`."""
    return torch.Generator().manual_seed(seed)
