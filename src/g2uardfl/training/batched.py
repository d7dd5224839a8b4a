"""All clients of a round as one batched model: a GPU is busy where a single client's small batches leave it idle.

What makes clients differ is data, never control flow: amounts of samples are masks, recipes and dropout keys are
tensors. So one captured CUDA graph serves every step of every round.

Inside a step, the clients' gradients are computed side by side on a few CUDA streams, each with the kernels that a
single client would use. Mapped over clients by `torch.func.vmap`, a convolution becomes a grouped one, for which cuDNN
has slower kernels. Recurrent models are mapped all the same: their many tiny kernels are then shared by all clients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd

from ..core.errors import ConfigError
from ..tasks.base import Task
from .dropout import KeyedDropout, step_key
from .engine import Engine, LoopEngine, TrainedWeights
from .local import Job, batches, training_batches

STEPS_PREPARED_AT_ONCE = 16
"""Inputs wait in their compact stored form; so many steps at a time are turned into what the model takes."""
ALIGNMENT = 32
"""Every parameter begins at a multiple of this many numbers, so that matrix kernels find aligned memory."""
STREAMS = 8
"""So many clients' gradients are computed at a time."""
WIDE = 64
"""Convolutions of at least so many input channels are faster with channels last in memory; narrow ones are slower."""


