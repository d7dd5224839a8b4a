"""What every aggregation rule guarantees for any input of clients."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl import aggregators
from g2uardfl.core.errors import ConfigError
from helpers.models import (
    batch_norm_model,
    federation,
    flat,
    numpy_model,
    odd_mlp,
    perturbed,
    same,
)
from helpers.rules import RULES, make

MODELS = {"mlp": odd_mlp, "batch norm": batch_norm_model, "numpy": numpy_model}


def with_value(client, value):
    changed = {
        name: array.clone() if isinstance(array, torch.Tensor) else array.copy() for name, array in client.items()
    }
    first = next(iter(changed))
    changed[first].reshape(-1)[0] = value
    return changed


@pytest.mark.parametrize("value", [1e30, 2e18, float("inf")])
@pytest.mark.parametrize("rule", RULES)
def test_two_invalid_messages_that_cancel_are_both_invalid(rule, value):
    model = odd_mlp()
    clients = federation(model)
    expected = make(rule, model).aggregate(model, clients, dict.fromkeys(clients, 1))
    clients[98] = with_value(perturbed(model, 98), value)
    clients[99] = with_value(perturbed(model, 99), -value)
    result = make(rule, model).aggregate(model, clients, dict.fromkeys(clients, 1))
    assert {result.verdicts[client].decision for client in (98, 99)} == {"invalid"}
    assert same(result.weights, expected.weights)


@pytest.mark.parametrize("rule", RULES)
def test_an_invalid_message_without_samples_is_still_invalid(rule):
    model = odd_mlp()
    clients = federation(model)
    clients[99] = with_value(perturbed(model, 99), float("nan"))
    result = make(rule, model).aggregate(model, clients, {**dict.fromkeys(clients, 5), 99: 0})
    assert result.verdicts[99].decision == "invalid"


@pytest.mark.parametrize("rule", RULES)
def test_a_negative_running_variance_is_invalid(rule):
    model = batch_norm_model()
    clients = federation(model)
    clients[99] = {**perturbed(model, 99), "1.running_var": torch.full((4,), -1.0)}
    assert make(rule, model).aggregate(model, clients).verdicts[99].decision == "invalid"


@pytest.mark.parametrize("rule", RULES)
def test_another_float_precision_is_converted(rule):
    model = odd_mlp()
    clients = federation(model)
    doubled = {**clients, 0: {key: value.double() for key, value in clients[0].items()}}
    assert same(
        make(rule, model).aggregate(model, doubled).weights, make(rule, model).aggregate(model, clients).weights
    )


# That every rule raises ValueError for the caller's mistakes is part of tests/contract/test_rules.py.


@pytest.mark.parametrize("clients", [{}, None, []])
def test_no_clients_at_all_is_the_callers_error(clients):
    with pytest.raises(ValueError, match="no clients"):
        make("fedavg").aggregate(odd_mlp(), clients)


@pytest.mark.parametrize("model", [{}, None, {"steps": np.array([3])}, {"w": np.array([np.nan])}, {"w": [1.0]}])
def test_a_global_model_without_valid_parameters_is_the_callers_error(model):
    with pytest.raises(ValueError, match="global model"):
        make("fedavg").aggregate(model, {0: {}})


def test_a_client_id_that_is_not_an_int_or_a_str_is_the_callers_error():
    with pytest.raises(ValueError, match="int or a str"):
        make("fedavg").aggregate(odd_mlp(), {(1, 2): odd_mlp(1)})


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=6, deadline=None)
@given(order=st.permutations(range(7)), data=st.data())
def test_the_order_of_clients_has_no_influence(rule, order, data):
    model = odd_mlp()
    clients = federation(model, 7, 2, seed=data.draw(st.integers(0, 5)))
    first, second = make(rule, model), make(rule, model)
    for _ in range(2):
        plain = first.aggregate(model, clients)
        shuffled = second.aggregate(model, {client: clients[client] for client in order})
        assert same(plain.weights, shuffled.weights)
        assert plain.verdicts == shuffled.verdicts


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=6, deadline=None)
@given(ids=st.lists(st.integers(-(2**63), 2**64) | st.text(max_size=5), min_size=1, max_size=7, unique=True))
def test_ids_may_be_any_ints_and_strings(rule, ids):
    model = odd_mlp()
    result = make(rule, model).aggregate(model, {client: perturbed(model, i) for i, client in enumerate(ids)})
    assert list(result.verdicts) == ids


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_results_are_finite_for_any_finite_input(rule, data):
    numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)

    def model():
        return {
            "a.weight": np.array(data.draw(st.lists(numbers, min_size=4, max_size=4)), np.float32).reshape(2, 2),
            "a.bias": np.array(data.draw(st.lists(numbers, min_size=1, max_size=1)), np.float32),
        }

    result = make(rule, model()).aggregate(model(), {i: model() for i in range(data.draw(st.integers(1, 5)))})
    assert all(np.isfinite(value).all() for value in result.weights.values())
    for verdict in result.verdicts.values():
        assert all(x is None or np.isfinite(x) for x in (verdict.benign_score, verdict.distance, verdict.weight))


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "fedavg"])
def test_every_defence_changes_the_average_of_an_attacked_round(rule):
    model = odd_mlp()
    sybil = {name: value + 100 for name, value in model.items()}
    clients = {**federation(model, 10, 0), 10: sybil, 11: sybil}
    average = make("fedavg").aggregate(model, clients).weights
    defended = make(rule).aggregate(model, clients).weights
    assert (flat(defended) - flat(average)).norm() > 1e-3 * (flat(average) - flat(model)).norm()


class Weights(dict):
    """A model that can be referenced weakly."""


@pytest.fixture
def older_objects_uncollected():
    """Let `gc.collect` look at the objects of this test alone, which takes no time."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("older_objects_uncollected")
@pytest.mark.parametrize("rule", RULES)
def test_no_model_of_a_round_is_referenced_after_it(rule):
    model = Weights(batch_norm_model())
    clients = {client: Weights(weights) for client, weights in federation(model).items()}
    made = make(rule, batch_norm_model())
    result = made.aggregate(model, clients)
    models = [model, *clients.values()]
    references = [weakref.ref(item) for one in models for item in (one, *one.values())]
    del model, clients, models, result
    gc.collect()
    assert not [reference for reference in references if reference() is not None]
    assert made.name


def test_an_aggregator_is_found_by_its_address():
    assert aggregators.create("g2uardfl.aggregators.fedavg:FedAvg").name == "fedavg"
    with pytest.raises(ConfigError, match="choose from fedavg"):
        aggregators.create("nothing")
    with pytest.raises(ConfigError, match="cannot import"):
        aggregators.create("no_such_module:Thing")
    with pytest.raises(ConfigError, match="has no Thing"):
        aggregators.create("g2uardfl.aggregators.fedavg:Thing")
