"""How the clients of a round are trained: one after the other, side by side in processes, or as one batched model.

Every engine gives the same weights for the same jobs, up to the order in which floating-point numbers are added.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from ..tasks.base import Task
from .dropout import with_keyed_dropout
from .training import Job, train_locally

ClientWeights = dict[int, dict[str, Tensor]]


class Engine(ABC):
    """Trains the clients of a round."""

    @abstractmethod
    def train(self, global_weights: Mapping[str, Tensor], jobs: Sequence[Job]) -> ClientWeights:
        """Each client's weights after its job, in the order of `jobs`."""

    def close(self) -> None:  # noqa: B027 - only some engines hold anything
        """Let go of processes and memory."""


class LoopEngine(Engine):
    """One client after the other in this process: the plain way, and the reference for the others."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        self.task = task
        self.model = with_keyed_dropout(model)

    def train(self, global_weights: Mapping[str, Tensor], jobs: Sequence[Job]) -> ClientWeights:
        """Train each client in turn."""
        return {job.client: train_locally(self.task, self.model, global_weights, job) for job in jobs}
