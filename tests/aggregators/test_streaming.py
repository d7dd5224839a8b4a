"""Rounds whose clients arrive one by one give the same results as `aggregate`, from files."""

from __future__ import annotations

import pytest
import torch

from helpers.hostile import UNUSABLE
from helpers.models import batch_norm_model, federation, numpy_model, odd_mlp, perturbed, same
from helpers.rules import RULES, make


def streamed(rule, model, clients, examples=None, folder=None):
    round_ = rule.begin_round(model, folder=folder)
    for client, weights in clients.items():
        round_.add(client, weights, None if examples is None else examples[client])
    assert len(round_) == len(clients)
    return round_


@pytest.mark.parametrize("rule", RULES)
def test_a_streamed_round_equals_one_call_of_aggregate(rule):
    model = batch_norm_model()
    together, one_by_one = make(rule, model), make(rule, model)
    for number in range(3):
        clients = federation(model, seed=number)
        examples = {client: 10 + client for client in clients}
        expected = together.aggregate(model, clients, examples)
        found = streamed(one_by_one, model, clients, examples).finish()
        assert same(found.weights, expected.weights)
        assert found.verdicts == expected.verdicts
        model = expected.weights


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_arrays_of_any_shape_and_dtype_are_stored_as_they_are(dtype):
    model = {
        "scale": torch.tensor(2.0, dtype=dtype),
        "w": torch.ones(3, 5, dtype=dtype).T,
        "nothing": torch.zeros(0, 4, dtype=dtype),
        "steps": torch.tensor([2**60 + 1]),
        "mask": torch.tensor([True, False, True]),
    }
    clients = {i: {**model, "scale": model["scale"] * i, "w": model["w"] * i} for i in (1, 2, 3)}
    round_ = make("fedavg").begin_round(model)
    for client, weights in clients.items():
        round_.add(client, weights)
    found, expected = round_.finish(), make("fedavg").aggregate(model, clients)
    assert found.weights.keys() == expected.weights.keys()
    assert all(torch.equal(found.weights[name], value) for name, value in expected.weights.items())


@pytest.mark.parametrize("model", [odd_mlp, numpy_model])
@pytest.mark.parametrize("kind", UNUSABLE)
def test_an_unusable_message_is_invalid_with_the_same_reason(kind, model):
    weights = model()
    clients = {**federation(weights, 5, 0), "broken": UNUSABLE[kind](perturbed(weights, 99), weights)}
    found = streamed(make("fedavg"), weights, clients).finish()
    expected = make("fedavg").aggregate(weights, clients)
    assert found.verdicts == expected.verdicts
    assert found.verdicts["broken"].decision == "invalid"
    assert same(found.weights, expected.weights)


def test_no_file_is_left_in_the_folder_even_before_the_round_is_finished(tmp_path):
    model = odd_mlp()
    round_ = streamed(make("fedavg"), model, federation(model), folder=str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert round_.finish().decided


def test_changes_of_a_message_after_it_was_added_do_not_count():
    model = numpy_model()
    clients = federation(model, 3, 0)
    expected = make("fedavg").aggregate(model, clients)
    round_ = streamed(make("fedavg"), model, clients)
    for weights in clients.values():
        weights["W1"][:] = 7
    assert same(round_.finish().weights, expected.weights)


def test_a_second_message_of_a_client_is_an_error():
    model = odd_mlp()
    round_ = streamed(make("fedavg"), model, {"a": model})
    with pytest.raises(ValueError, match="'a' has already sent"):
        round_.add("a", model)


def test_a_missing_folder_is_an_error_of_the_caller(tmp_path):
    model = odd_mlp()
    with pytest.raises(FileNotFoundError, match="missing"):
        make("fedavg").begin_round(model, folder=str(tmp_path / "missing")).add("a", model)


def test_options_of_aggregate_are_passed_to_finish():
    model = odd_mlp()
    round_ = streamed(make("fedavg"), model, federation(model, 3, 0))
    assert not round_.finish(min_updates=4).decided
