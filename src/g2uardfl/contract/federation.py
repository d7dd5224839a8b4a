"""Small models and federations, and a stand-in server, on which rules are checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..aggregators.context import OutputLayer, ServerContext
from ..core.layout import Weights, as_tensor


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generator that initialises models on the CPU; `torch.manual_seed` also stores a traceback per call."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def odd_mlp(seed: int = 0) -> dict[str, Tensor]:
    """A two-layer MLP with odd shapes, as a state dict."""
    with seeded(seed):
        model = nn.Sequential(nn.Linear(7, 13), nn.ReLU(), nn.Linear(13, 3))
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def batch_norm_model(seed: int = 0) -> dict[str, Tensor]:
    """Convolution, BatchNorm (with running statistics and an integer counter) and a linear layer."""
    with seeded(seed):
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    state["1.num_batches_tracked"] += 10
    return state


def numpy_model(seed: int = 0) -> dict[str, Any]:
    """A dict of NumPy arrays whose names do not reveal layers; one array is a single number."""
    generator = np.random.default_rng(seed)
    shapes = {"W1": (5, 11), "b1": (11,), "W2": (11, 2), "scale": ()}
    return {name: np.asarray(generator.normal(size=shape), dtype=np.float32) for name, shape in shapes.items()}


def perturbed(model: dict[str, Any], seed: int, size: float = 0.1, shift: float = 0.0) -> dict[str, Any]:
    """A client's version of `model`: noise of the given size plus a shift that colluding clients share."""
    generator = np.random.default_rng(seed)
    result = {}
    for name, value in model.items():
        array = np.asarray(value.detach() if isinstance(value, Tensor) else value)
        if array.dtype.kind != "f":
            result[name] = value + 2
            continue
        noise = (generator.normal(size=array.shape) * size + shift).astype(array.dtype)
        moved = np.abs(array + noise) if name.endswith("running_var") else array + noise
        result[name] = torch.from_numpy(np.asarray(moved)) if isinstance(value, Tensor) else np.asarray(moved)
    return result


def federation(model: dict[str, Any], clients: int = 8, attackers: int = 2, seed: int = 0) -> dict[Any, dict[str, Any]]:
    """Clients 0 to `clients` - 1, of whom the last `attackers` add the same shift."""
    return {
        i: perturbed(model, seed * 1000 + i, shift=0.3 if i >= clients - attackers else 0.0) for i in range(clients)
    }


def same(first: Weights, second: Weights) -> bool:
    """Whether two models are equal bit for bit."""
    return first.keys() == second.keys() and all(
        np.array_equal(np.asarray(first[name]), np.asarray(second[name])) for name in first
    )


def flat(weights: Weights, names: Iterable[str] | None = None) -> Tensor:
    """The arrays of a model (by default all) as one vector in float64, in the order of their names."""
    chosen = weights if names is None else names
    return torch.cat([as_tensor(weights[name]).double().flatten() for name in sorted(chosen)])


class StandInServer(ServerContext):
    """A server for models like `model`: it runs the last matrix alone, as the output layer."""

    def __init__(self, model: Weights) -> None:
        self._model = model

    @property
    def output_layer(self) -> OutputLayer:
        """The last matrix."""
        return OutputLayer([name for name, value in self._model.items() if np.ndim(value) >= 2][-1])

    def root_update(self, global_weights: Weights, round_number: int) -> Weights:
        """Every parameter grows by 0.01."""
        return {n: v + 0.01 if as_tensor(v).is_floating_point() else v for n, v in global_weights.items()}

    def random_inputs(self, count: int, seed: int) -> Tensor:
        """Uniform noise, wide enough for every model here."""
        return torch.rand(count, 200, generator=torch.Generator().manual_seed(seed))

    def probabilities(self, weights: Weights, inputs: Tensor) -> Tensor:
        """The softmax of the last matrix times the inputs."""
        weight = as_tensor(weights[self.output_layer.weight]).float().flatten(1)
        return (inputs[:, : weight.shape[1]].to(weight) @ weight.T).softmax(dim=1)
