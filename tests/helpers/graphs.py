"""Similarity graphs: of noise with planted groups, and of synthetic sketches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from g2uardfl.aggregators.base import ClientId
from g2uardfl.defense.agreement.construction import ConstructionSettings, SimilarityConstruction, SubmissionGraph
from g2uardfl.defense.agreement.groups import Group, find_groups
from g2uardfl.defense.observation import Observation

Planted = tuple[Any, float]
"""The members of a group, and by how many standard deviations they are more similar to each other."""


def noise(size: int, seed: int) -> np.ndarray:
    """The similarity graph of independent submissions: standard normal edges."""
    upper = np.triu(np.random.default_rng(seed).normal(size=(size, size)), 1)
    return upper + upper.T


def planted(size: int, seed: int, *groups: Planted, people: np.ndarray | None = None) -> np.ndarray:
    """Noise, and groups of similar submissions; those of one person are not compared."""
    graph, people = noise(size, seed), np.arange(size) if people is None else people
    for members, strength in groups:
        graph[np.ix_(members, members)] += strength
    return np.where(np.equal.outer(people, people), 0.0, graph)


def found_in(
    graph: np.ndarray, people: np.ndarray | None = None, rate: float = 0.01, share: float = 0.5
) -> list[Group]:
    """The groups of a graph of clients without convictions."""
    people = np.arange(len(graph)) if people is None else people
    return find_groups(graph, people, np.zeros(len(graph)), rate, share)


def indices(mask: Any) -> list[int]:
    """Where a mask is True."""
    return np.flatnonzero(mask).tolist()


def flagged(groups: Sequence[Group]) -> list[int]:
    """The members of any group."""
    return sorted(member for group in groups for member in indices(group.members))


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors of norm 1 along the last axis, in single precision."""
    return (vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)).astype(np.float32)


def drawn_sketches(seed: int, *shape: int, common: float = 0.0) -> np.ndarray:
    """Random directions in half precision, with a common part of that norm and an independent part of norm 1."""
    rng = np.random.default_rng(seed)
    own, shared = (rng.normal(size=one) / np.sqrt(shape[-1]) for one in (shape, shape[1:]))
    return unit(own + common * shared).astype(np.float16).astype(np.float32)


def evidence_of(*rounds: tuple[Sequence[ClientId], np.ndarray], shapes: np.ndarray | None = None) -> SubmissionGraph:
    """The graph of rounds of (clients, sketches); `shapes` are those of the last one, by default all equal."""
    construction = SimilarityConstruction(ConstructionSettings(window=1000), 0)
    for number, (clients, sketches) in enumerate(rounds, start=1):
        own = np.tile([0.0, -3.0], (len(clients), 1)) if shapes is None or number < len(rounds) else shapes
        measured = {
            "shapes": own,
            "directions": sketches,
            "renewed_directions": sketches[:, :0],
            "renewals": np.array(0),
        }
        layers = tuple(f"layer {place}" for place in range(sketches.shape[1]))
        evidence = construction.build(number, Observation(tuple(clients), layers, measured))
    return evidence
