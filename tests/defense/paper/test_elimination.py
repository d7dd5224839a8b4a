"""Poison elimination against whole models, and whole rounds of the paper's algorithm against a literal second one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.defense import guard as guard_module
from g2uardfl.defense.guard import G2uardFL
from g2uardfl.defense.paper.elimination import (
    distance_weights,
    eliminating_coefficients,
    elimination_strength,
    group_coefficients,
    step_norm,
)
from g2uardfl.defense.paper.scoring import initial_score
from helpers import reference

WEIGHTINGS = ["near", "printed"]


@given(st.lists(st.floats(0, 50), min_size=1, max_size=10), st.sampled_from(WEIGHTINGS))
def test_distance_weights_are_a_softmax_and_sum_to_one(distances, weighting):
    ours = distance_weights(np.array(distances), weighting)
    np.testing.assert_allclose(ours, reference.softmax_weights(distances, weighting), rtol=1e-9, atol=1e-300)
    assert ours.sum() == pytest.approx(1)


@pytest.mark.parametrize(("weighting", "expected"), [("near", [2 / 3, 1 / 3]), ("printed", [1 / 3, 2 / 3])])
def test_the_nearer_of_two_clients_weighs_more_or_as_printed_less(weighting, expected):
    assert distance_weights(np.array([1.0, 1.0 + math.log(2)]), weighting).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_distance_weights_of_far_clients_do_not_overflow(weighting):
    weights = distance_weights(np.array([1e5, 2e5, 1e5]), weighting)
    assert weights.tolist() == ([0.5, 0.0, 0.5] if weighting == "near" else [0.0, 1.0, 0.0])


def random_group(seed: int, clients: int = 6, size: int = 15):
    rng = np.random.default_rng(seed)
    updates = rng.normal(size=(clients, size)) * rng.uniform(0.1, 3, size=(clients, 1))
    return rng.normal(size=size), updates, rng.uniform(size=clients), rng.permutation(clients)


def clip_factors_of(updates, limit):
    return np.array([min(1.0, limit / reference.norm(u)) for u in updates])


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), group_size=st.integers(1, 6), limit=st.floats(0.1, 5))
def test_a_groups_model_is_the_global_one_plus_weighted_clipped_updates(weighting, seed, group_size, limit):
    g, updates, distances, order = random_group(seed)
    group = sorted(order[:group_size].tolist())
    inside = np.isin(np.arange(6), group)
    coefficients = group_coefficients(inside, distances, clip_factors_of(updates, limit), weighting)
    expected = reference.group_model(
        g, [reference.clipped(g, g + updates[i], limit) for i in group], distances[group], weighting
    )
    np.testing.assert_allclose(g + coefficients @ updates, expected, atol=1e-9)
    assert not coefficients[~inside].any()


def test_an_empty_group_has_no_coefficients():
    assert group_coefficients(np.zeros(3, bool), np.ones(3), np.ones(3)).tolist() == [0.0, 0.0, 0.0]


def test_the_length_of_a_step_follows_from_the_inner_products():
    _, updates, coefficients, _ = random_group(1)
    expected = reference.norm(sum(c * u for c, u in zip(coefficients, updates, strict=True)))
    assert step_norm(coefficients, updates @ updates.T) == pytest.approx(expected)


def test_a_step_whose_updates_cancel_has_no_length():
    updates = np.array([[1.0, 0.1], [-1.0, -0.1]])
    assert step_norm(np.array([0.3, 0.3]), updates @ updates.T) == pytest.approx(0, abs=1e-8)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), strength=st.floats(0, 2), minus_scale=st.floats(0, 20))
def test_the_whole_step_leads_to_the_papers_new_global_model(seed, strength, minus_scale):
    g, updates, shares, _ = random_group(seed)
    plus, minus = shares.copy(), shares[::-1] * minus_scale
    plus[3:], minus[:3] = 0, 0
    coefficients = eliminating_coefficients(plus, minus, updates @ updates.T, strength)
    expected = reference.new_global_model(
        g, g + plus @ updates, g + minus @ updates, gamma=strength, blame=1.0, n=math.e - 1
    )
    np.testing.assert_allclose(g + coefficients @ updates, expected, atol=1e-6)


def test_a_poisoned_model_far_away_counts_no_more_than_the_normal_one():
    updates = np.array([[1.0, 0.0], [0.0, 50.0]])
    step = eliminating_coefficients(np.array([1.0, 0.0]), np.array([0.0, 1.0]), updates @ updates.T, 0.5) @ updates
    assert step.tolist() == pytest.approx([1.5, -0.5])


def test_a_poisoned_model_nearby_is_not_lengthened():
    updates = np.array([[1.0, 0.0], [0.0, 0.2]])
    step = eliminating_coefficients(np.array([1.0, 0.0]), np.array([0.0, 1.0]), updates @ updates.T, 0.5) @ updates
    assert step.tolist() == pytest.approx([1.5, -0.1])


def test_malicious_clients_that_did_not_move_still_push_along_the_normal_model():
    updates = np.array([[1.0, 0.0], [0.0, 0.0]])
    step = eliminating_coefficients(np.array([1.0, 0.0]), np.array([0.0, 1.0]), updates @ updates.T, 0.5) @ updates
    assert step.tolist() == pytest.approx([1.5, 0.0])


def test_normal_clients_that_did_not_move_leave_the_model_where_it_was():
    updates = np.array([[0.0, 0.0], [0.0, 7.0]])
    step = eliminating_coefficients(np.array([1.0, 0.0]), np.array([0.0, 1.0]), updates @ updates.T, 0.5) @ updates
    assert step.tolist() == [0.0, 0.0]


def test_the_strength_is_the_malicious_share_of_all_scores_times_the_log_of_the_norm():
    strength = elimination_strength(np.array([0.3, -0.1, 0.1]), np.array([False, True, True]), math.e - 1, 0.01)
    assert strength == pytest.approx(0.01 * (0.2 / 0.5) * 1.0)


def test_there_is_nothing_to_eliminate_without_malicious_clients():
    assert elimination_strength(np.array([0.3, -0.1]), np.array([False, False]), 5.0, 0.01) == 0.0


def test_scores_that_are_all_zero_give_no_strength():
    assert elimination_strength(np.zeros(2), np.array([False, True]), 5.0, 0.01) == 0.0


# Whole rounds. The clustering is taken from the library; everything before and after is computed a second time.

MODEL = {"conv.weight": (3, 2, 2), "head.weight": (4, 3), "conv.bias": (3,), "scale": (1,), "head.bias": (4,)}
LAYERS = [["conv.weight", "conv.bias"], ["head.weight", "head.bias"], ["scale"]]
NUM_CLIENTS = 14
GROUPS = [  # who takes part in each round: newcomers, returning clients, too few to compare, everybody
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


ENCODER = {"hidden_dim": 64, "latent_dim": 32, "pretrain_epochs": 5, "cluster_epochs": 5, "learning_rate": 0.01}
"""What the paper leaves open, fixed so that tuning the defaults does not change which decisions these rounds see."""


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
    """A client's model: clients from 11 on drift together and far, as colluding attackers would."""
    common = random_model(np.random.default_rng(99), scale=0.5 if client > 10 else 0.1)
    own = random_model(rng, scale=rng.uniform(0.05, 0.3))
    return {
        name: (value + common[name].astype(value.dtype) + own[name].astype(value.dtype))
        for name, value in global_weights.items()
    }