class BatchedEngine(Engine):
    """Trains all clients of a round together, on a GPU with each step a replayed CUDA graph.

    The weights are those of `LoopEngine` up to rounding, if `task.loss` is the mean of losses that each depend on one
    sample alone (as cross-entropy is) and `task.prepare` treats each sample by itself: short batches are padded, and
    the loss is the mean over the real samples. Recipes may differ between clients in everything. On a GPU the model and
    `task.loss` are recorded in the graph, so they must not copy from the host or wait for the device.

    Parameters
    ----------
    task
        Prepares inputs and says the loss.
    model
        Decides the device; must be one that `supports` accepts. The engine works on its own copy.
    """

    def __init__(self, task: Task, model: nn.Module) -> None:
        if not self.supports(model):
            raise ConfigError(f"{type(model).__name__} cannot be trained as one batched model: use the loop engine")
        self.task = task
        self._loop = LoopEngine(task, model)
        self._model = _mappable(copy.deepcopy(model)).train()
        self._normalises = any(isinstance(module, MaskedBatchNorm) for module in self._model.modules())
        self._device = next(model.parameters()).device
        self._cohort: _Cohort | None = None

    @staticmethod
    def supports(model: nn.Module) -> bool:
        """Whether every part of `model` has a batched form (recurrent layers need the switch `fused`)."""
        parameters = dict(model.named_parameters(remove_duplicate=False))
        return (
            len({parameter.dtype for parameter in parameters.values()}) == 1
            and len(parameters) == len(set(parameters.values()))
            and all(parameter.requires_grad for parameter in parameters.values())
            and all(_has_batched_form(module, hasattr(model, "fused")) for module in model.modules())
        )

    def train(self, global_weights: Mapping[str, Tensor], jobs: Sequence[Job]) -> TrainedWeights:
        """Train all jobs step by step together."""
        orders = [_order(self.task, job) for job in jobs]
        # The longest job first: those still at work are then the first rows, and the batched model can shrink.
        together = [place for place, order in enumerate(orders) if self._fits(order)]
        together.sort(key=lambda place: len(orders[place].batches), reverse=True)
        alone = [place for place, order in enumerate(orders) if not self._fits(order)]
        trained = self._train_together(
            global_weights, [jobs[place] for place in together], [orders[place] for place in together]
        )
        trained += self._loop.train(global_weights, [jobs[place] for place in alone])
        by_place = dict(zip(together + alone, trained, strict=True))
        return [by_place[place] for place in range(len(jobs))]

    def close(self) -> None:
        """Let go of the batched model and its graphs."""
        self._cohort = None

    def _fits(self, order: _Order) -> bool:
        """Whether a job's batches can be masked; torch itself may refuse to normalise a single sample."""
        return all(len(batch) > int(self._normalises) for batch in order.batches)

    def _train_together(
        self, global_weights: Mapping[str, Tensor], jobs: Sequence[Job], orders: Sequence[_Order]
    ) -> TrainedWeights:
        if not jobs:
            return []
        inputs = self._stage(jobs, orders)
        cohort = self._cohort_for(inputs)
        cohort.begin(global_weights, jobs)
        for start in range(0, len(inputs.counts), STEPS_PREPARED_AT_ONCE):
            steps = slice(start, start + STEPS_PREPARED_AT_ONCE)
            stored = inputs.x[steps, : inputs.active[start]]
            flat = self.task.prepare(stored.flatten(0, 2))
            prepared = flat.reshape(*stored.shape[:3], *flat.shape[1:])
            for step, x in enumerate(prepared, start):
                cohort.step(inputs.active[step], x, inputs.y[step], inputs.counts[step], inputs.keys[step])
        return cohort.weights(len(jobs))

    def _stage(self, jobs: Sequence[Job], orders: Sequence[_Order]) -> _Inputs:
        """All inputs of a round on the device, in the form they are stored in."""
        lengths = [len(order.batches) for order in orders]
        clients, steps, samples = len(jobs), lengths[0], jobs[0].samples
        batch = max(job.recipe.batch_size for job in jobs)
        indices = torch.zeros(clients, steps, batch, dtype=torch.int64)
        counts = torch.zeros(steps, clients, dtype=torch.int32)
        keys = torch.zeros(steps, clients, dtype=torch.int32)
        for client, (job, order, length) in enumerate(zip(jobs, orders, lengths, strict=True)):
            indices[client, :length] = _padded(order.batches, batch)
            counts[:length, client] = torch.tensor([len(chosen) for chosen in order.batches])
            keys[:length, client] = torch.tensor([step_key(job.seed, step) for step in range(length)])
        active = [int(number) for number in (counts > 0).sum(dim=1)]
        x = torch.zeros(steps, clients, batch, *samples.x.shape[1:], dtype=samples.x.dtype, device=self._device)
        y = torch.zeros(steps, clients, batch, *samples.y.shape[1:], dtype=samples.y.dtype, device=self._device)
        indices = indices.to(self._device)
        for client, (job, order, length) in enumerate(zip(jobs, orders, lengths, strict=True)):
            self._gather(job, order, indices[client, :length], x[:length, client], y[:length, client])
        return _Inputs(x, y, counts.to(self._device), keys.to(self._device), active)

    def _gather(self, job: Job, order: _Order, indices: Tensor, x: Tensor, y: Tensor) -> None:
        """Write the inputs of all steps of a job into `x` and `y`, at once where the task draws and applies apart."""
        if type(self.task).augment is not Task.augment:
            for step, pair in enumerate(training_batches(self.task, job)):
                for staged, values in zip((x[step], y[step]), pair, strict=True):
                    staged[: len(values)] = values
                    staged[len(values) :] = values[:1]
            return
        indices = indices.to(job.samples.y.device)
        y.copy_(job.samples.y[indices])
        stored = job.samples.x[indices]
        if order.draws:
            draws = torch.cat([_lengthened(drawn, indices.shape[1]) for drawn in order.draws]).to(stored.device)
            stored = self.task.apply_augmentation(stored.flatten(0, 1), draws).view(stored.shape)
        x.copy_(stored)

    def _cohort_for(self, inputs: _Inputs) -> _Cohort:
        """The batched model of earlier rounds where it is wide enough and not far too wide, else a new one."""
        x, y = self.task.prepare(inputs.x[0, 0]), inputs.y[0, 0]
        clients = inputs.active[0]
        if self._cohort is None or not self._cohort.holds(clients, x, y):
            self._cohort = None  # its memory is free before the next one asks for some
            self._cohort = _Cohort(self.task, self._model, clients, x, y)
        return self._cohort


@dataclass(frozen=True)
class _Inputs:
    """What the steps of a round take; x and y are steps x clients x batch x sample, counts and keys steps x clients."""

    x: Tensor
    y: Tensor
    counts: Tensor
    """Real samples of each batch; 0 where a client has finished."""
    keys: Tensor
    active: list[int]
    """How many clients, the first ones, are still at work in each step."""


