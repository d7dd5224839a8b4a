"""Trains all clients of a round as one batched model, because the batches of one client are too small for a GPU.

This module prepares the inputs of all steps; `batched_model` computes the steps. Both are written by hand because
`torch.func.vmap` over whole models neither captures CUDA graphs nor uses cuDNN's fast convolutions.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..core.errors import ConfigError
from ..tasks.base import Task
from .batched_layers import MaskedBatchNorm, has_batched_form, to_batched_form
from .batched_model import BatchedModel
from .dropout import step_key
from .engine import Engine, LoopEngine, TrainedWeights
from .local import Job, batches, training_batches

STEPS_PREPARED_AT_ONCE = 16
"""The inputs of this many steps are prepared for the model at once; the others stay in their compact stored form."""


class BatchedEngine(Engine):
    """Trains all clients of a round together; on a GPU each step is a replayed CUDA graph.

    The weights equal those of `LoopEngine` up to rounding, provided that `task.loss` is a mean of losses that depend on
    one sample each (as cross-entropy is) and `task.prepare` treats each sample on its own: short batches are padded,
    and the loss is the mean over the real samples. Recipes may differ between clients in every field. On a GPU, model
    and `task.loss` are captured in the graph, so they must not copy from the host or wait for the device.

    Parameters
    ----------
    task
        Prepares inputs and computes the loss.
    model
        Determines the device; must be supported (`supports`). The engine works on a copy.
    """

    def __init__(self, task: Task, model: nn.Module) -> None:
        if not self.supports(model):
            raise ConfigError(f"{type(model).__name__} cannot be trained as one batched model: use the loop engine")
        self.task = task
        self._loop = LoopEngine(task, model)
        self._model = to_batched_form(copy.deepcopy(model)).train()
        self._has_batch_norm = any(isinstance(module, MaskedBatchNorm) for module in self._model.modules())
        self._device = next(model.parameters()).device
        self._batched: BatchedModel | None = None

    @staticmethod
    def supports(model: nn.Module) -> bool:
        """Whether `model` can be batched: one dtype, no shared or frozen parameters, only layers with a batched form.

        Recurrent layers need a model with the switch `fused`.
        """
        parameters = dict(model.named_parameters(remove_duplicate=False))
        return (
            len({parameter.dtype for parameter in parameters.values()}) == 1
            and len(parameters) == len(set(parameters.values()))
            and all(parameter.requires_grad for parameter in parameters.values())
            and has_batched_form(model)
        )

    def train(self, global_weights: Mapping[str, Tensor], jobs: Sequence[Job]) -> TrainedWeights:
        """Train all jobs together, step by step."""
        plans = [_plan(self.task, job) for job in jobs]
        # Jobs in decreasing order of steps: the active clients are then the first rows, and the batch can shrink.
        together = [index for index, plan in enumerate(plans) if self._can_be_batched(plan)]
        together.sort(key=lambda index: len(plans[index].batches), reverse=True)
        alone = [index for index, plan in enumerate(plans) if not self._can_be_batched(plan)]
        trained = self._train_together(
            global_weights, [jobs[index] for index in together], [plans[index] for index in together]
        )
        trained += self._loop.train(global_weights, [jobs[index] for index in alone])
        by_index = dict(zip(together + alone, trained, strict=True))
        return [by_index[index] for index in range(len(jobs))]

    def close(self) -> None:
        """Release the batched model and its graphs."""
        self._batched = None

    def _can_be_batched(self, plan: _Plan) -> bool:
        """Whether a job's batches can be masked; with BatchNorm, torch itself decides about a batch of one sample."""
        return all(len(batch) > int(self._has_batch_norm) for batch in plan.batches)

    def _train_together(
        self, global_weights: Mapping[str, Tensor], jobs: Sequence[Job], plans: Sequence[_Plan]
    ) -> TrainedWeights:
        if not jobs:
            return []
        inputs = self._load(jobs, plans)
        batched = self._batched_model_for(inputs)
        batched.begin(global_weights, jobs)
        for start in range(0, len(inputs.counts), STEPS_PREPARED_AT_ONCE):
            steps = slice(start, start + STEPS_PREPARED_AT_ONCE)
            stored = inputs.x[steps, : inputs.active[start]]
            flat = self.task.prepare(stored.flatten(0, 2))
            prepared = flat.reshape(*stored.shape[:3], *flat.shape[1:])
            for step, x in enumerate(prepared, start):
                batched.step(inputs.active[step], x, inputs.y[step], inputs.counts[step], inputs.keys[step])
        return batched.weights(len(jobs))

    def _load(self, jobs: Sequence[Job], plans: Sequence[_Plan]) -> _Inputs:
        """The inputs of all steps of a round on the device, in their stored form."""
        numbers_of_steps = [len(plan.batches) for plan in plans]
        clients, steps, samples = len(jobs), numbers_of_steps[0], jobs[0].samples
        batch = max(job.recipe.batch_size for job in jobs)
        indices = torch.zeros(clients, steps, batch, dtype=torch.int64)
        counts = torch.zeros(steps, clients, dtype=torch.int32)
        keys = torch.zeros(steps, clients, dtype=torch.int32)
        for client, (job, plan, number) in enumerate(zip(jobs, plans, numbers_of_steps, strict=True)):
            indices[client, :number] = torch.stack([_padded(chosen, batch) for chosen in plan.batches])
            counts[:number, client] = torch.tensor([len(chosen) for chosen in plan.batches])
            keys[:number, client] = torch.tensor([step_key(job.seed, step) for step in range(number)])
        active = [int(number) for number in (counts > 0).sum(dim=1)]
        x = torch.zeros(steps, clients, batch, *samples.x.shape[1:], dtype=samples.x.dtype, device=self._device)
        y = torch.zeros(steps, clients, batch, *samples.y.shape[1:], dtype=samples.y.dtype, device=self._device)
        indices = indices.to(self._device)
        for client, (job, plan, number) in enumerate(zip(jobs, plans, numbers_of_steps, strict=True)):
            self._gather(job, plan, indices[client, :number], x[:number, client], y[:number, client])
        return _Inputs(x, y, counts.to(self._device), keys.to(self._device), active)

    def _gather(self, job: Job, plan: _Plan, indices: Tensor, x: Tensor, y: Tensor) -> None:
        """Write the inputs of all steps of a job into `x` and `y`, in one go unless the task overrides `augment`."""
        if type(self.task).augment is not Task.augment:
            for step, pair in enumerate(training_batches(self.task, job)):
                for target, values in zip((x[step], y[step]), pair, strict=True):
                    target[: len(values)] = values
                    target[len(values) :] = values[:1]
            return
        indices = indices.to(job.samples.y.device)
        y.copy_(job.samples.y[indices])
        stored = job.samples.x[indices]
        if plan.draws:
            draws = torch.cat([_padded(drawn, indices.shape[1]) for drawn in plan.draws]).to(stored.device)
            stored = self.task.apply_augmentation(stored.flatten(0, 1), draws).view(stored.shape)
        x.copy_(stored)

    def _batched_model_for(self, inputs: _Inputs) -> BatchedModel:
        """The batched model of the previous rounds if the inputs fit, otherwise a new one."""
        x, y = self.task.prepare(inputs.x[0, 0]), inputs.y[0, 0]
        clients = inputs.active[0]
        if self._batched is None or not self._batched.fits(clients, x, y):
            self._batched = None  # frees its memory before the new one is allocated
            self._batched = BatchedModel(self.task, self._model, clients, x, y)
        return self._batched


