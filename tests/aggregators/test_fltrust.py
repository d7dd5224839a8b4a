"""FLTrust against loops, a round by hand, and the mistakes that its public ports make."""

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


class Root(ServerContext):
    """A server whose training adds what the test says, and which remembers what it was asked."""

    def __init__(self, change):
        self.change = change
        self.asked = []

    def root_update(self, global_weights, round_number):
        self.asked.append((dict(global_weights), round_number))
        return self.change(global_weights)


def trusting(change):
    rule = FLTrust()
    rule.attach(Root(change))
    return rule


def on_vectors(g, server_update, updates, **kwargs):
    """One round on a model that is a single vector."""
    model = {"w": np.array(g, float)}
    clients = {i: {"w": model["w"] + np.array(u, float)} for i, u in enumerate(updates)}
    return trusting(lambda w: {"w": w["w"] + np.array(server_update, float)}).aggregate(model, clients, **kwargs)


def slow_step(g0, updates):
    """The published formula, client by client."""
    length = math.sqrt(math.fsum(x * x for x in g0))
    trust, total = [], [0.0] * len(g0)
    for update in updates:
        norm = math.sqrt(math.fsum(x * x for x in update))
        product = math.fsum(x * y for x, y in zip(g0, update, strict=True))
        score = max(0.0, product / (norm * length)) if norm > 0 and length > 0 else 0.0
        trust.append(score)
        if score > 0:
            total = [t + score * x * length / norm for t, x in zip(total, update, strict=True)]
    whole = sum(trust)
    return trust, [t / whole for t in total] if whole > 0 else total


def updates_of(kind, seed, clients, size):
    rng = np.random.default_rng(seed)
    updates = rng.normal(size=(clients, size))
    if kind == "clustered":
        updates = 0.1 * updates + 1
    elif kind == "identical":
        updates[:] = updates[0]
    elif kind == "one zero":
        updates[0] = 0
    elif kind == "zero":
        updates[:] = 0
    elif kind == "outlier":
        updates[0] *= 1e12
    return updates


@settings(max_examples=120, deadline=None)
@given(
    kind=st.sampled_from(["random", "clustered", "identical", "one zero", "zero", "outlier"]),
    seed=st.integers(0, 2**32 - 1),
    clients=st.integers(1, 8),
    size=st.integers(1, 7),
)
def test_a_round_is_that_of_the_published_formula(kind, seed, clients, size):
    updates = updates_of(kind, seed, clients, size)
    g0 = np.random.default_rng([seed, 1]).normal(size=size) * 0.3
    result = on_vectors(np.zeros(size), g0, updates)
    trust, step = slow_step(g0.tolist(), updates.tolist())
    np.testing.assert_allclose(result.weights["w"], step, rtol=1e-9, atol=1e-12)
    for verdict, score in zip(result.verdicts.values(), trust, strict=True):
        assert verdict.decision == ("accepted" if score > 0 else "held_out")


def test_a_round_by_hand():
    """Cosines 0.6, -1 and 1 with (2, 0); rescaled to length 2: (1.2, 1.6) and (2, 0)."""
    result = on_vectors([10, 10], [2, 0], [[3, 4], [-1, 0], [0.5, 0]], num_examples={0: 0, 1: 900, 2: 1})
    np.testing.assert_allclose(result.weights["w"], [10 + (0.6 * 1.2 + 2) / 1.6, 10 + 0.6 * 1.6 / 1.6])
    assert [verdict.decision for verdict in result.verdicts.values()] == ["accepted", "held_out", "accepted"]
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


# What the public ports get wrong (each test fails with the mistake in its name).


def test_without_root_data_it_is_an_error_and_not_fedavg_in_silence():
    with pytest.raises(ConfigError, match=r"fltrust needs .* attach\(\)") as caught:
        FLTrust().aggregate(odd_mlp(), federation(odd_mlp()))
    assert "\n" not in str(caught.value)


def test_a_server_that_cannot_train_is_named():
    rule = FLTrust()
    rule.attach(ServerContext())
    with pytest.raises(ConfigError, match="root_update"):
        rule.aggregate(odd_mlp(), federation(odd_mlp()))
    assert rule.round == 0


def test_updates_are_compared_and_scaled_not_weights():
    """Beside a model of norm 1000 all weights point one way; the updates of the last two clients do not."""
    result = on_vectors([1000, 0, 0], [0, 1, 0], [[0, 2, 0], [0, -1, 0], [0, 0, 3]])
    np.testing.assert_allclose(result.weights["w"], [1000, 1, 0])
    assert [verdict.decision for verdict in result.verdicts.values()] == ["accepted", "held_out", "held_out"]


