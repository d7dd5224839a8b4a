"""Rounds of a few vectors for the tests of aggregation rules, and the peers' implementations to compare with."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Hashable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from g2uardfl.aggregators import AggregationResult, Aggregator

KINDS = ("random", "clustered", "identical", "all zero", "huge outlier", "one zero", "far apart")

sample_counts = st.lists(st.integers(0, 50), min_size=12, max_size=12)
"""Sample counts for any round of `rounds()`."""


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
    elif kind == "one zero":
        updates[0] = 0
    elif kind == "far apart":
        updates *= 10.0 ** rng.integers(-4, 5, size=(clients, 1))
    return updates


@st.composite
def rounds(draw: Any, most: int = 12) -> np.ndarray:
    """Updates of any kind from 1 to `most` clients."""
    return updates_of(
        draw(st.sampled_from(KINDS)),
        draw(st.integers(1, most)),
        draw(st.integers(1, 9)),
        draw(st.integers(0, 2**32 - 1)),
    )


def send(rule: Aggregator, updates: Any, examples: Any = None, start: Any = None) -> AggregationResult:
    """One round in which client i sends `start` (default: zeros) plus row i of `updates`, split into two layers."""
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
    """The first letter of each client's decision: a for accepted, h for held out."""
    return "".join(verdict.decision[0] for verdict in result.verdicts.values())


def accepted(result: AggregationResult) -> list[Hashable]:
    """The accepted clients."""
    return [client for client, verdict in result.verdicts.items() if verdict.decision == "accepted"]


def weights_of(result: AggregationResult) -> list[float | None]:
    """Each client's weight in the new model."""
    return [verdict.weight for verdict in result.verdicts.values()]


def slow_shares(examples: Sequence[int]) -> list[float]:
    """n_i / Σ n, or equal shares if no client has samples."""
    return [n / sum(examples) if sum(examples) else 1 / len(examples) for n in examples]


def byzfl() -> ModuleType:
    """The aggregators of byzfl, loaded without the rest of the package, which needs torchvision."""
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
