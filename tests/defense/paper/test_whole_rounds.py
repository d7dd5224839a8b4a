"""Whole rounds of the paper's profile against a literal second implementation of the paper's algorithm.

The clustering is taken from the library; everything before and after it is computed a second time.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from g2uardfl.defense.g2uardfl import G2uardFL
from g2uardfl.defense.paper import Paper
from g2uardfl.defense.paper.clustering import GraphClustering
from g2uardfl.defense.paper.scoring import initial_score
from helpers import reference

MODEL = {"conv.weight": (3, 2, 2), "head.weight": (4, 3), "conv.bias": (3,), "scale": (1,), "head.bias": (4,)}
LAYERS = [["conv.weight", "conv.bias"], ["head.weight", "head.bias"], ["scale"]]
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
PRINTED = {
    "edge_scaling": "printed",
    "momentum": "printed",
    "fade_absent": True,
    "distance_weighting": "printed",
    "score_init": "deviation",
}
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


def flat(weights) -> np.ndarray:
    """A model as one float64 vector, layer by layer."""
    names = [name for layer in LAYERS for name in layer]
    return np.concatenate([np.asarray(weights[name], np.float64).ravel() for name in names])


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
            expected = self.literal.round(flat(model), {client: flat(sent) for client, sent in clients.items()})
            yield result, *expected
            model = result.weights


def decisions_of(result) -> dict:
    return {client: verdict.decision for client, verdict in result.verdicts.items()}


def assert_rounds_agree(both: Both, seed: int = 0, groups=GROUPS) -> set[str]:
    """Weights to 1e-5 and every decision exactly; returns the decisions that occurred."""
    seen = set()
    for result, expected_model, expected_decisions in both.rounds(seed, groups):
        np.testing.assert_allclose(flat(result.weights), expected_model, rtol=1e-5, atol=1e-5)
        assert decisions_of(result) == expected_decisions
        seen |= set(expected_decisions.values())
    return seen


@pytest.mark.parametrize("seed", [0, 1])
def test_models_and_decisions_are_those_of_the_papers_algorithm(seed):
    assert assert_rounds_agree(Both(), seed) == {"accepted", "held_out", "malicious"}


def test_without_elimination_the_new_model_is_the_normal_one():
    assert "malicious" in assert_rounds_agree(Both(eliminate=False))


def test_with_every_printed_switch_models_and_decisions_are_the_papers():
    assert "malicious" in assert_rounds_agree(Both(**PRINTED))


@pytest.mark.parametrize("name", PRINTED)
def test_with_one_printed_switch_models_and_decisions_are_the_papers(name):
    assert "malicious" in assert_rounds_agree(Both(**{name: PRINTED[name]}))


def test_with_signed_scores_models_and_decisions_are_those_of_the_literal_rule():
    assert "malicious" in assert_rounds_agree(Both(score_update="signed"))


def test_a_strong_elimination_is_the_papers():
    both = Both(elimination_rate=1.0)
    both.literal.gamma = 1.0
    assert "malicious" in assert_rounds_agree(both)


@pytest.mark.parametrize("min_clusters", [1, 4])
def test_the_smallest_number_of_clusters_changes_the_clustering_alone(min_clusters):
    both = Both(min_clusters=min_clusters)
    assert_rounds_agree(both)
    assert min(len(found.centres) for found in both.guard.clustering.found) == min_clusters


@pytest.mark.parametrize("first", [[], [list(range(NUM_CLIENTS))]], ids=["clients join late", "all from the start"])
@pytest.mark.parametrize("score_update", ["printed", "signed"])
def test_benign_scores_are_the_papers(first, score_update):
    both = Both(score_update=score_update)
    for result, _, _ in both.rounds(groups=[*first, *GROUPS]):
        scores = {client: verdict.benign_score for client, verdict in result.verdicts.items()}
        assert scores == pytest.approx({client: both.literal.scores[client] for client in scores}, rel=1e-9)


def test_the_default_profile_of_the_paper_updates_scores_by_the_signed_rule():
    model, clients = first_round()
    default, signed = (G2uardFL("paper", seed=0, **settings) for settings in ({}, {"score_update": "signed"}))
    assert default.configuration() == signed.configuration()
    assert default.aggregate(model, clients).verdicts == signed.aggregate(model, clients).verdicts


def test_the_weight_of_a_verdict_is_the_clients_share_in_the_new_model():
    both, (model, clients) = Both(), first_round()
    result = both.guard.aggregate(model, clients)
    moved = sum(result.verdicts[client].weight * (flat(clients[client]) - flat(model)) for client in clients)
    np.testing.assert_allclose(flat(result.weights), flat(model) + moved, atol=1e-5)


def test_running_statistics_are_averaged_over_accepted_clients_by_their_shares():
    both, (model, clients) = Both(), first_round()

    def with_buffers(weights, mean: float, count: int):
        return {**weights, "bn.running_mean": np.full(2, mean, np.float32), "bn.num_batches_tracked": np.array(count)}

    result = both.guard.aggregate(
        with_buffers(model, 0.0, 0), {c: with_buffers(w, 10.0 * c, 100 * c) for c, w in clients.items()}
    )
    both.literal.round(flat(model), {client: flat(sent) for client, sent in clients.items()})
    shares = both.literal.shares
    expected = sum(share * client for client, share in shares.items()) / sum(shares.values())
    np.testing.assert_allclose(result.weights["bn.running_mean"], [10 * expected] * 2, rtol=1e-5)
    assert result.weights["bn.num_batches_tracked"] == round(100 * expected)


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float64, 1e-9)])
def test_models_of_other_precisions_agree_to_that_precision(dtype, precision):
    both = Both()
    rng = np.random.default_rng(0)
    model = {name: torch.from_numpy(value).to(dtype) for name, value in random_model(rng).items()}
    for group in (GROUPS[0], [2, 3, 4, 5, 7]):
        wide = {name: value.double().numpy() for name, value in model.items()}
        clients = {
            c: {name: torch.from_numpy(value).to(dtype) for name, value in trained(wide, c, rng).items()} for c in group
        }
        result = both.guard.aggregate(model, clients)
        widened = {c: flat({name: value.double() for name, value in w.items()}) for c, w in clients.items()}
        expected, decisions = both.literal.round(flat(wide), widened)
        found = flat({name: value.double() for name, value in result.weights.items()})
        np.testing.assert_allclose(found, expected, rtol=precision, atol=precision)
        assert decisions_of(result) == decisions
        assert all(value.dtype == dtype for value in result.weights.values())
        model = result.weights


@pytest.mark.parametrize("group", [[5], [5, 6]])
def test_one_or_two_clients_give_the_mean_of_their_clipped_models_and_an_event_says_so(group):
    for result, expected, decisions in Both().rounds(groups=[group, group]):
        np.testing.assert_allclose(flat(result.weights), expected, rtol=1e-5, atol=1e-5)
        assert decisions_of(result) == decisions
        assert [(event.kind, event.details["clients"]) for event in result.report.events] == [
            ("not_compared", len(group))
        ]


def test_identical_clients_move_the_model_to_their_own():
    rng = np.random.default_rng(0)
    model = random_model(rng)
    one = trained(model, 0, rng)
    result = G2uardFL(profile="paper", seed=0).aggregate(model, dict.fromkeys(range(5), one))
    np.testing.assert_allclose(flat(result.weights), flat(one), atol=1e-5)
    assert "malicious" not in decisions_of(result).values()


def test_zero_updates_leave_the_model_as_it_was():
    model = random_model(np.random.default_rng(0))
    result = G2uardFL(profile="paper", seed=0).aggregate(model, dict.fromkeys(range(5), model))
    assert np.array_equal(flat(result.weights), flat(model))


def test_the_memory_of_thousands_of_clients_is_not_quadratic():
    guard, rng = G2uardFL(profile="paper", seed=0, pretrain_epochs=1, cluster_epochs=1), np.random.default_rng(0)
    model = {"a": np.zeros(2, np.float32)}
    for number in range(100):
        guard.aggregate(model, {20 * number + k: {"a": rng.normal(size=2).astype(np.float32)} for k in range(20)})
    assert len(guard.construction.memory.rows) == len(guard.filtering.scores.scores) == 2000
    assert len(guard.construction.memory.edges) == 100 * (20 * 21 // 2)
    assert len(guard.observer.state().arrays["updates"]) == 20