class Twins:
    """The library's guard and the literal one, side by side through the same rounds."""

    def __init__(self, monkeypatch, settings_: dict, seed: int = 3) -> None:
        self.graphs, self.clusterings = [], []

        def recording(attributes, adjacency, **options):
            self.graphs.append((attributes.copy(), adjacency.copy()))
            self.clusterings.append(self.original(attributes, adjacency, **options))
            return self.clusterings[-1]

        self.original = guard_module.cluster_graph
        monkeypatch.setattr(guard_module, "cluster_graph", recording)
        self.ours = G2uardFL(profile="paper", seed=seed, **(ENCODER | settings_))
        first = [initial_score(c, seed, settings_.get("score_init", "variance")) for c in range(NUM_CLIENTS)]
        literal = {name: value for name, value in settings_.items() if name in reference.PaperGuard.__annotations__}
        self.literal = reference.PaperGuard(np.array(first), layer_positions(), self._same_clustering, **literal)

    def _same_clustering(self, attributes, adjacency):
        np.testing.assert_allclose(self.graphs[-1][0], attributes, atol=1e-3)
        np.testing.assert_allclose(self.graphs[-1][1], adjacency, atol=1e-4)
        found = self.clusterings[-1]
        return found.latent, found.centres, found.soft

    def rounds(self, seed: int = 0, groups=GROUPS):
        """Run all rounds; yields our result, the literal model and the literal decisions of each."""
        rng = np.random.default_rng(seed)
        model = random_model(rng)
        for group in groups:
            clients = {client: trained(model, client, rng) for client in group}
            result = self.ours.aggregate(model, clients)
            expected = self.literal.round(flat(model), {c: flat(w) for c, w in clients.items()})
            yield result, *expected
            model = result.weights


