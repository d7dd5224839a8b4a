"""The same rounds on a CPU and on a GPU, by every rule. Where pytest is missing:

PYTHONPATH=src:tests python -m helpers.gpu
"""

from __future__ import annotations

import itertools
import sys
import traceback
from typing import Any

import torch

from helpers.models import batch_norm_model, federation, odd_mlp
from helpers.rules import RULES, make

ROUNDS = 3


def wide_model() -> dict[str, torch.Tensor]:
    """Layers of more and of fewer numbers than a sketch has."""
    return {"w": torch.linspace(-1, 1, 20_001), "half.weight": torch.ones(30, 30).half(), "half.bias": torch.zeros(1)}


MODELS = {"mlp": odd_mlp, "batch norm": batch_norm_model, "wide": wide_model}


def assert_same_on(device: str, rule: str, model: str, clients: int) -> None:
    """A rule gives the same models and decisions as on a CPU, and the new models stay on `device`."""
    weights: dict[str, Any] = MODELS[model]()
    here, there = make(rule, weights), make(rule, weights)
    for number in range(ROUNDS):
        sent = federation(weights, clients, clients // 4, seed=number)
        expected = here.aggregate(weights, sent)
        found = there.aggregate(moved(weights, device), {client: moved(one, device) for client, one in sent.items()})
        assert {value.device.type for value in found.weights.values()} == {device}
        for name, value in expected.weights.items():
            torch.testing.assert_close(found.weights[name].cpu(), value, msg=lambda text, name=name: f"{name}: {text}")
        decisions = [{c: v.decision for c, v in one.verdicts.items()} for one in (found, expected)]
        assert decisions[0] == decisions[1], decisions
        weights = expected.weights


def moved(weights: dict[str, torch.Tensor], device: str) -> dict[str, torch.Tensor]:
    """The same model on another device."""
    return {name: value.to(device) for name, value in weights.items()}


def main() -> None:
    """Compare every rule, and exit with status 1 if any differs."""
    if not torch.cuda.is_available():
        sys.exit("there is no GPU to compare with")
    failed = sum(differs(*case) for case in itertools.product(RULES, MODELS, (1, 2, 10, 30)))
    sys.exit(f"{failed} comparisons failed" if failed else 0)


def differs(rule: str, model: str, clients: int) -> bool:
    """Whether a comparison fails; says why."""
    print(f"{rule}, {model}, {clients} clients", flush=True)
    try:
        assert_same_on("cuda", rule, model, clients)
    except Exception:
        print(f"FAILED {traceback.format_exc(limit=-3)}", flush=True)
        return True
    return False


if __name__ == "__main__":
    main()
