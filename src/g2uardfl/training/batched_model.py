"""The batched model: one row of parameters for each client, and SGD steps on all rows at once.

Clients differ in data, never in control flow: numbers of samples become masks, recipes and dropout keys become
tensors. So one captured CUDA graph serves every step of every round.

Within a step the gradients of different clients are computed in parallel on a few CUDA streams, with the kernels that a
single client would use. If `torch.func.vmap` maps a convolution over clients, it becomes a grouped convolution, for
which cuDNN has slower kernels. Recurrent models are mapped nevertheless: all clients then share their many small
kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ..tasks.base import Task
from .batched_layers import MaskedBatchNorm
from .dropout import KeyedDropout
from .engine import TrainedWeights
from .local import Job

ALIGNMENT = 32
"""Every parameter begins at a multiple of this many numbers: 128 bytes in float32, as matrix kernels prefer."""
STREAMS = 8
"""The number of CUDA streams, that is, of clients whose gradients are computed in parallel."""
WIDE = 64
"""Convolutions with at least this many input channels are faster with channels last in memory, others slower."""


class BatchedModel:
    """A matrix with a row of parameters for each client, and all other tensors that a step reads or writes.

    A CUDA graph replays on fixed addresses, so no tensor is ever replaced. With all parameters in one matrix, SGD takes
    a few kernels, independent of the number of layers.

    Parameters
    ----------
    task
        Computes the loss.
    model
        The model in its batched form (`to_batched_form`).
    clients
        The number of rows.
    x, y
        A prepared batch of one client: its shapes, its dtypes and the device.
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
        self.positions: dict[str, tuple[int, torch.Size]] = {}
        """First column and shape of each parameter."""
        width = 0
        for name, parameter in model.named_parameters():
            self.positions[name] = (width, parameter.shape)
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
        """The global model, from which constrained jobs limit their distance."""
        self.constrained = False
        self.graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}

    def fits(self, clients: int, x: Tensor, y: Tensor) -> bool:
        """Whether `clients` batches shaped like `x` and `y` fit and use at least half of the rows."""
        same = self.x.shape[1:] == x.shape and self.y.shape[1:] == y.shape and self.x.dtype == x.dtype
        return same and self.clients <= 2 * clients and clients <= self.clients

    def begin(self, global_weights: Mapping[str, Tensor], jobs: Sequence[Job]) -> None:
        """Start a round: the global model in every row, momentum 0, each client's own recipe."""
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
        """Do one step of the first `active` clients; the arguments have at least that many rows."""
        # Powers of two keep the number of graphs small; rows beyond `active` are masked.
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
        """Copies of the weights in the first `count` rows, by name."""
        stacked = self._parameters(self.rows) | self.buffers
        kept = {name: stacked[name].clone(memory_format=torch.contiguous_format) for name in self.model.state_dict()}
        return [{name: kept[name][row] for name in kept} for row in range(count)]

    def _parameters(self, rows: Tensor) -> dict[str, Tensor]:
        """The parameters in `rows` by name, as views of shape clients x parameter."""
        return {
            name: self._view(rows[:, start : start + shape.numel()], shape)
            for name, (start, shape) in self.positions.items()
        }

    def _view(self, columns: Tensor, shape: torch.Size) -> Tensor:
        if self.channels_last and len(shape) == 4:
            return columns.view(len(columns), shape[0], *shape[2:], shape[1]).movedim(-1, 2)
        return columns.view(len(columns), *shape)

    def _flat(self, value: Tensor) -> Tensor:
        """One client's parameter or gradient in the order of its columns."""
        return (value.movedim(1, -1) if self.channels_last and value.dim() == 4 else value).reshape(-1)

    def _capture(self, width: int) -> torch.cuda.CUDAGraph:
        """Capture one step. The warm-up steps change nothing, because no client has samples in them."""
        self.counts.zero_()
        with torch.cuda.device(self.rows.device), _cudnn_benchmark():
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
        """SGD as in torch (d = g + λp, v = μv + d, p = p - ηv) on those of the first `width` rows that have samples."""
        rows, velocity, counts = self.rows[:width], self.velocity[:width], self.counts[:width]
        lr, momentum, weight_decay, loss_weight, distance_weight, radius = self.recipes[:, :width]
        active = counts > 0
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
        # Selected, not multiplied by 0 or 1: the values computed for a finished client may be NaN.
        torch.where(active[:, None], new_rows, rows, out=rows)
        torch.where(active[:, None], new_velocity, velocity, out=velocity)
        for name, buffer in buffers.items():
            torch.where(active.view(-1, *[1] * (buffer.dim() - 1)), new_buffers[name], buffer, out=buffer)

    def _map_gradients(self, width: int, real: Tensor) -> dict[str, Tensor]:
        """Fill the first rows of `gradients` in one mapped computation; return the new buffers."""
        buffers = {name: buffer[:width] for name, buffer in self.buffers.items()}
        gradients, new_buffers = vmap(grad(self._loss, has_aux=True))(
            self._parameters(self.rows[:width]), buffers, self.x[:width], self.y[:width], real, self.keys[:width]
        )
        views = self._parameters(self.gradients[:width])
        for name, gradient in gradients.items():
            views[name].copy_(gradient)
        return new_buffers  # type: ignore[no-any-return]

    def _compute_gradients(self, width: int, real: Tensor) -> dict[str, Tensor]:
        """Fill the first rows of `gradients` client by client, on a GPU in parallel streams; return the new buffers."""
        parameters = self._parameters(self.rows)
        new_buffers = []
        with self._parallel_streams() as stream_of:
            for row in range(width):
                with stream_of(row):
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
    def _parallel_streams(self) -> Iterator[Callable[[int], AbstractContextManager[object]]]:
        """For work on rows in any order: yields a function from a row to the context in which to work on it."""
        if not self.streams:
            yield lambda row: nullcontext()
            return
        main = torch.cuda.current_stream()
        for stream in self.streams:
            stream.wait_stream(main)
        yield lambda row: torch.cuda.stream(self.streams[row % STREAMS])
        for stream in self.streams:
            main.wait_stream(stream)

    def _loss(
        self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor, real: Tensor, key: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One client's mean loss over its real samples, and its new buffers."""
        buffers = {name: buffer.clone() for name, buffer in buffers.items()}  # layers write into them
        marks = dict.fromkeys(self.key_names, key) | dict.fromkeys(self.real_names, real)
        outputs = functional_call(self.model, (parameters, buffers, marks), (x,))
        losses = vmap(lambda output, target: self.task.loss(output[None], target[None]))(outputs, y)
        return losses.masked_fill(~real, 0).sum() / real.sum().clamp(min=1), buffers


def _positive_norm(rows: Tensor) -> Tensor:
    """The L2 norm of each row; a tiny number instead of 0, so that it can be a divisor."""
    norm: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return norm.clamp(min=torch.finfo(rows.dtype).tiny ** 0.5)


@contextmanager
def _cudnn_benchmark() -> Iterator[None]:
    """Let cuDNN measure its algorithms for every layer instead of choosing by heuristics."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