def assert_rounds_agree(twins: Twins, seed: int = 0) -> set[str]:
    """Weights to 1e-5 and every decision exactly; returns the decisions that occurred."""
    seen = set()
    for result, expected_model, expected_decisions in twins.rounds(seed):
        np.testing.assert_allclose(flat(result.weights), expected_model, rtol=1e-5, atol=1e-5)
        decisions = {client: verdict.decision for client, verdict in result.verdicts.items()}
        assert decisions == expected_decisions
        seen |= set(decisions.values())
    return seen


@pytest.mark.parametrize("seed", [0, 1])
def test_whole_rounds_give_the_models_and_decisions_of_the_papers_algorithm(monkeypatch, seed):
    assert assert_rounds_agree(Twins(monkeypatch, {}), seed) == {"accepted", "held_out", "malicious"}


def test_whole_rounds_without_elimination_give_the_normal_model_alone(monkeypatch):
    assert "malicious" in assert_rounds_agree(Twins(monkeypatch, {"eliminate": False}))


def test_whole_rounds_with_every_printed_switch_give_the_papers_models(monkeypatch):
    assert "malicious" in assert_rounds_agree(Twins(monkeypatch, PRINTED))


@pytest.mark.parametrize("name", PRINTED)
def test_each_printed_switch_alone_gives_the_papers_models(monkeypatch, name):
    assert "malicious" in assert_rounds_agree(Twins(monkeypatch, {name: PRINTED[name]}))


def test_whole_rounds_with_signed_scores_give_the_same_models_as_the_literal_rule(monkeypatch):
    assert "malicious" in assert_rounds_agree(Twins(monkeypatch, {"score_update": "signed"}))


def test_a_strong_elimination_is_the_papers_as_well(monkeypatch):
    twins = Twins(monkeypatch, {"elimination_rate": 1.0})
    twins.literal.gamma = 1.0
    assert "malicious" in assert_rounds_agree(twins)


@pytest.mark.parametrize("settings_", [{"min_clusters": 1}, {"min_clusters": 4}])
def test_the_fewest_clusters_changes_the_clustering_and_nothing_else(monkeypatch, settings_):
    twins = Twins(monkeypatch, settings_)
    assert_rounds_agree(twins)
    assert min(len(found.centres) for found in twins.clusterings) == settings_["min_clusters"]


def test_benign_scores_are_the_papers_for_clients_seen_from_the_first_round_on(monkeypatch):
    twins = Twins(monkeypatch, {})
    for result, _, _ in twins.rounds(groups=[list(range(NUM_CLIENTS)), *GROUPS]):
        ours = {client: verdict.benign_score for client, verdict in result.verdicts.items()}
        assert ours == pytest.approx({client: twins.literal.scores[client] for client in ours}, rel=1e-9)


def test_benign_scores_are_the_papers_for_clients_that_join_late(monkeypatch):
    twins = Twins(monkeypatch, {})
    for result, _, _ in twins.rounds():
        ours = {client: verdict.benign_score for client, verdict in result.verdicts.items()}
        assert ours == pytest.approx({client: twins.literal.scores[client] for client in ours}, rel=1e-9)


def test_a_verdicts_weight_is_the_clients_share_in_the_new_model(monkeypatch):
    twins = Twins(monkeypatch, {})
    rng = np.random.default_rng(0)
    model = random_model(rng)
    clients = {client: trained(model, client, rng) for client in GROUPS[0]}
    result = twins.ours.aggregate(model, clients)
    moved = sum(result.verdicts[c].weight * (flat(clients[c]) - flat(model)) for c in clients)
    np.testing.assert_allclose(flat(result.weights), flat(model) + moved, atol=1e-5)