class _Cohort:
    """The batched model: a matrix with a row of parameters per client, and all else a step reads or changes.

    The tensors stay where they are for good, since a CUDA graph replays on fixed addresses. In one matrix, SGD is a
    handful of kernels whatever the number of layers.
    """

    def __init__(self, task: Task, model: nn.Module, clients: int, x: Tensor, y: Tensor) -> None:
        self.task = task
        self.model = model
        self.clients = clients
        modules = dict(model.named_modules())
        self.mapped = any(isinstance(module, nn.RNNBase) for module in modules.values())
        self.channels_last = any(
            isinstance(module, nn.Conv2d) and module.in_channels >= WIDE for module in modules.values()
        )
        self.key_names = [f"{name}.key" for name, module in modules.items() if isinstance(module, KeyedDropout)]
        self.real_names = [f"{name}.real" for name, module in modules.items() if isinstance(module, MaskedBatchNorm)]
        self.places: dict[str, tuple[int, torch.Size]] = {}
        width = 0
        for name, parameter in model.named_parameters():
            self.places[name] = (width, parameter.shape)
            width += parameter.numel() + -parameter.numel() % ALIGNMENT
            dtype = parameter.dtype
        device = x.device
        self.rows = torch.zeros(clients, width, dtype=dtype, device=device)
        self.velocity = torch.zeros_like(self.rows)
        self.gradients = torch.zeros_like(self.rows)
        number = STREAMS if self.rows.is_cuda else 0
        self.streams = [torch.cuda.Stream(device) for _ in range(number)]  # type: ignore[no-untyped-call]
        self.padding = torch.zeros(clients, ALIGNMENT, dtype=dtype, device=device)
        self.buffers = {
            name: buffer.to(device).expand(clients, *buffer.shape).clone()
            for name, buffer in model.named_buffers()
            if name not in {*self.key_names, *self.real_names}
        }
        self.x = torch.zeros(clients, *x.shape, dtype=x.dtype, device=device)
        if self.channels_last and x.dim() == 4:
            self.x = self.x.movedim(2, -1).contiguous().movedim(-1, 2)
        self.y = torch.zeros(clients, *y.shape, dtype=y.dtype, device=device)
        self.counts = torch.zeros(clients, dtype=torch.int32, device=device)
        self.keys = torch.zeros(clients, dtype=torch.int32, device=device)
        self.recipes = torch.zeros(6, clients, 1, dtype=dtype, device=device)
        self.centre = torch.zeros(1, width, dtype=dtype, device=device)
        """The global model, which constrained jobs keep close to."""
        self.constrained = False
        self.graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}

    def holds(self, clients: int, x: Tensor, y: Tensor) -> bool:
        """Whether batches like `x` and `y` of so many clients fit without more than half of the rows idle."""
        same = self.x.shape[1:] == x.shape and self.y.shape[1:] == y.shape and self.x.dtype == x.dtype
        return same and self.clients <= 2 * clients and clients <= self.clients

    def begin(self, global_weights: Mapping[str, Tensor], jobs: Sequence[Job]) -> None:
        """Start a round: every row the global model, no momentum, each client's own recipe."""
        for matrix in (self.rows, self.velocity, self.gradients):
            matrix.zero_()
        for name, stacked in (*self._parameters(self.rows).items(), *self.buffers.items()):
            if name in global_weights:
                stacked.copy_(global_weights[name])
        self.centre.copy_(self.rows[:1])
        self.constrained = any(job.recipe.constrained for job in jobs)
        recipes = [
            (
                job.recipe.lr,
                job.recipe.momentum,
                job.recipe.weight_decay,
                job.recipe.loss_weight,
                job.recipe.distance_weight,
                job.recipe.radius,
            )
            for job in jobs
        ]
        self.recipes[:, : len(jobs), 0] = torch.tensor(recipes, dtype=self.recipes.dtype).T.to(self.recipes.device)

    def step(self, active: int, x: Tensor, y: Tensor, counts: Tensor, keys: Tensor) -> None:
        """One step of the first `active` clients; the arguments have at least as many rows."""
        # Few distinct widths mean few graphs; rows beyond `active` are masked.
        width = min(1 << (active - 1).bit_length(), self.clients)
        graph = width, self.constrained
        if self.rows.is_cuda and graph not in self.graphs:
            self.graphs[graph] = self._capture(width)
        self.counts.zero_()
        for static, value in ((self.x, x), (self.y, y), (self.counts, counts), (self.keys, keys)):
            static[:active].copy_(value[:active])
        if self.rows.is_cuda:
            self.graphs[graph].replay()
        else:
            self._step(width)

    def weights(self, count: int) -> TrainedWeights:
        """Copies of the first rows' weights by name."""
        stacked = self._parameters(self.rows) | self.buffers
        kept = {name: stacked[name].clone(memory_format=torch.contiguous_format) for name in self.model.state_dict()}
        return [{name: kept[name][row] for name in kept} for row in range(count)]

    def _parameters(self, rows: Tensor) -> dict[str, Tensor]:
        """The rows' parameters by name, each a view of clients x its shape."""
        return {
            name: self._view(rows[:, start : start + shape.numel()], shape)
            for name, (start, shape) in self.places.items()
        }

    def _view(self, columns: Tensor, shape: torch.Size) -> Tensor:
        if self.channels_last and len(shape) == 4:
            return columns.view(len(columns), shape[0], *shape[2:], shape[1]).movedim(-1, 2)
        return columns.view(len(columns), *shape)

    def _flat(self, value: Tensor) -> Tensor:
        """One client's parameter or gradient in the order of its columns."""
        return (value.movedim(1, -1) if self.channels_last and value.dim() == 4 else value).reshape(-1)

    def _capture(self, width: int) -> torch.cuda.CUDAGraph:
        """Record one step; the steps that warm up change nothing, since no client has samples in them."""
        self.counts.zero_()
        with torch.cuda.device(self.rows.device), _measured_convolutions():
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self._step(width)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._step(width)
        return graph

    def _step(self, width: int) -> None:
        """SGD as in torch (d = g + λp, v = μv + d, p = p - ηv) on the first `width` rows where a client is at work."""
        rows, velocity, counts = self.rows[:width], self.velocity[:width], self.counts[:width]
        lr, momentum, weight_decay, loss_weight, distance_weight, radius = self.recipes[:, :width]
        at_work = counts > 0
        buffers = {name: buffer[:width] for name, buffer in self.buffers.items()}
        real = torch.arange(self.x.shape[1], device=counts.device) < counts[:, None]
        new_buffers = self._map_gradients(width, real) if self.mapped else self._compute_gradients(width, real)
        gradient = self.gradients[:width]
        if self.constrained:
            offset = rows - self.centre
            gradient.mul_(loss_weight).addcmul_(offset, distance_weight / _positive_norm(offset))
        new_velocity = gradient.addcmul_(weight_decay, rows).addcmul_(momentum, velocity)
        new_rows = rows - lr * new_velocity
        if self.constrained:
            offset = new_rows - self.centre
            norm = _positive_norm(offset)
            new_rows = torch.where(norm > radius, self.centre + offset * (radius / norm), new_rows)
        # Selected, not multiplied by 0 or 1: what a finished client computes may be NaN.
        torch.where(at_work[:, None], new_rows, rows, out=rows)
        torch.where(at_work[:, None], new_velocity, velocity, out=velocity)
        for name, buffer in buffers.items():
            torch.where(at_work.view(-1, *[1] * (buffer.dim() - 1)), new_buffers[name], buffer, out=buffer)

    def _map_gradients(self, width: int, real: Tensor) -> dict[str, Tensor]:
        """Fill the first rows of `gradients` in one mapped computation, and return the buffers afterwards."""
        buffers = {name: buffer[:width] for name, buffer in self.buffers.items()}
        gradients, new_buffers = vmap(grad(self._loss, has_aux=True))(
            self._parameters(self.rows[:width]), buffers, self.x[:width], self.y[:width], real, self.keys[:width]
        )
        places = self._parameters(self.gradients[:width])
        for name, gradient in gradients.items():
            places[name].copy_(gradient)
        return new_buffers  # type: ignore[no-any-return]

    def _compute_gradients(self, width: int, real: Tensor) -> dict[str, Tensor]:
        """The same client by client, on a GPU on several streams at once."""
        parameters = self._parameters(self.rows)
        new_buffers = []
        with self._side_by_side() as on_stream:
            for row in range(width):
                with on_stream(row):
                    leaves = {name: value[row].detach().requires_grad_() for name, value in parameters.items()}
                    buffers = {name: buffer[row] for name, buffer in self.buffers.items()}
                    loss, after = self._loss(leaves, buffers, self.x[row], self.y[row], real[row], self.keys[row])
                    found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
                    self._write(found, row)
                    new_buffers.append(after)
        return {name: torch.stack([after[name] for after in new_buffers]) for name in self.buffers}

    def _write(self, gradients: Sequence[Tensor], row: int) -> None:
        pieces = []
        for gradient in gradients:
            pieces += [self._flat(gradient), self.padding[row, : -gradient.numel() % ALIGNMENT]]
        torch.cat(pieces, out=self.gradients[row])

    @contextmanager
    def _side_by_side(self) -> Iterator[Callable[[int], AbstractContextManager[object]]]:
        """For work that may be done in any order: gives the context in which to do the piece with a number."""
        if not self.streams:
            yield lambda number: nullcontext()
            return
        main = torch.cuda.current_stream()
        for stream in self.streams:
            stream.wait_stream(main)
        yield lambda number: torch.cuda.stream(self.streams[number % STREAMS])
        for stream in self.streams:
            main.wait_stream(stream)

    def _loss(
        self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor, real: Tensor, key: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One client's mean loss over its real samples, and its buffers afterwards."""
        buffers = {name: buffer.clone() for name, buffer in buffers.items()}  # layers write into them
        marks = dict.fromkeys(self.key_names, key) | dict.fromkeys(self.real_names, real)
        outputs = functional_call(self.model, (parameters, buffers, marks), (x,))
        losses = vmap(lambda output, target: self.task.loss(output[None], target[None]))(outputs, y)
        return losses.masked_fill(~real, 0).sum() / real.sum().clamp(min=1), buffers


def _positive_norm(rows: Tensor) -> Tensor:
    """The length of each row; a tiny number where it is 0, so that one can divide by it."""
    norm: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return norm.clamp(min=torch.finfo(rows.dtype).tiny ** 0.5)


@contextmanager
def _measured_convolutions() -> Iterator[None]:
    """Let cuDNN measure its algorithms for every layer instead of guessing the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


class MaskedBatchNorm(nn.Module):
    """BatchNorm in training, over the samples marked in the buffer `real`, without waiting for the device.

    Padded samples would otherwise enter mean, variance and running statistics. Parameters and buffers keep their names.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    real: Tensor

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.eps = norm.eps
        self.momentum = norm.momentum or 0.0
        self.weight, self.bias = norm.weight, norm.bias
        for name, buffer in norm.named_buffers():
            self.register_buffer(name, buffer)
        self.register_buffer("real", torch.ones(1, dtype=torch.bool), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """`x` (samples x channels x ...) with mean 0 and variance 1 in each channel, then scaled and shifted."""
        channels = (-1, *[1] * (x.dim() - 2))
        others = [0, *range(2, x.dim())]
        weight = self.real.to(x.dtype).view(-1, *[1] * (x.dim() - 1))
        count = weight.sum() * (x[0, 0].numel())
        mean = (x * weight).sum(others) / count
        centred = x - mean.view(channels)
        variance = (centred.square() * weight).sum(others) / count
        unbiased = variance * (count / (count - 1))
        self.running_mean.mul_(1 - self.momentum).add_(self.momentum * mean.detach())
        self.running_var.mul_(1 - self.momentum).add_(self.momentum * unbiased.detach())
        self.num_batches_tracked.add_(1)
        scale = self.weight * (variance + self.eps).rsqrt()
        return centred * scale.view(channels) + self.bias.view(channels)


def _has_batched_form(module: nn.Module, has_fused_switch: bool) -> bool:
    if isinstance(module, _BatchNorm):
        plain = isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d))
        return plain and module.affine and module.track_running_stats and module.momentum is not None
    if isinstance(module, _NormBase):
        return not module.track_running_stats
    if isinstance(module, nn.RNNBase):
        return has_fused_switch
    return isinstance(module, nn.Dropout) or not isinstance(module, _DropoutNd)


