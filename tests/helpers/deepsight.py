"""Models with a linear output layer, and a server for them, for the tests of DeepSight."""

from __future__ import annotations

from typing import Any

import torch

from g2uardfl.aggregators.context import OutputLayer, ServerContext
from g2uardfl.aggregators.deepsight import DeepSight
from g2uardfl.core.layout import Weights

CLASSES, WIDTH = 6, 4


class LinearServer(ServerContext):
    """A server for models whose output layer receives the inputs unchanged; it records what it draws."""

    def __init__(self, bias: str | None = "head.bias") -> None:
        self.bias = bias
        self.seeds: list[int] = []
        self.inputs: list[torch.Tensor] = []

    @property
    def output_layer(self) -> OutputLayer:
        return OutputLayer("head.weight", self.bias)

    def random_inputs(self, count: int, seed: int) -> torch.Tensor:
        self.seeds.append(seed)
        self.inputs.append(torch.rand(count, WIDTH, generator=torch.Generator().manual_seed(seed)))
        return self.inputs[-1]

    def probabilities(self, weights: Weights, inputs: torch.Tensor) -> torch.Tensor:
        logits = inputs @ weights["head.weight"].float().T
        return (logits if self.bias is None else logits + weights["head.bias"].float()).softmax(dim=1)


def head_model(seed: int = 0, bias: bool = True) -> dict[str, torch.Tensor]:
    """A model with a body that is never run and a linear output layer."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"body.weight": (3, 5), "head.weight": (CLASSES, WIDTH)} | ({"head.bias": (CLASSES,)} if bias else {})
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def head_clients(
    model: dict[str, torch.Tensor], honest: int, attackers: int, seed: int = 0
) -> dict[int, dict[str, torch.Tensor]]:
    """Honest clients move all outputs a little, attackers one output a lot."""
    generator = torch.Generator().manual_seed(seed)

    def moved(values: torch.Tensor, size: float) -> torch.Tensor:
        return values + size * torch.randn(values.shape, generator=generator)

    clients = {i: {name: moved(value, 0.05) for name, value in model.items()} for i in range(honest)}
    for i in range(honest, honest + attackers):
        clients[i] = {name: moved(value, 1e-4) for name, value in model.items()}
        clients[i]["head.weight"][2] += 0.5
        if "head.bias" in model:
            clients[i]["head.bias"][2] += 0.5
    return clients


def deepsight(server: ServerContext | None = None, **settings: Any) -> DeepSight:
    """The rule with few random inputs and a server."""
    rule = DeepSight(**{"random_inputs": 50, "seed": 0, **settings})
    rule.attach(server or LinearServer())
    return rule
