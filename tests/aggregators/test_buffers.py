"""Statistics, counters and integer arrays: attackers are flagged and excluded, and their influence is bounded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.aggregators import create
from g2uardfl.aggregators.buffers import robust_mean, screen
from g2uardfl.core.errors import ConfigError
from g2uardfl.core.layout import ModelLayout
from helpers.buffers import slow_mean
from helpers.models import batch_norm_model, federation, perturbed, same
from helpers.rules import RULES, make

MEAN, VARIANCE, COUNTER = "1.running_mean", "1.running_var", "1.num_batches_tracked"


def lying(client: dict[str, Any], name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    """What `client` sends, with one array changed."""
    return {**client, name: change(client[name].clone())}


def in_one_channel(array: torch.Tensor) -> torch.Tensor:
    array[2] += 100
    return array


LIES = {
    "a mean of 100 more": (MEAN, lambda array: array + 100),
    "a huge mean": (MEAN, lambda array: torch.full_like(array, 1e15)),
    "a mean in one channel": (MEAN, in_one_channel),
    "a huge variance": (VARIANCE, lambda array: torch.full_like(array, 1e6)),
    "a counter far below zero": (COUNTER, lambda array: torch.full_like(array, -(2**62))),
    "the smallest counter": (COUNTER, lambda array: torch.full_like(array, -(2**63))),
    "a huge counter": (COUNTER, lambda array: torch.full_like(array, 2**62)),
}


@pytest.mark.parametrize(
    ("rule", "lie"),
    [*((rule, "a huge mean") for rule in RULES), *(("fedavg", lie) for lie in LIES if lie != "a huge mean")],
)
def test_a_client_with_false_statistics_is_flagged_and_changes_nothing(rule, lie):
    model, (name, change) = batch_norm_model(), LIES[lie]
    clients = federation(model, 9, 0)
    expected = make(rule, model).aggregate(model, clients)
    result = make(rule, model).aggregate(model, {**clients, 99: lying(perturbed(model, 99), name, change)})
    assert result.verdicts[99].decision == "malicious"
    leaf = name.removeprefix("1.")
    assert result.verdicts[99].reason.startswith(f"Its {leaf} of '1' is far outside what the other clients send (")
    assert {client: verdict for client, verdict in result.verdicts.items() if client != 99} == expected.verdicts
    assert same(result.weights, expected.weights)


@pytest.mark.parametrize("factor", [lambda client: 1.0, lambda client: client - 1.5, lambda client: 2.0**client])
@pytest.mark.parametrize("lie", LIES)
def test_four_attackers_of_ten_are_all_flagged_and_nobody_else(lie, factor):
    """They send the same false value, false values in both directions, or of different size."""
    model, (name, change) = batch_norm_model(), LIES[lie]
    clients = federation(model, 10, 0)
    for client in range(4):
        attacker = lying(clients[client], name, change)
        if name == MEAN:
            attacker[name] = clients[client][name] + factor(client) * (attacker[name] - clients[client][name])
        clients[client] = attacker
    result = create("fedavg").aggregate(model, clients)
    assert [client for client, one in result.verdicts.items() if one.decision == "malicious"] == [0, 1, 2, 3]


def test_if_half_of_the_clients_are_attackers_nobody_is_flagged():
    model = batch_norm_model()
    for sign in (1, -1):
        clients = federation(model, 10, 0)
        for client in range(5):
            clients[client] = lying(clients[client], MEAN, lambda array, s=sign: array + s * 1000)
        result = create("fedavg").aggregate(model, clients)
        assert {verdict.decision for verdict in result.verdicts.values()} == {"accepted"}


def test_the_note_names_three_suspicious_clients_and_counts_the_others():
    model = batch_norm_model()
    clients = federation(model, 11, 0)
    for client in range(6, 11):
        clients[client] = lying(clients[client], MEAN, lambda array: array + 10)
    result = create("fedavg").aggregate(model, clients)
    assert {verdict.decision for verdict in result.verdicts.values()} == {"accepted"}
    named = [client for client in clients if f"Client {client}: running_mean of '1' is far outside" in result.note]
    assert named == [6, 7, 8]
    assert result.note.endswith("its values are clipped. The same holds for 2 more.")


@pytest.mark.parametrize("rule", RULES)
def test_a_message_that_is_invalid_too_is_invalid_under_every_rule(rule):
    model = batch_norm_model()
    clients = federation(model, 9, 0)
    expected = make(rule, model).aggregate(model, clients)
    invalid = lying(perturbed(model, 99), "0.weight", lambda array: array * math.nan)
    clients[99] = lying(invalid, MEAN, lambda array: array + 100)
    result = make(rule, model).aggregate(model, clients)
    assert result.verdicts[99].decision == "invalid"
    assert same(result.weights, expected.weights)


def test_flagged_clients_do_not_count_as_usable_updates():
    model = batch_norm_model()
    clients = {**federation(model, 4, 0), 99: lying(perturbed(model, 99), MEAN, lambda array: array + 100)}
    result = create("fedavg").aggregate(model, clients, min_updates=5)
    assert not result.decided
    assert [verdict.decision for verdict in result.verdicts.values()] == ["held_out"] * 4 + ["malicious"]
    assert same(result.weights, model)


def test_clients_with_a_thousand_times_the_data_of_others_are_not_flagged():
    model = batch_norm_model()
    model[COUNTER].zero_()
    clients = federation(model, 10, 0)
    for client, batches in enumerate([1, 1, 2, 3, 3, 5, 8, 40, 300, 5000]):
        clients[client][COUNTER] = torch.tensor(batches)
    result = create("fedavg").aggregate(model, clients)
    assert {verdict.decision for verdict in result.verdicts.values()} == {"accepted"}


def test_clients_that_train_statistics_which_the_majority_leaves_alone_are_not_flagged():
    model = batch_norm_model()
    clients = federation(model, 10, 0)
    for client in range(7):
        clients[client] |= {name: model[name] for name in (MEAN, VARIANCE, COUNTER)}
    result = create("fedavg").aggregate(model, clients)
    assert {verdict.decision for verdict in result.verdicts.values()} == {"accepted"}
    assert all(torch.equal(result.weights[name], model[name]) for name in (MEAN, VARIANCE, COUNTER))


# Lies below the threshold.


@pytest.mark.parametrize("sign", [1, -1])
def test_an_attacker_just_below_the_threshold_moves_each_statistic_by_less_than_the_honest_spread(sign):
    model = batch_norm_model()
    honest = federation(model, 9, 0)
    sent = torch.stack([client[MEAN] for client in honest.values()])
    attacker = lying(perturbed(model, 99), MEAN, lambda array: array + sign * 19.0)
    result = create("fedavg").aggregate(model, {**honest, 99: attacker})
    assert result.verdicts[99].decision == "accepted"
    assert result.note.startswith("Client 99: running_mean of '1' is far outside what the other clients send (")
    without = create("fedavg").aggregate(model, honest)
    moved = (result.weights[MEAN] - without.weights[MEAN]).abs()
    assert (moved < sent.max(dim=0).values - sent.min(dim=0).values).all()


@pytest.mark.parametrize("rule", RULES)
def test_four_attackers_below_the_threshold_keep_the_mean_near_the_honest_clients(rule):
    model = batch_norm_model()
    clients = federation(model, 10, 0)
    honest = torch.stack([clients[client][MEAN] for client in range(6)])
    for client in range(6, 10):
        clients[client] = lying(clients[client], MEAN, lambda array: array + 15)
    weights = make(rule, model).aggregate(model, clients).weights[MEAN]
    spread = honest.max(dim=0).values - honest.min(dim=0).values
    assert (weights <= honest.max(dim=0).values + 2 * spread).all()
    assert (weights >= honest.min(dim=0).values - 2 * spread).all()


@pytest.mark.parametrize("rule", RULES)
def test_variances_stay_positive_for_any_accepted_client(rule):
    model = batch_norm_model()
    clients = {
        client: lying(weights, VARIANCE, lambda array, c=client: array * (c >= 4))
        for client, weights in federation(model, 10, 0).items()
    }
    assert (make(rule, model).aggregate(model, clients).weights[VARIANCE] > 0.1).all()


@pytest.mark.parametrize(("name", "declared"), [
    ("norm.running_var", ()), ("norm/moving_variance", ()), ("moving_var", ()), ("norm.global_moving_var", ["*_var"])
])  # fmt: skip
def test_variances_of_other_frameworks_stay_positive_and_negative_ones_are_invalid(name, declared):
    """Krum selects client 4, whose variances are 0: they are clipped to m² / (m + 2 r), where m and r are 1."""
    model = {"w": torch.zeros(1), name: torch.ones(1)}
    weights, variances = (5.0, -4.0, 0.2, -0.2, 0.0, 0.05, 0.0), (2.0, 2.0, 1.0, 1.0, 0.0, 0.0, -0.5)
    sent = {
        client: {"w": torch.tensor([weight]), name: torch.tensor([variance])}
        for client, (weight, variance) in enumerate(zip(weights, variances, strict=True))
    }
    result = create("krum", malicious_clients=1).aggregate(model, sent, buffers=declared)
    assert result.verdicts[6].decision == "invalid"
    assert result.verdicts[6].reason == f"The client sent a negative variance in {name!r}."
    assert result.weights["w"].item() == 0
    assert result.weights[name].item() == pytest.approx(1 / 3)


@pytest.mark.parametrize("name", ["norm.moving_mean", "net/norm/moving_variance", "moving_var"])
def test_statistics_of_other_frameworks_are_not_part_of_the_updates(name):
    layout = ModelLayout.of({"net.weight": np.ones((2, 2)), name: np.ones(2)})
    assert [entry.name for entry in layout.buffers] == [name]
    assert layout.num_parameters == 4


# The formula.


def mean_of(name: str, model: np.ndarray, sent: Sequence[torch.Tensor], shares: Any) -> torch.Tensor:
    """The robust mean of one array, in which all clients vote."""
    layout, weights = layout_of(name, model)
    voting = np.ones(len(sent), dtype=bool)
    return robust_mean(layout, weights, [{name: value} for value in sent], np.array(shares), voting)[name]


def layout_of(kind: str, model: np.ndarray) -> tuple[ModelLayout, dict[str, np.ndarray]]:
    weights = {"w": np.zeros(1, np.float32), kind: model}
    return ModelLayout.of(weights), weights


clients_and_shares = st.integers(1, 12).flatmap(
    lambda clients: st.tuples(
        st.lists(st.floats(0, 1000), min_size=clients, max_size=clients),
        st.lists(st.sampled_from([0.0, 0.5, 1.0, 7.0]), min_size=clients, max_size=clients).filter(any),
    )
)


@pytest.mark.parametrize("name", ["running_mean", "moving_mean", "running_var", "moving_variance", "moving_var"])
@given(drawn=clients_and_shares, model=st.floats(0, 100))
def test_the_mean_of_a_statistic_is_that_of_its_formula(name, drawn, model):
    values, shares = drawn
    sent = [torch.tensor([value], dtype=torch.float64) for value in values]
    expected = slow_mean(values, shares, model, "var" in name, max(1.0, model))
    assert mean_of(name, np.array([model]), sent, shares).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(drawn=clients_and_shares.filter(lambda drawn: len(drawn[0]) >= 3), model=st.integers(0, 50))
def test_the_mean_of_a_counter_is_rounded_and_never_below_the_global_model(drawn, model):
    values, shares = [int(value) for value in drawn[0]], drawn[1]
    found = mean_of("num_batches_tracked", np.array([model]), [torch.tensor([value]) for value in values], shares)
    assert found.item() == pytest.approx(max(slow_mean(values, shares, model), model), abs=0.5 + 1e-6)


def test_without_attackers_the_result_is_close_to_the_weighted_mean():
    rng = np.random.default_rng(0)
    sent, shares = rng.normal(size=(10, 10_000)), rng.random(10)
    shares /= shares.sum()
    found = mean_of("running_mean", np.zeros(10_000), list(torch.from_numpy(sent)), shares).numpy()
    standard_error = np.sqrt((shares**2).sum())
    assert np.sqrt(np.mean((found - shares @ sent) ** 2)) < 0.4 * standard_error
    assert found.std() < 1.05 * standard_error


def test_where_no_value_is_far_from_the_median_the_result_is_the_weighted_mean():
    rng = np.random.default_rng(0)
    sent, shares = rng.uniform(1, 2, size=(12, 1000)), rng.random(12)
    centre = np.sort(sent, axis=0)[5]
    inside = (np.abs(sent - centre) <= 2 * np.sort(np.abs(sent - centre), axis=0)[6]).all(axis=0)
    found = mean_of("running_mean", np.zeros(1000), list(torch.from_numpy(sent)), shares).numpy()
    assert inside.sum() > 100
    np.testing.assert_allclose(found[inside], (shares @ sent / shares.sum())[inside], rtol=1e-12)


@settings(max_examples=200)
@given(
    values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=9),
    shares=st.lists(st.floats(0.1, 1), min_size=9, max_size=9),
)
def test_integers_of_any_size_stay_between_those_of_the_clients(values, shares):
    found = mean_of("steps", np.array([0]), [torch.tensor([value]) for value in values], shares[: len(values)])
    assert min(values) <= found.item() <= max(values)


@given(st.integers(0, 9), st.data())
def test_clients_that_do_not_vote_have_no_influence_on_the_bounds(silent, data):
    """Their values are drawn again; they have no share."""
    layout, weights = layout_of("running_mean", np.zeros(1))
    values = np.random.default_rng(0).normal(size=10)
    voting = np.arange(10) >= silent
    results = []
    for _ in range(2):
        drawn = data.draw(st.lists(st.floats(-100, 100), min_size=silent, max_size=silent))
        sent = [{"running_mean": torch.tensor([value])} for value in [*drawn, *values[silent:]]]
        results.append(robust_mean(layout, weights, sent, voting * np.ones(10), voting)["running_mean"])
    assert torch.equal(*results)


def test_buffers_are_kept_if_nobody_has_a_share():
    layout, weights = layout_of("running_mean", np.zeros(1))
    assert robust_mean(layout, weights, [{"running_mean": torch.ones(1)}], np.zeros(1), np.ones(1, dtype=bool)) == {}


@pytest.mark.parametrize("start", [2**53 + 1, 2**62 + 1, 2**63 - 9, -(2**63) + 1])
def test_large_integers_are_exact(start):
    model = {"w": np.zeros(1, np.float32), "steps": np.array([start])}
    clients = {i: {"w": np.full(1, i, np.float32), "steps": np.array([start + 2 * i])} for i in range(5)}
    result = create("fedavg").aggregate(model, clients).weights["steps"]
    assert result.tolist() == [start + 4]
    assert result.dtype == model["steps"].dtype


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint64])
def test_integer_and_boolean_arrays_take_the_value_of_the_majority_in_their_dtype(dtype):
    model = {"w": np.zeros(1, np.float32), "index": np.zeros(3, dtype)}
    clients = {i: {"w": np.full(1, i, np.float32), "index": np.array([1, 0, i < 6]).astype(dtype)} for i in range(10)}
    result = create("fedavg").aggregate(model, clients).weights["index"]
    assert result.tolist() == [1, 0, 1]
    assert result.dtype == dtype


@pytest.mark.parametrize("rule", RULES)
def test_fewer_than_three_clients_move_buffers_by_no_more_than_their_own_scale(rule):
    model = batch_norm_model()
    clients = {
        client: {**weights, MEAN: weights[MEAN] + 1e15, VARIANCE: weights[VARIANCE] * 0, COUNTER: torch.tensor(-9)}
        for client, weights in federation(model, 2, 0).items()
    }
    for chosen in (clients, {0: clients[0]}):
        weights = make(rule, model).aggregate(model, chosen).weights
        assert (weights[MEAN].abs() <= 1).all()
        assert (weights[VARIANCE] >= 0.5).all()
        assert weights[COUNTER] == 10


def test_nobody_is_flagged_among_fewer_than_three_clients():
    model = batch_norm_model()
    layout = ModelLayout.of(model)
    attacker = lying(perturbed(model, 1), MEAN, lambda array: array + 1e9)
    sent = [layout.buffer_values(weights) for weights in (perturbed(model, 0), attacker, perturbed(model, 2))]
    assert screen(layout, sent[:2]) == [None, None]
    assert [found and found.name for found in screen(layout, sent)] == [None, MEAN, None]


def test_large_arrays_are_examined_in_blocks_with_the_same_result(monkeypatch):
    rng = np.random.default_rng(1)
    layout, weights = layout_of("running_var", np.ones(1000))
    sent = [{"running_var": torch.from_numpy(row)} for row in rng.exponential(size=(7, 1000))]
    sent[3]["running_var"][900] = 1e4
    everybody = np.ones(7, dtype=bool)
    whole = screen(layout, sent), robust_mean(layout, weights, sent, np.ones(7), everybody)["running_var"]
    monkeypatch.setattr("g2uardfl.aggregators.buffers._BLOCK_SIZE", 7 * 64)
    assert screen(layout, sent)[3].z_score == pytest.approx(whole[0][3].z_score)
    assert torch.equal(robust_mean(layout, weights, sent, np.ones(7), everybody)["running_var"], whole[1])


# Arrays that the operator declares as buffers.


def with_codebook(weights: dict[str, Any], value: float) -> dict[str, Any]:
    return {**weights, "codebook.embed": torch.full((6,), value)}


@pytest.mark.parametrize("rule", RULES)
def test_a_false_value_in_a_declared_buffer_is_flagged(rule):
    model = with_codebook(batch_norm_model(), 0.0)
    clients = {i: with_codebook(one, i / 10) for i, one in federation(batch_norm_model(), 9, 0).items()}
    expected = make(rule, model).aggregate(model, clients, buffers=("codebook.*",))
    clients[99] = with_codebook(perturbed(batch_norm_model(), 99), 1000.0)
    result = make(rule, model).aggregate(model, clients, buffers=("codebook.*",))
    assert result.verdicts[99].decision == "malicious"
    assert "embed of 'codebook'" in result.verdicts[99].reason
    assert same(result.weights, expected.weights)


def test_no_rule_sees_a_declared_buffer_as_part_of_an_update():
    model, seen = with_codebook(batch_norm_model(), 0.0), []
    clients = {i: with_codebook(one, i / 10) for i, one in federation(batch_norm_model(), 9, 0).items()}
    create("fedavg").aggregate(model, clients, buffers=("codebook.*",), observers=[lambda *given: seen.append(given)])
    assert {entry.name for entry in seen[0][0].layout.buffers} == {"codebook.embed", MEAN, VARIANCE, COUNTER}


@pytest.mark.parametrize("patterns", [("codebok.*",), ("0.*", "nothing"), "0.*"])
def test_a_pattern_without_a_match_is_the_callers_error(patterns):
    model = batch_norm_model()
    with pytest.raises(ConfigError, match="buffers"):
        create("fedavg").aggregate(model, federation(model), buffers=patterns)


def test_a_guard_rejects_a_change_of_the_declared_buffers():
    model = with_codebook(batch_norm_model(), 0.0)
    clients = {i: with_codebook(one, i / 10) for i, one in federation(batch_norm_model(), 9, 0).items()}
    guard = create("g2uardfl")
    guard.aggregate(model, clients, buffers=("codebook.*",))
    restored = create("g2uardfl")
    restored.restore(guard.state())
    with pytest.raises(ValueError, match="declared as buffers"):
        restored.aggregate(model, clients)
    assert restored.aggregate(model, clients, buffers=("codebook.*",)).decided