def test_where_nobody_is_trusted_the_global_model_is_kept_bit_for_bit():
    model = numpy_model()
    clients = {i: {name: value - 0.1 for name, value in model.items()} for i in range(3)}
    result = trusting(lambda w: {name: value + 0.1 for name, value in w.items()}).aggregate(model, clients)
    assert same(result.weights, model)
    assert "global model was kept" in result.note


@pytest.mark.parametrize("length", [1e-3, 0.5, 40])
def test_updates_are_brought_to_the_servers_length_be_they_longer_or_shorter(length):
    result = on_vectors([0, 0], [0.5, 0], [[length, 0], [length, 0]])
    np.testing.assert_allclose(result.weights["w"], [0.5, 0])


def test_running_statistics_come_from_trusted_clients_by_their_trust():
    model = batch_norm_model()
    root = perturbed(model, 7)
    opposite = {name: 2 * model[name] - root[name] if "running" not in name else root[name] for name in model}
    clients = {0: root, 1: {**opposite, "1.running_mean": model["1.running_mean"] + 1e6}}
    result = trusting(lambda _: root).aggregate(model, clients)
    assert result.verdicts[1].decision == "held_out"
    np.testing.assert_allclose(result.weights["1.running_mean"], root["1.running_mean"], rtol=1e-6)


# The server, and what it may answer.


def test_the_server_is_asked_once_a_round_with_the_whole_model_and_the_rounds_number():
    model = batch_norm_model()
    rule = trusting(lambda w: perturbed(w, 1))
    for number in (1, 2, 3):
        result = rule.aggregate(model, {f"{number}-{i}": w for i, w in federation(model, 2 + number).items()})
        asked, round_number = rule.server.asked[-1]
        assert same(asked, model)
        assert (round_number, len(rule.server.asked)) == (number, number)
        model = result.weights


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_a_server_whose_training_diverged_changes_nothing_and_says_so(value):
    model = odd_mlp()
    result = trusting(lambda w: {n: torch.full_like(v, value) for n, v in w.items()}).aggregate(
        model, federation(model)
    )
    assert same(result.weights, model)
    assert "out of bounds" in result.note


def test_a_server_that_learnt_nothing_keeps_the_model():
    model = odd_mlp()
    assert same(trusting(dict).aggregate(model, federation(model)).weights, model)


@pytest.mark.parametrize(
    "answer",
    [
        lambda w: {},
        lambda w: None,
        lambda w: {**w, "0.weight": w["0.weight"][:1]},
        lambda w: {**w, "more": w["0.weight"]},
    ],
)
def test_a_server_that_answers_with_another_model_is_the_callers_error(answer):
    with pytest.raises(ConfigError, match="root_update"):
        trusting(answer).aggregate(odd_mlp(), federation(odd_mlp()))


def test_no_model_stays_behind_in_the_rule():
    rule = trusting(lambda w: perturbed(w, 1))
    rule.aggregate(odd_mlp(), federation(odd_mlp()))
    assert not rule._global_weights
    assert not rule._client_weights


def test_a_restored_rule_goes_on_counting(tmp_path):
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
    assert again.server.asked[0][1] == 2
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
def test_the_step_is_no_longer_than_the_servers_and_the_lengths_of_updates_do_not_matter(seed, clients, scales):
    rng = np.random.default_rng(seed)
    updates, g0 = rng.normal(size=(clients, 5)), rng.normal(size=5)
    plain = on_vectors(np.zeros(5), g0, updates).weights["w"]
    scaled = on_vectors(np.zeros(5), g0, updates * np.array(scales[:clients])[:, None]).weights["w"]
    np.testing.assert_allclose(plain, scaled, rtol=1e-9, atol=1e-12)
    assert np.linalg.norm(plain) <= np.linalg.norm(g0) * (1 + 1e-9)


def test_many_columns_are_summed_in_parts_that_miss_nothing(monkeypatch):
    monkeypatch.setattr("g2uardfl.aggregators.fltrust._CHUNK", 20)
    updates = updates_of("random", 3, 6, 47)
    g0 = np.random.default_rng(9).normal(size=47)
    _, step = slow_step(g0.tolist(), updates.tolist())
    np.testing.assert_allclose(on_vectors(np.zeros(47), g0, updates).weights["w"], step, rtol=1e-9)
