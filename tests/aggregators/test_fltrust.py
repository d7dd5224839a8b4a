"""FLTrust against loops, a round by hand, and the mistakes of its public ports."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.aggregators.context import ServerContext
from g2uardfl.aggregators.fltrust import FLTrust
from g2uardfl.core.errors import ConfigError, StateError
from g2uardfl.core.state_files import SavedState, read_state, write_state
from helpers.models import batch_norm_model, federation, numpy_model, odd_mlp, perturbed, same
from helpers.rounds import decisions, rounds, updates_of


class Root(ServerContext):
    """A server whose training is `change`, and which records its calls."""

    def __init__(self, change):
        self.change = change
        self.calls = []

    def root_update(self, global_weights, round_number):
        self.calls.append((dict(global_weights), round_number))
        return self.change(global_weights)


def trusting(change):
    rule = FLTrust()
    rule.attach(Root(change))
    return rule


def on_vectors(g, server_update, updates, **kwargs):
    """One round of a model that is a single vector."""
    model = {"w": np.array(g, float)}
    clients = {i: {"w": model["w"] + np.array(u, float)} for i, u in enumerate(updates)}
    return trusting(lambda w: {"w": w["w"] + np.array(server_update, float)}).aggregate(model, clients, **kwargs)


def slow_step(g0, updates):
    """The published formula, client by client."""
    server_norm = math.sqrt(math.fsum(x * x for x in g0))
    trust, total = [], [0.0] * len(g0)
    for update in updates:
        norm = math.sqrt(math.fsum(x * x for x in update))
        product = math.fsum(x * y for x, y in zip(g0, update, strict=True))
        score = max(0.0, product / (norm * server_norm)) if norm > 0 and server_norm > 0 else 0.0
        trust.append(score)
        if score > 0:
            total = [t + score * x * server_norm / norm for t, x in zip(total, update, strict=True)]
    whole = sum(trust)
    return trust, [t / whole for t in total] if whole > 0 else total


@settings(max_examples=120, deadline=None)
@given(updates=rounds(most=8), seed=st.integers(0, 2**32 - 1))
def test_a_round_is_that_of_the_published_formula(updates, seed):
    size = updates.shape[1]
    g0 = np.random.default_rng(seed).normal(size=size) * 0.3
    result = on_vectors(np.zeros(size), g0, updates)
    trust, step = slow_step(g0.tolist(), updates.tolist())
    np.testing.assert_allclose(result.weights["w"], step, rtol=1e-9, atol=1e-12)
    assert decisions(result) == "".join("a" if score > 0 else "h" for score in trust)


def test_a_round_by_hand():
    """The cosine similarities with (2, 0) are 0.6, -1 and 1; rescaled to norm 2: (1.2, 1.6) and (2, 0)."""
    result = on_vectors([10, 10], [2, 0], [[3, 4], [-1, 0], [0.5, 0]], num_examples={0: 0, 1: 900, 2: 1})
    np.testing.assert_allclose(result.weights["w"], [10 + (0.6 * 1.2 + 2) / 1.6, 10 + 0.6 * 1.6 / 1.6])
    assert decisions(result) == "aha"
    assert result.verdicts[0].weight == pytest.approx(0.6 / 1.6 * 2 / 5)
    assert "0.6000" in result.verdicts[0].reason
    assert "-1.0000" in result.verdicts[1].reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_round_on_a_model_of_several_layers(dtype):
    model = {name: value.to(dtype) for name, value in odd_mlp().items()}
    clients = {i: {name: value.to(dtype) for name, value in perturbed(odd_mlp(), i).items()} for i in range(5)}
    root = perturbed(odd_mlp(), 99)
    result = trusting(lambda _: root).aggregate(model, clients)

    def vector(weights):
        return torch.cat([(weights[n].double() - model[n].double()).flatten() for n in model]).tolist()

    _, step = slow_step(vector(root), [vector(clients[i]) for i in clients])
    np.testing.assert_allclose(vector(result.weights), step, rtol=1e-4, atol=1e-6)


# Mistakes of public ports: each test fails with the mistake it names.


def test_without_root_data_it_raises_an_error_instead_of_averaging_silently():
    with pytest.raises(ConfigError, match=r"fltrust needs .* attach\(\)") as caught:
        FLTrust().aggregate(odd_mlp(), federation(odd_mlp()))
    assert "\n" not in str(caught.value)


def test_the_error_names_what_the_server_lacks():
    rule = FLTrust()
    rule.attach(ServerContext())
    with pytest.raises(ConfigError, match="root_update"):
        rule.aggregate(odd_mlp(), federation(odd_mlp()))
    assert rule.round == 0


def test_updates_are_compared_and_scaled_not_weights():
    """The weights of all clients have a cosine similarity near 1 to a model of norm 1000; their updates do not."""
    result = on_vectors([1000, 0, 0], [0, 1, 0], [[0, 2, 0], [0, -1, 0], [0, 0, 3]])
    np.testing.assert_allclose(result.weights["w"], [1000, 1, 0])
    assert decisions(result) == "ahh"


def test_if_no_client_is_trusted_the_global_model_is_kept_bit_for_bit():
    model = numpy_model()
    clients = {i: {name: value - 0.1 for name, value in model.items()} for i in range(3)}
    result = trusting(lambda w: {name: value + 0.1 for name, value in w.items()}).aggregate(model, clients)
    assert same(result.weights, model)
    (event,) = result.report.events
    assert event.kind == "model_kept"
    assert result.note == "No update has a positive cosine similarity with the server's: the global model was kept."


@pytest.mark.parametrize("norm", [1e-3, 0.5, 40])
def test_updates_are_scaled_up_or_down_to_the_servers_norm(norm):
    result = on_vectors([0, 0], [0.5, 0], [[norm, 0], [norm, 0]])
    np.testing.assert_allclose(result.weights["w"], [0.5, 0])


def test_running_statistics_are_weighted_by_trust():
    model = batch_norm_model()
    root = perturbed(model, 7)
    opposite = {name: 2 * model[name] - root[name] if "running" not in name else root[name] for name in model}
    clients = {0: root, 1: {**opposite, "1.running_mean": model["1.running_mean"] + 1e6}}
    result = trusting(lambda _: root).aggregate(model, clients)
    assert result.verdicts[1].decision == "held_out"
    np.testing.assert_allclose(result.weights["1.running_mean"], root["1.running_mean"], rtol=1e-6)


# The server's results.


def test_the_server_is_called_once_per_round_with_the_whole_model_and_the_rounds_number():
    model = batch_norm_model()
    rule = trusting(lambda w: perturbed(w, 1))
    for number in (1, 2, 3):
        result = rule.aggregate(model, {f"{number}-{i}": w for i, w in federation(model, 2 + number).items()})
        weights, round_number = rule.server.calls[-1]
        assert same(weights, model)
        assert (round_number, len(rule.server.calls)) == (number, number)
        model = result.weights


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_if_the_servers_training_diverges_the_model_is_kept(value):
    model = odd_mlp()
    result = trusting(lambda w: {n: torch.full_like(v, value) for n, v in w.items()}).aggregate(
        model, federation(model)
    )
    assert same(result.weights, model)
    assert [event.kind for event in result.report.events] == ["model_kept"]
    assert "training diverged" in result.note


def test_if_the_servers_training_changes_nothing_the_model_is_kept():
    model = odd_mlp()
    assert same(trusting(dict).aggregate(model, federation(model)).weights, model)


@pytest.mark.parametrize(
    "training",
    [
        lambda w: {},
        lambda w: None,
        lambda w: {**w, "0.weight": w["0.weight"][:1]},
        lambda w: {**w, "more": w["0.weight"]},
    ],
)
def test_a_server_that_returns_another_model_is_the_callers_error(training):
    with pytest.raises(ConfigError, match="root_update"):
        trusting(training).aggregate(odd_mlp(), federation(odd_mlp()))


def test_a_restored_rule_continues_its_round_count(tmp_path):
    model = odd_mlp()

    def noisy_server():
        return Root(lambda w: perturbed(w, 1))

    rule = FLTrust()
    rule.attach(noisy_server())
    rule.aggregate(model, federation(model))
    write_state(tmp_path / "state", "fltrust", rule.state())
    again = FLTrust()
    again.restore(read_state(tmp_path / "state", "fltrust"))
    again.attach(noisy_server())
    first, second = (each.aggregate(model, federation(model, seed=1)) for each in (rule, again))
    assert again.server.calls[0][1] == 2
    assert same(first.weights, second.weights)
    with pytest.raises(StateError, match="fltrust"):
        FLTrust().restore(SavedState({"round": "x"}))


# Properties.


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    clients=st.integers(1, 6),
    scales=st.lists(st.floats(1e-6, 1e6), min_size=6, max_size=6),
)
def test_the_norm_of_the_step_is_at_most_the_servers_and_the_norms_of_updates_have_no_influence(seed, clients, scales):
    rng = np.random.default_rng(seed)
    updates, g0 = rng.normal(size=(clients, 5)), rng.normal(size=5)
    plain = on_vectors(np.zeros(5), g0, updates).weights["w"]
    scaled = on_vectors(np.zeros(5), g0, updates * np.array(scales[:clients])[:, None]).weights["w"]
    np.testing.assert_allclose(plain, scaled, rtol=1e-9, atol=1e-12)
    assert np.linalg.norm(plain) <= np.linalg.norm(g0) * (1 + 1e-9)


def test_products_are_complete_for_models_of_many_blocks():
    updates, g0 = updates_of("random", 6, 400_000, 3), updates_of("random", 1, 400_000, 9)[0]
    norms, server_norm = np.linalg.norm(updates, axis=1), np.linalg.norm(g0)
    trust = np.maximum(updates @ g0 / norms / server_norm, 0)
    step = (trust * server_norm / norms) @ updates / trust.sum()
    result = on_vectors(np.zeros(400_000), g0, updates)
    np.testing.assert_allclose(result.weights["w"], step, rtol=1e-9, atol=1e-12)