@dataclass(frozen=True)
class _Inputs:
    """The inputs of all steps of a round."""

    x: Tensor
    """Steps x clients x batch x sample, as is `y`."""
    y: Tensor
    counts: Tensor
    """The number of real samples in each batch (steps x clients); 0 where a client has finished."""
    keys: Tensor
    """Dropout keys (steps x clients)."""
    active: list[int]
    """The number of clients that have not finished, for each step; they are the first ones."""


@dataclass(frozen=True)
class _Plan:
    """The sample indices of each step of a job and the random draws of its augmentation, as in `training_batches`."""

    batches: list[Tensor]
    draws: list[Tensor]
    """Empty if the task draws nothing."""


def _plan(task: Task, job: Job) -> _Plan:
    recipe, generator = job.recipe, torch.Generator().manual_seed(job.seed)
    plan = _Plan([], [])
    for chosen in batches(len(job.samples), recipe.batch_size, recipe.epochs, recipe.steps, generator):
        plan.batches.append(chosen)
        drawn = task.draw_augmentation(len(chosen), generator)
        if drawn is not None:
            plan.draws.append(drawn)
    return plan


def _padded(rows: Tensor, count: int) -> Tensor:
    """`rows` padded to `count` by repeating the first one: the model computes padded samples too, so they are valid."""
    return torch.cat([rows, rows[:1].expand(count - len(rows), *rows.shape[1:])])
