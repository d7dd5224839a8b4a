"""The server of a simulated federation, for rules that need root data or run the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor, nn

from ..aggregators.context import OutputLayer, ServerContext
from ..core.errors import ConfigError
from ..core.layout import Weights, as_tensor
from ..core.threads import in_parallel
from ..tasks.base import Samples, Task
from ..training.dropout import with_keyed_dropout
from ..training.local import Job, Recipe, train_locally
from .schedule import derived_seed, torch_generator

_ROOT_DATA, _ROOT_TRAINING = 1001, 1002
"""The server's random streams; different from those of the schedule."""
_BATCH = 64
"""Inputs that a CPU core runs at once: a CPU is fastest if a batch's activations fit into its cache."""
_GPU_BATCH = 1024
"""Inputs that a GPU runs at once: a GPU needs large batches."""
_SERVER = -1
"""The server's id in a training job; no client has it."""


class SimulatedServer(ServerContext):
    """The `ServerContext` of a simulation, for `FLTrust` and `DeepSight`.

    Parameters
    ----------
    task
        The task of the run. Its models return logits or log-probabilities, which have the same softmax.
    model
        The task's model, used as working memory.
    root_samples
        The server's root data (see `split_root`).
    recipe
        How the server trains in a round; the rule counts its rounds from 1 (see `for_as_many_steps`).
    seed
        Determines the order of the root data in each round.
    """

    def __init__(
        self, task: Task, model: nn.Module, root_samples: Samples, recipe: Callable[[int], Recipe], *, seed: int
    ) -> None:
        self.task = task
        self.model = with_keyed_dropout(model)
        self.recipe = recipe
        self.seed = seed
        self._device = next(model.parameters()).device
        self._root = root_samples.to(self._device)

    @cached_property
    def output_layer(self) -> OutputLayer:
        """The output layer of the model (see `find_output_layer`)."""
        return find_output_layer(self.model, self.task.num_classes)

    def root_update(self, global_weights: Weights, round_number: int) -> Weights:
        """The global model after the server has trained it on the root data."""
        job = Job(
            client=_SERVER,
            samples=self._root,
            recipe=self.recipe(round_number),
            seed=derived_seed(self.seed, _ROOT_TRAINING, round_number),
        )
        return train_locally(self.task, self.model, _tensors(global_weights), job)

    def random_inputs(self, count: int, seed: int) -> Tensor:
        """Random inputs in stored form; every value is uniform over the range of values in the training data.

        For images, which are stored as integers, that is uniform noise between 0 and 1 before normalisation. For text,
        all tokens of the vocabulary have the same probability.
        """
        low, high = self._input_range
        stored = self.task.train.x
        shape, generator = (count, *stored.shape[1:]), torch_generator(seed)
        if stored.is_floating_point():
            drawn = torch.rand(shape, generator=generator) * (high - low) + low
        else:
            drawn = torch.randint(int(low), int(high) + 1, shape, generator=generator)
        return drawn.to(self._device, stored.dtype)

    @cached_property
    def _input_range(self) -> tuple[float, float]:
        low, high = self.task.train.x.aminmax()
        return low.item(), high.item()

    def probabilities(self, weights: Weights, inputs: Tensor) -> Tensor:
        """The softmax outputs of a model in evaluation mode."""
        self.model.load_state_dict(_tensors(weights))
        self.model.eval()
        if self._device.type != "cpu":
            return torch.cat([self._softmax(batch) for batch in torch.split(inputs, _GPU_BATCH)])
        return torch.cat(list(in_parallel(self._softmax, torch.split(inputs, _BATCH))))

    @torch.no_grad()
    def _softmax(self, batch: Tensor) -> Tensor:
        probabilities: Tensor = self.model(self.task.prepare(batch)).softmax(dim=1)
        return probabilities


def split_root(test: Samples, seed: int, share: float = 0.01) -> tuple[Samples, Samples]:
    """Split the test data into the server's root data and the rest, both in their original order.

    Parameters
    ----------
    test
        The test data.
    seed
        Determines the split.
    share
        The fraction of `test` that becomes root data, at least one sample (default: 0.01, as in the paper's evaluation
        of FLTrust).

    Returns
    -------
    (Samples, Samples)
        The root data and the rest; neither is empty.
    """
    if len(test) < 2:
        raise ConfigError("the server's root data is taken from the test data, which must have two samples or more")
    count = min(max(1, round(share * len(test))), len(test) - 1)
    order = torch.randperm(len(test), generator=torch_generator(derived_seed(seed, _ROOT_DATA))).to(test.y.device)
    return test.take(order[:count].sort().values), test.take(order[count:].sort().values)


def for_as_many_steps(recipe: Recipe, samples: int) -> Recipe:
    """The recipe with as many steps as a client with `samples` samples takes, whatever the size of the root data.

    FLTrust rescales every update to the norm of the server's update. With fewer steps the server's update would be
    smaller, and the federation would learn more slowly.
    """
    steps = recipe.steps or recipe.epochs * math.ceil(samples / recipe.batch_size)
    return replace(recipe, steps=steps)


def find_output_layer(model: nn.Module, num_classes: int) -> OutputLayer:
    """The last module, in the order of definition, whose weight has one row per class.

    An output layer that shares its weight with the embedding is found under its own name. If it is not a module, the
    embedding is returned.
    """
    names = model.state_dict().keys()
    found = None
    for module_name, module in model.named_modules():
        prefix = f"{module_name}." if module_name else ""
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if f"{prefix}weight" in names and isinstance(weight, Tensor) and weight.ndim > 1 and len(weight) == num_classes:
            has_bias = f"{prefix}bias" in names and isinstance(bias, Tensor) and bias.shape == (num_classes,)
            found = OutputLayer(f"{prefix}weight", f"{prefix}bias" if has_bias else None)
    if found is None:
        raise ConfigError(f"the output layer is unknown: no layer of this model has a weight with {num_classes} rows")
    return found


def _tensors(weights: Weights) -> dict[str, Tensor]:
    return {name: as_tensor(value) for name, value in weights.items()}
