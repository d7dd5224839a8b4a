"""Local training: SGD on one client's samples, starting from the global model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from ..core.threads import in_parallel
from ..tasks.base import Samples, Task
from .dropout import set_key, step_key


@dataclass(frozen=True)
class Recipe:
    """Settings of a client's training. The last three serve attacks; honest clients use their defaults."""

    lr: float
    batch_size: int
    epochs: int
    steps: int
    """The number of SGD steps; 0 means `epochs` full passes over the samples."""
    momentum: float
    weight_decay: float
    loss_weight: float = 1.0
    """The loss is `loss_weight` x the task's loss + `distance_weight` x ‖w - G‖."""
    distance_weight: float = 0.0
    radius: float = math.inf
    """After each step the weights are projected onto the ball ‖w - G‖ <= `radius`."""

    def longer(self, factor: float) -> Recipe:
        """The same recipe with `factor` times the epochs and steps, rounded to whole ones."""
        return replace(self, epochs=max(1, round(self.epochs * factor)), steps=round(self.steps * factor))

    @property
    def constrained(self) -> bool:
        """Whether training depends on the distance to the global model."""
        return self.loss_weight != 1 or self.distance_weight != 0 or self.radius < math.inf


@dataclass(frozen=True)
class Job:
    """One client's training in one round."""

    client: int
    samples: Samples
    recipe: Recipe
    seed: int
    """Determines the order of samples, augmentation and dropout."""


def train_locally(task: Task, model: nn.Module, global_weights: Mapping[str, Tensor], job: Job) -> dict[str, Tensor]:
    """Train a copy of the global model on a client's samples and return its weights.

    `model` is working memory and is overwritten; its dropout layers must be keyed (`with_keyed_dropout`). The job's
    seed determines all random choices.
    """
    recipe = job.recipe
    model.load_state_dict(global_weights)
    model.train()
    optimizer = _Sgd(model, recipe)
    offset = _Offset(model, global_weights)
    for step, (x, y) in enumerate(training_batches(task, job)):
        set_key(model, step_key(job.seed, step))
        model.zero_grad()
        loss = task.loss(model(task.prepare(x)), y)
        if recipe.constrained:
            loss = recipe.loss_weight * loss + recipe.distance_weight * offset.norm()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if recipe.radius < math.inf:
            offset.project(recipe.radius)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


class _Sgd:
    """`torch.optim.SGD` without its class, which imports PyTorch's compiler: a second in every process."""

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        self.parameters = list(model.parameters())
        self.velocities: list[Tensor | None] = [None] * len(self.parameters)
        self.recipe = recipe

    @torch.no_grad()
    def step(self) -> None:
        """Change all parameters that have a gradient."""
        used = [place for place, parameter in enumerate(self.parameters) if parameter.grad is not None]
        velocities = [self.velocities[place] for place in used]
        sgd(
            [self.parameters[place] for place in used],
            [gradient for parameter in self.parameters if (gradient := parameter.grad) is not None],
            velocities,
            lr=self.recipe.lr,
            momentum=self.recipe.momentum,
            weight_decay=self.recipe.weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        for place, velocity in zip(used, velocities, strict=True):
            self.velocities[place] = velocity


class _Offset:
    """w - G as one vector over all parameters of a model."""

    def __init__(self, model: nn.Module, global_weights: Mapping[str, Tensor]) -> None:
        self.pairs = [(parameter, global_weights[name]) for name, parameter in model.named_parameters()]

    def norm(self) -> Tensor:
        """‖w - G‖, differentiable; its gradient at w = G is 0."""
        return joint_norm([parameter - centre for parameter, centre in self.pairs])

    @torch.no_grad()
    def project(self, radius: float) -> None:
        """Project w onto the ball of `radius` around G."""
        norm = float(self.norm())
        if norm > radius:
            for parameter, centre in self.pairs:
                parameter.copy_(centre + (parameter - centre) * (radius / norm))


def joint_norm(tensors: Iterable[Tensor]) -> Tensor:
    """The L2 norm of all tensors as one vector.

    >>> joint_norm([torch.tensor([[1.0, 2.0]]), torch.tensor(2.0)])
    tensor(3.)
    """
    norm: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(tensor) for tensor in tensors]))
    return norm


def training_batches(task: Task, job: Job) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs (augmented, not yet prepared) and labels of each step of a job; the same for every engine."""
    samples, recipe = job.samples, job.recipe
    generator = torch.Generator().manual_seed(job.seed)
    for batch in batches(len(samples), recipe.batch_size, recipe.epochs, recipe.steps, generator):
        indices = batch.to(samples.y.device)
        yield task.augment(samples.x[indices], generator), samples.y[indices]


def batches(count: int, batch_size: int, epochs: int, steps: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Batches of indices: `epochs` shuffled passes over `count` samples, or `steps` batches if `steps` is not 0."""
    done = 0
    while True:
        for batch in torch.split(torch.randperm(count, generator=generator), batch_size):
            yield batch
            done += 1
            if steps and done == steps:
                return
        if not steps:
            epochs -= 1
            if epochs <= 0:
                return


def share_predicted(task: Task, model: nn.Module, samples: Samples) -> float:
    """The fraction of `samples` whose label the model predicts: ACC on test data, ASR on backdoored data."""
    model.eval()

    @torch.no_grad()
    def right(start: int) -> Tensor:
        x, y = samples.x[start : start + batch_size], samples.y[start : start + batch_size]
        hits: Tensor = model(task.prepare(x)).argmax(dim=1) == y
        return hits.sum()

    on_cpu = samples.x.device.type == "cpu"
    # A CPU core is fastest if a batch's activations fit into its cache; a GPU needs large batches.
    batch_size = 64 if on_cpu else 1024
    starts = range(0, len(samples), batch_size)
    counts = list(in_parallel(right, starts) if on_cpu else map(right, starts))
    return int(torch.stack(counts).sum()) / len(samples)
