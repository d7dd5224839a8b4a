"""The server of a simulated federation, for the rules that need more of it than updates."""

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
"""The server's own random streams, apart from those of the schedule."""
_BATCH = 64
"""How many inputs a core takes through a model at a time, so that what lies between the layers stays close to it."""
_GPU_BATCH = 1024
_SERVER = -1
"""Stands for the server where a client's number is asked for."""


class SimulatedServer(ServerContext):
    """What the server of a simulation offers to `FLTrust` and `DeepSight`.

    Parameters
    ----------
    task
        What is learnt. Its models return logits (or their logarithmic softmax, which has the same softmax).
    model
        The task's model, used as working memory.
    root_samples
        The server's own data, kept out of everything else (`split_root`).
    recipe
        For a round's number, counted by the rule from 1, how the server trains (see `for_as_many_steps`).
    seed
        Decides the order of the root data in each round.
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
        """Found in the model: `find_output_layer`."""
        return find_output_layer(self.model, self.task.num_classes)

    def root_update(self, global_weights: Weights, round_number: int) -> Weights:
        """The global model after training on the root data as a client would."""
        job = Job(
            client=_SERVER,
            samples=self._root,
            recipe=self.recipe(round_number),
            seed=derived_seed(self.seed, _ROOT_TRAINING, round_number),
        )
        return train_locally(self.task, self.model, _tensors(global_weights), job)

    def random_inputs(self, count: int, seed: int) -> Tensor:
        """Stored inputs of which every number is uniform over the range that the training data has.

        For pictures, stored in whole numbers from black to white, that is noise between 0 and 1 before normalisation,
        in as many grey levels as there are; for text, every token of the vocabulary is as likely.
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
            return torch.cat([self._answers(batch) for batch in torch.split(inputs, _GPU_BATCH)])
        return torch.cat(list(in_parallel(self._answers, torch.split(inputs, _BATCH))))

    @torch.no_grad()
    def _answers(self, batch: Tensor) -> Tensor:
        answers: Tensor = self.model(self.task.prepare(batch)).softmax(dim=1)
        return answers


def split_root(test: Samples, seed: int, share: float = 0.01) -> tuple[Samples, Samples]:
    """Draw the server's root data from the test data: (root, rest), each in its original order.

    The paper gives FLTrust's server 1 % of the validation data. At least one sample is drawn and at least one is left.
    """
    if len(test) < 2:
        raise ConfigError("the test data cannot spare a sample for the server's root data: it needs two or more")
    count = min(max(1, round(share * len(test))), len(test) - 1)
    order = torch.randperm(len(test), generator=torch_generator(derived_seed(seed, _ROOT_DATA))).to(test.y.device)
    return test.take(order[:count].sort().values), test.take(order[count:].sort().values)


def for_as_many_steps(recipe: Recipe, samples: int) -> Recipe:
    """The recipe for as many steps, on however few samples, as a client takes on `samples` of its own.

    FLTrust brings every update to the length of the server's: a server that took fewer steps would slow the clients.
    """
    steps = recipe.steps or recipe.epochs * math.ceil(samples / recipe.batch_size)
    return replace(recipe, steps=steps)


def find_output_layer(model: nn.Module, num_classes: int) -> OutputLayer:
    """The last module, in the order of definition, whose weight has one row for each class.

    A head tied to the embedding is found under its own name, and where it has no module of its own it is the embedding.
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
        raise ConfigError(f"this model has no layer with a weight of {num_classes} rows: its output layer is not known")
    return found


def _tensors(weights: Weights) -> dict[str, Tensor]:
    return {name: as_tensor(value) for name, value in weights.items()}
