"""The path of a round in `Aggregator.aggregate`: read, decide, build the model, report."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from g2uardfl.aggregators import Aggregator, Event, Outcome, Verdict, create
from g2uardfl.aggregators.base import FlatModel, model_kept
from g2uardfl.core.layout import ModelLayout, as_tensor
from helpers.models import batch_norm_model, federation, flat, numpy_model, odd_mlp, perturbed, same
from helpers.rounds import decisions


class Averaging(Aggregator):
    """The plain mean; it records its rounds, and its outcomes are changed by `options`."""

    name = "averaging"
    summary = "the plain mean"

    def __init__(self, **options):
        super().__init__()
        self.options, self.rounds = options, []

    def combine(self, round_):
        self.rounds.append(round_)
        shares = np.full(len(round_.clients), 1 / len(round_.clients))
        verdicts = {client: Verdict("accepted", "Accepted.") for client in round_.clients}
        return replace(Outcome(round_.weighted_sum(shares), shares, verdicts), **self.options)


class Restoring(Averaging):
    """Restores the model of its first round in every later round."""

    def combine(self, round_):
        outcome = super().combine(round_)
        if len(self.rounds) == 1:
            buffers = {entry.name: as_tensor(round_.global_weights[entry.name]) for entry in round_.layout.buffers}
            self.first = FlatModel(
                round_.global_vector.clone(), {name: value.clone() for name, value in buffers.items()}
            )
            return outcome
        return replace(outcome, restored=self.first)


def with_nan(model):
    first = next(iter(model))
    return {**model, first: torch.full_like(model[first], float("nan"))}


# Too few updates.


@pytest.mark.parametrize("make", [odd_mlp, batch_norm_model, numpy_model])
def test_with_too_few_updates_the_model_is_kept_bit_for_bit_and_the_rule_is_not_called(make):
    model, rule = make(), Averaging()
    result = rule.aggregate(model, federation(model, 3, 0), min_updates=4)
    assert same(result.weights, model)
    assert not result.decided
    assert not rule.rounds
    assert decisions(result) == "hhh"
    (event,) = result.report.events
    assert event == model_kept("3 of 4 required usable updates arrived")
    assert result.note == event.message
    assert all(event.message in verdict.reason for verdict in result.verdicts.values())


@pytest.mark.parametrize("name", ["weak_dp", "flame", "g2uardfl"])
def test_a_round_with_too_few_updates_leaves_the_memory_of_a_rule_unchanged(name):
    model, rule = odd_mlp(), create(name)
    rule.aggregate(model, federation(model))
    before = rule.state()
    rule.aggregate(model, federation(model, 3, 0, seed=1), min_updates=4)
    after = rule.state()
    assert after.values == before.values
    assert after.arrays.keys() == before.arrays.keys()
    assert all(np.array_equal(array, before.arrays[name]) for name, array in after.arrays.items())


def test_invalid_messages_do_not_count_towards_the_minimum():
    model, rule = odd_mlp(), Averaging()
    clients = {**federation(model, 3, 0), "broken": with_nan(model)}
    kept = rule.aggregate(model, clients, min_updates=4)
    assert (decisions(kept), kept.decided) == ("hhhi", False)
    decided = rule.aggregate(model, clients, min_updates=3)
    assert (decisions(decided), decided.decided) == ("aaai", True)


@pytest.mark.parametrize("min_updates", [0, 1])
def test_a_round_without_usable_updates_is_never_decided(min_updates):
    rule = Averaging()
    result = rule.aggregate(odd_mlp(), {"broken": {}}, min_updates=min_updates)
    assert (decisions(result), result.decided, rule.rounds) == ("i", False, [])


# Observers.


@pytest.mark.parametrize("broken", [False, True])
def test_an_observer_is_called_once_with_the_usable_round_and_its_outcome(broken):
    model, seen = odd_mlp(), []
    clients = {**federation(model, 4, 0), **({"broken": with_nan(model)} if broken else {})}
    result = Averaging().aggregate(model, clients, observers=[lambda *given: seen.append(given)])
    ((round_, outcome),) = seen
    assert round_.clients == (0, 1, 2, 3)
    assert dict(outcome.verdicts) == {client: result.verdicts[client] for client in range(4)}
    assert decisions(result) == "aaaa" + "i" * broken
    mean = sum(flat(clients[client]) for client in range(4)) / 4
    torch.testing.assert_close(flat(result.weights), mean, rtol=0, atol=1e-6)


def test_observers_are_called_in_order_after_the_rule_and_not_if_it_was_not_called():
    model, calls = odd_mlp(), []
    rule = Averaging()
    observers = [lambda round_, outcome: calls.append(("first", len(rule.rounds))), lambda *_: calls.append("second")]
    rule.aggregate(model, federation(model), observers=observers)
    assert calls == [("first", 1), "second"]
    rule.aggregate(model, federation(model), observers=observers, min_updates=99)
    assert len(calls) == 2


def test_observers_of_one_round_are_not_called_in_the_next():
    model, calls = odd_mlp(), []
    rule = Averaging()
    rule.aggregate(model, federation(model), observers=[lambda *given: calls.append(given)])
    rule.aggregate(model, federation(model))
    assert len(calls) == 1


# What a rule receives.


def test_the_number_of_the_round_reaches_the_rule():
    model, rule = odd_mlp(), Averaging()
    rule.aggregate(model, federation(model), round_number=17)
    rule.aggregate(model, federation(model))
    assert [round_.number for round_ in rule.rounds] == [17, None]


def test_a_rule_receives_the_whole_models_of_the_usable_clients():
    model, rule = batch_norm_model(), Averaging()
    clients = {**federation(model, 3, 0), "broken": {}}
    rule.aggregate(model, clients)
    (round_,) = rule.rounds
    assert same(round_.global_weights, model)
    assert list(round_.client_weights) == [0, 1, 2]
    assert all(same(round_.client_weights[client], clients[client]) for client in range(3))


# Restored models.


def as_dtype(model, dtype):
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in model.items()}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_restored_model_is_exactly_the_earlier_one_in_parameters_and_buffers(dtype):
    first = as_dtype(batch_norm_model(), dtype)
    first["1.num_batches_tracked"] = torch.tensor(2**60 + 1)
    rule, model = Restoring(), first
    for number in range(3):
        clients = {i: as_dtype(perturbed(as_dtype(model, torch.float32), 10 * number + i), dtype) for i in range(3)}
        moved = rule.aggregate(model, clients).weights
        assert same(as_dtype(moved, torch.float64), as_dtype(first, torch.float64)) == (number > 0)
        assert all(moved[name].dtype == value.dtype for name, value in first.items())
        model = {**moved, "1.running_mean": moved["1.running_mean"] + 3}


def test_a_restored_model_of_numpy_arrays_is_exactly_the_earlier_one():
    first = {**numpy_model(), "norm.running_var": np.full(3, 0.1), "steps": np.array(2**60 + 1)}
    rule = Restoring()
    model = rule.aggregate(first, {i: perturbed(first, i) for i in range(3)}).weights
    assert not same(model, first)
    restored = rule.aggregate(model, {i: perturbed(model, i) for i in range(3)}).weights
    assert same(restored, first)
    assert all(
        type(restored[name]) is type(value) and restored[name].dtype == value.dtype for name, value in first.items()
    )


# The report.


def test_the_report_times_every_part_of_a_round():
    model = odd_mlp()
    began = time.perf_counter()
    report = Averaging().aggregate(model, federation(model)).report
    elapsed = time.perf_counter() - began
    assert list(report.seconds) == ["reading", "decision", "building the model"]
    assert all(seconds >= 0 for seconds in report.seconds.values())
    assert sum(report.seconds.values()) <= elapsed


def test_a_rule_that_times_its_own_stages_reports_these():
    model = odd_mlp()
    report = Averaging(seconds={"clustering": 0.25, "filtering": 0.5}).aggregate(model, federation(model)).report
    assert list(report.seconds) == ["reading", "clustering", "filtering", "building the model"]
    assert (report.seconds["clustering"], report.seconds["filtering"]) == (0.25, 0.5)


def test_the_note_joins_the_messages_of_events_and_the_remark_of_the_rule():
    model = odd_mlp()
    events = (Event("rolled_back", "Rolled back.", {"round": 3}), model_kept("Nothing helped"))
    report = Averaging(events=events, note="A remark.").aggregate(model, federation(model)).report
    assert report.note == "Rolled back. Nothing helped: the global model was kept. A remark."
    assert report.events == events
    found = json.loads(json.dumps(report.as_dict()))
    assert found["note"] == report.note
    assert found["events"][0] == {"kind": "rolled_back", "message": "Rolled back.", "round": 3}
    assert [event["kind"] for event in found["events"]] == ["rolled_back", "model_kept"]
    assert found["stage_seconds"] == report.seconds


def test_rollbacks_and_kept_models_are_logged_as_warnings_and_other_events_as_information(caplog):
    model, rule = odd_mlp(), Averaging(events=(Event("rolled_back", "Rolled back."), Event("eliminated", "Removed.")))
    with caplog.at_level(logging.INFO, logger="g2uardfl"):
        rule.aggregate(model, federation(model))
        rule.aggregate(model, federation(model, 2, 0), min_updates=3)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "averaging: Rolled back."),
        ("INFO", "averaging: Removed."),
        ("WARNING", "averaging: 2 of 3 required usable updates arrived: the global model was kept."),
    ]


def test_the_verdicts_are_in_the_order_of_the_caller():
    model = odd_mlp()
    clients = {client: perturbed(model, i) for i, client in enumerate(["z", 3, "a", 1])}
    assert list(Averaging().aggregate(model, clients).verdicts) == ["z", 3, "a", 1]


@pytest.mark.parametrize("name", ["fedavg", "multi_krum", "median", "g2uardfl"])
def test_observers_see_the_step_that_was_taken_in_memory_of_its_own(name):
    model, seen = odd_mlp(), []
    result = create(name).aggregate(model, federation(model), observers=[lambda _, outcome: seen.append(outcome.step)])
    layout = ModelLayout.of(model)
    np.testing.assert_allclose(seen[0], layout.flatten(result.weights) - layout.flatten(model), atol=1e-6)
    before = seen[0].clone()
    for value in result.weights.values():
        value.fill_(7.0)
    assert torch.equal(seen[0], before)


def test_a_round_number_of_numpys_can_be_saved(tmp_path):
    guard, model = create("g2uardfl"), odd_mlp()
    guard.aggregate(model, federation(model), round_number=np.int64(3))
    guard.save(tmp_path / "guard.state")


def test_a_round_that_cannot_be_read_does_not_bind_a_guard_to_its_model():
    guard, model = create("g2uardfl"), odd_mlp()
    with pytest.raises(ValueError, match="no clients"):
        guard.aggregate(batch_norm_model(), {})
    assert guard.aggregate(model, federation(model)).decided
