"""Rounds of the paper's profile, of the library and of the literal second implementation of its algorithm.

The clustering is taken from the library; everything before and after it is computed a second time.
"""

from __future__ import annotations

import math

import numpy as np

from g2uardfl.defense.g2uardfl import G2uardFL
from g2uardfl.defense.paper import Paper
from g2uardfl.defense.paper.clustering import GraphClustering
from g2uardfl.defense.paper.scoring import initial_score
from helpers import reference
from helpers.models import flat

MODEL = {"conv.weight": (3, 2, 2), "head.weight": (4, 3), "conv.bias": (3,), "scale": (1,), "head.bias": (4,)}
LAYERS = [["conv.bias", "conv.weight"], ["head.bias", "head.weight"], ["scale"]]
NUM_CLIENTS = 14
GROUPS = [  # who takes part in each round: newcomers, returning clients, too few to compare, all
    [0, 1, 2, 3, 4, 5, 6, 7],
    [2, 3, 4, 5, 8, 9],
    [1, 9],
    [0, 2, 4, 6, 8, 10, 12],
    list(range(NUM_CLIENTS)),
    [1, 3, 5, 7, 9, 11, 13],
    [13, 3, 5],
]
FIXED = {
    "score_update": "printed",
    "hidden_dim": 64,
    "latent_dim": 32,
    "pretrain_epochs": 5,
    "cluster_epochs": 5,
    "learning_rate": 0.01,
}
"""The score rule of the literal algorithm, and what the paper leaves open: fixed, so that tuning the defaults does not
change which decisions these rounds see."""


class RecordingClustering(GraphClustering):
    """Keeps each graph and its clusters."""

    def __init__(self, settings, seed) -> None:
        super().__init__(settings, seed)
        self.graphs, self.found = [], []

    def cluster(self, evidence, prior):
        clusters = super().cluster(evidence, prior)
        if clusters is not None:
            self.graphs.append((evidence.attributes.copy(), evidence.edges.copy()))
            self.found.append(clusters)
        return clusters


class Recorded(Paper):
    """The paper's profile with a clustering that is recorded."""

    clustering = RecordingClustering


def model_vector(weights) -> np.ndarray:
    """The parameters of a model in float64, layer by layer, which is the order of their names."""
    return flat(weights).numpy()


def layer_positions() -> list[list[int]]:
    positions, start = [], 0
    for layer in LAYERS:
        size = sum(math.prod(MODEL[name]) for name in layer)
        positions.append(list(range(start, start + size)))
        start += size
    return positions


def random_model(rng, dtype=np.float32, scale=1.0):
    return {name: (scale * rng.normal(size=shape)).astype(dtype) for name, shape in MODEL.items()}


def trained(global_weights, client: int, rng):
    """A client's model: clients from 11 on move far in a common direction, as colluding attackers would."""
    common = random_model(np.random.default_rng(99), scale=0.5 if client > 10 else 0.1)
    own = random_model(rng, scale=rng.uniform(0.05, 0.3))
    return {
        name: (value + common[name].astype(value.dtype) + own[name].astype(value.dtype))
        for name, value in global_weights.items()
    }


def first_round():
    """A model, and what the clients of the first round send."""
    rng = np.random.default_rng(0)
    model = random_model(rng)
    return model, {client: trained(model, client, rng) for client in GROUPS[0]}


class Both:
    """The library's guard and the literal one in the same rounds."""

    def __init__(self, seed: int = 3, **settings) -> None:
        settings = FIXED | settings
        self.guard = G2uardFL(profile=f"{__name__}:Recorded", seed=seed, **settings)
        first = [initial_score(client, seed, settings.get("score_init", "variance")) for client in range(NUM_CLIENTS)]
        literal = {name: value for name, value in settings.items() if name in reference.PaperGuard.__annotations__}
        self.literal = reference.PaperGuard(np.array(first), layer_positions(), self._same_clusters, **literal)

    def _same_clusters(self, attributes, adjacency):
        recorded = self.guard.clustering
        np.testing.assert_allclose(recorded.graphs[-1][0], attributes, atol=1e-3)
        np.testing.assert_allclose(recorded.graphs[-1][1], adjacency, atol=1e-4)
        return recorded.found[-1].latent, recorded.found[-1].centres, recorded.found[-1].soft

    def rounds(self, seed: int = 0, groups=GROUPS):
        """Run all rounds; yields our result, the literal model and the literal decisions of each."""
        rng = np.random.default_rng(seed)
        model = random_model(rng)
        for group in groups:
            clients = {client: trained(model, client, rng) for client in group}
            result = self.guard.aggregate(model, clients)
            expected = self.literal.round(
                model_vector(model), {client: model_vector(sent) for client, sent in clients.items()}
            )
            yield result, *expected
            model = result.weights


def decisions_of(result) -> dict:
    return {client: verdict.decision for client, verdict in result.verdicts.items()}


def assert_rounds_agree(both: Both, seed: int = 0, groups=GROUPS) -> set[str]:
    """Weights to 1e-5 and every decision exactly; returns the decisions that occurred."""
    seen = set()
    for result, expected_model, expected_decisions in both.rounds(seed, groups):
        np.testing.assert_allclose(model_vector(result.weights), expected_model, rtol=1e-5, atol=1e-5)
        assert decisions_of(result) == expected_decisions
        seen |= set(expected_decisions.values())
    return seen
