"""Attackers that hide the malicious part of their updates in the null space of the sketches that they expect."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from g2uardfl import G2uardFL
from g2uardfl.core.layout import ModelLayout
from g2uardfl.defense.agreement.sketches import sketch_layout
from helpers.sketches import buckets_of, hidden_part

WIDTH = G2uardFL().configuration()["sketch_width"]
SHAPES = {"a.weight": (64, 48), "b.weight": (48, 40), "c.weight": (10, 20)}
"""Two layers larger than a sketch, and one that is smaller, in which nothing can be hidden."""
ATTACKERS, CLIENTS, ROUNDS = 8, 40, 12
MODEL = {name: np.random.default_rng(1).normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}

Hiding = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


def from_seed_0(backdoor):
    """What the sketches of a guard with seed=0 do not show."""
    layout = sketch_layout(ModelLayout.of(MODEL).layers, WIDTH, 0)
    return {
        name: hidden_part(backdoor[name].reshape(-1), layer.signs, buckets_of(layer)).reshape(shape)
        for (name, shape), layer in zip(SHAPES.items(), layout, strict=True)
    }


def from_earlier_releases(backdoor):
    """What sketches of the releases did not show whose buckets were public: the index modulo the width, and seed 0."""
    sizes = [value.size for value in MODEL.values()]
    generator = torch.Generator().manual_seed(0)
    signs = (torch.randint(0, 2, (sum(sizes),), generator=generator, dtype=torch.int8) * 2 - 1).split(sizes)
    return {
        name: hidden_part(backdoor[name].reshape(-1), own, np.arange(own.numel()) % WIDTH).reshape(SHAPES[name])
        for name, own in zip(SHAPES, signs, strict=True)
    }


def rejected_shares(guard: G2uardFL, hide: Hiding) -> tuple[float, float]:
    """The shares of the attackers' and of the others' submissions that are rejected, after the first two rounds."""
    backdoor = {name: np.random.default_rng(2).normal(size=shape) for name, shape in SHAPES.items()}
    hidden, model, rejected = hide(backdoor), MODEL, {True: [], False: []}
    for number in range(1, ROUNDS + 1):
        rng = np.random.default_rng([3, number])
        sent = {}
        for client in rng.choice(CLIENTS, 10, replace=False).tolist():
            own, common = (0.8, 0.6) if client < ATTACKERS else (1.0, 0.0)
            sent[client] = {
                name: (value + 0.01 * (own * rng.normal(size=value.shape) + common * hidden[name])).astype(np.float32)
                for name, value in model.items()
            }
        result = guard.aggregate(model, sent)
        if number > 2:
            for client, verdict in result.verdicts.items():
                rejected[client < ATTACKERS].append(verdict.refused)
        model = result.weights
    return float(np.mean(rejected[True])), float(np.mean(rejected[False]))


def test_a_client_that_knows_the_secret_of_the_sketches_is_not_detected():
    recall, false_positives = rejected_shares(G2uardFL(seed=0), from_seed_0)
    assert recall < 0.1
    assert false_positives < 0.1


@pytest.mark.parametrize("hide", [from_seed_0, from_earlier_releases])
def test_a_guard_without_a_seed_detects_attacks_that_are_hidden_from_a_public_seed(hide):
    # Measured over 20 secrets for each way of hiding: recall 1, nobody else rejected.
    recall, false_positives = rejected_shares(G2uardFL(), hide)
    assert recall > 0.8
    assert false_positives < 0.05


def test_a_hidden_update_has_the_sketch_zero_under_the_expected_secret_only():
    backdoor = {name: np.random.default_rng(2).normal(size=shape) for name, shape in SHAPES.items()}
    hidden = np.concatenate([value.reshape(-1) for value in from_seed_0(backdoor).values()])
    layers = ModelLayout.of(MODEL).layers

    def largest_buckets(secret):
        layout = sketch_layout(layers, WIDTH, secret)
        return [
            np.abs(np.bincount(buckets_of(layer), layer.signs.numpy() * hidden[layer.columns])).max()
            for layer in layout
        ]

    assert max(largest_buckets(0)) < 1e-9
    assert min(largest_buckets(1)[:2]) > 1