def _mappable(model: nn.Module) -> nn.Module:
    """`model`, changed in place so that padding is masked and vmap can map what it has to."""
    for parent in list(model.modules()):
        if hasattr(parent, "fused"):
            parent.fused = False  # type: ignore[assignment]
        for name, child in list(parent.named_children()):
            if isinstance(child, _BatchNorm):
                setattr(parent, name, MaskedBatchNorm(child))
    return model


@dataclass(frozen=True)
class _Order:
    """The indices of each step's samples, and what augmentation draws for them, as `training_batches` takes them."""

    batches: list[Tensor]
    draws: list[Tensor]
    """Empty where the task draws nothing."""


def _order(task: Task, job: Job) -> _Order:
    recipe, generator = job.recipe, torch.Generator().manual_seed(job.seed)
    order = _Order([], [])
    for chosen in batches(len(job.samples), recipe.batch_size, recipe.epochs, recipe.steps, generator):
        order.batches.append(chosen)
        drawn = task.draw_augmentation(len(chosen), generator)
        if drawn is not None:
            order.draws.append(drawn)
    return order


def _lengthened(rows: Tensor, count: int) -> Tensor:
    """`rows` with the first one repeated at the end until there are `count`."""
    return torch.cat([rows, rows[:1].expand(count - len(rows), *rows.shape[1:])])


def _padded(order: Sequence[Tensor], batch: int) -> Tensor:
    """Index batches as the rows of a matrix; a short one repeats its first, since padding is computed with as well."""
    return torch.stack([_lengthened(chosen, batch) for chosen in order])
