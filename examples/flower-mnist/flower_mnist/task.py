"""Data, model and training: the part to replace in your own app. Nothing here depends on attacks or defences."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from g2uardfl import tasks
from g2uardfl.simulation.partition import partition
from g2uardfl.tasks.base import Task


@lru_cache
def load_task(name: str) -> Task:
    """The learning problem, loaded once for each process."""
    return tasks.create(name)


@lru_cache
def shares(name: str, clients: int, alpha: float, seed: int) -> list[Tensor]:
    """The indices of each client's training samples."""
    labels = load_task(name).train.y.numpy()
    return [torch.from_numpy(indices) for indices in partition(labels, clients, alpha, seed)]


def train(
    task: Task, model: nn.Module, data: TensorDataset, epochs: int, learning_rate: float, batch_size: int, seed: int
) -> float:
    """Train `model` and return the mean loss of the last epoch."""
    order = torch.Generator().manual_seed(seed)
    loader = DataLoader(data, batch_size, shuffle=True, generator=order)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    model.train()
    losses: list[float] = []
    for _ in range(epochs):
        losses = []
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = task.loss(model(task.prepare(inputs)), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def share_predicted(task: Task, model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """The share of `inputs` that the model classifies as `labels`."""
    model.eval()
    batches = zip(inputs.split(500), labels.split(500), strict=True)
    hits = sum(int((model(task.prepare(x)).argmax(1) == y).sum()) for x, y in batches)
    return hits / len(labels)
