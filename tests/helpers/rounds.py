"""Rounds of a few vectors for the tests of server-side rules, and the peers that compute the same."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from g2uardfl.aggregators.base import AggregationResult, Aggregator

KINDS = ("random", "clustered", "identical", "all zero", "huge outlier", "one idle", "far apart")


def updates_of(kind: str, clients: int, size: int, seed: int) -> np.ndarray:
    """(clients x size) updates in float64 of a kind named in KINDS."""
    rng = np.random.default_rng(seed)
    updates = rng.normal(size=(clients, size))
    if kind == "clustered":
        updates = updates * 0.01 + rng.normal(size=(3, size))[rng.integers(0, 3, clients)]
    elif kind == "identical":
        updates[:] = updates[0]
    elif kind == "all zero":
        updates[:] = 0
    elif kind == "huge outlier":
        updates[-1] *= 1e12
    elif kind == "one idle":
        updates[0] = 0
    elif kind == "far apart":
        updates *= 10.0 ** rng.integers(-4, 5, size=(clients, 1))
    return updates


@st.composite
def rounds(draw: Any, most: int = 12) -> np.ndarray:
    """Updates of any kind, of one client and up."""
    return updates_of(
        draw(st.sampled_from(KINDS)),
        draw(st.integers(1, most)),
        draw(st.integers(1, 9)),
        draw(st.integers(0, 2**32 - 1)),
    )


def send(rule: Aggregator, updates: Any, examples: Any = None, start: Any = None) -> AggregationResult:
    """One round in which client i sends `start` (nothing: zeros) plus row i of `updates`; two layers share a vector."""
    updates = np.asarray(updates)
    start = np.zeros(updates.shape[1], updates.dtype) if start is None else np.asarray(start)
    counts = None if examples is None else dict(enumerate(examples))
    return rule.aggregate(_model(start), {i: _model(start + row) for i, row in enumerate(updates)}, counts)


def _model(vector: np.ndarray) -> dict[str, np.ndarray]:
    half = (len(vector) + 1) // 2
    return {"a.weight": vector[:half].copy(), "b.weight": vector[half:].copy()}


def vector(result: AggregationResult) -> np.ndarray:
    """The new model of a round of `send`, as one vector."""
    return np.concatenate([result.weights["a.weight"], result.weights["b.weight"]])


def decisions(result: AggregationResult) -> str:
    """One letter a client: a for accepted, h for held out."""
    return "".join(verdict.decision[0] for verdict in result.verdicts.values())


def assert_same_on_gpu(rule: type[Aggregator]) -> None:
    """A rule decides the same on a GPU as on a CPU, and leaves the new model there."""
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU to compare with")
    for clients in (1, 2, 10, 30):
        start = torch.from_numpy(updates_of("random", 1, 5001, 99)[0])
        sent = {
            i: {"w": start + row} for i, row in enumerate(torch.from_numpy(updates_of("clustered", clients, 5001, 1)))
        }
        here = rule().aggregate({"w": start}, sent)
        there = rule().aggregate({"w": start.cuda()}, {i: {"w": model["w"].cuda()} for i, model in sent.items()})
        assert there.weights["w"].is_cuda
        torch.testing.assert_close(there.weights["w"].cpu(), here.weights["w"])
        assert decisions(there) == decisions(here)


def byzfl() -> ModuleType:
    """The aggregators of byzfl, loaded without the rest of the package, which wants torchvision."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None:
        pytest.skip("byzfl is not installed: nothing to compare with")
    sys.modules.setdefault("byzfl", importlib.util.module_from_spec(spec))
    return importlib.import_module("byzfl.aggregators")


def flower(module: str) -> ModuleType:
    """A module of Flower's strategies."""
    return pytest.importorskip(
        f"flwr.serverapp.strategy.{module}", reason="Flower is not installed: nothing to compare"
    )