def test_running_statistics_are_averaged_over_the_normal_clients_by_their_shares(monkeypatch):
    twins = Twins(monkeypatch, {})
    rng = np.random.default_rng(0)
    model = random_model(rng)
    clients = {client: trained(model, client, rng) for client in GROUPS[0]}

    def with_buffers(weights, mean: float, count: int):
        return {**weights, "bn.running_mean": np.full(2, mean, np.float32), "bn.num_batches_tracked": np.array(count)}

    result = twins.ours.aggregate(
        with_buffers(model, 0.0, 0), {c: with_buffers(w, 10.0 * c, 100 * c) for c, w in clients.items()}
    )
    twins.literal.round(flat(model), {c: flat(w) for c, w in clients.items()})
    shares = twins.literal.shares
    expected = sum(share * c for c, share in shares.items()) / sum(shares.values())
    np.testing.assert_allclose(result.weights["bn.running_mean"], [10 * expected] * 2, rtol=1e-5)
    assert result.weights["bn.num_batches_tracked"] == round(100 * expected)


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float64, 1e-9)])
def test_whole_rounds_of_other_precisions_agree_to_that_precision(monkeypatch, dtype, precision):
    twins = Twins(monkeypatch, {})
    rng = np.random.default_rng(0)
    model = {name: torch.from_numpy(value).to(dtype) for name, value in random_model(rng).items()}
    for group in (GROUPS[0], [2, 3, 4, 5, 7]):
        wide = {name: value.double().numpy() for name, value in model.items()}
        clients = {
            c: {name: torch.from_numpy(value).to(dtype) for name, value in trained(wide, c, rng).items()} for c in group
        }
        result = twins.ours.aggregate(model, clients)
        widened = {c: flat({name: value.double() for name, value in w.items()}) for c, w in clients.items()}
        expected, decisions = twins.literal.round(flat(wide), widened)
        ours = flat({name: value.double() for name, value in result.weights.items()})
        np.testing.assert_allclose(ours, expected, rtol=precision, atol=precision)
        assert {c: verdict.decision for c, verdict in result.verdicts.items()} == decisions
        assert all(value.dtype == dtype for value in result.weights.values())
        model = result.weights


@pytest.mark.parametrize("group", [[5], [5, 6]])
def test_one_or_two_clients_give_the_mean_of_their_clipped_models(monkeypatch, group):
    twins = Twins(monkeypatch, {})
    for result, expected, decisions in twins.rounds(groups=[group, group]):
        np.testing.assert_allclose(flat(result.weights), expected, rtol=1e-5, atol=1e-5)
        assert {c: verdict.decision for c, verdict in result.verdicts.items()} == decisions


def test_identical_clients_move_the_model_to_where_they_all_are():
    rng = np.random.default_rng(0)
    model = random_model(rng)
    one = trained(model, 0, rng)
    result = G2uardFL(profile="paper").aggregate(model, dict.fromkeys(range(5), one))
    np.testing.assert_allclose(flat(result.weights), flat(one), atol=1e-5)
    assert "malicious" not in {verdict.decision for verdict in result.verdicts.values()}


def test_clients_that_did_not_move_leave_the_model_as_it_was():
    model = random_model(np.random.default_rng(0))
    result = G2uardFL(profile="paper").aggregate(model, dict.fromkeys(range(5), model))
    assert np.array_equal(flat(result.weights), flat(model))


def test_rounds_with_thousands_of_clients_in_all_keep_nothing_quadratic():
    guard, rng = G2uardFL(profile="paper", pretrain_epochs=1, cluster_epochs=1), np.random.default_rng(0)
    model = {"a": np.zeros(2, np.float32)}
    for number in range(100):
        guard.aggregate(model, {20 * number + k: {"a": rng.normal(size=2).astype(np.float32)} for k in range(20)})
    assert len(guard.graph.rows) == len(guard.scores.scores) == 2000
    assert len(guard.graph.edges) == 100 * (20 * 21 // 2)
    assert len(guard.state().arrays["last_updates"]) == 20
