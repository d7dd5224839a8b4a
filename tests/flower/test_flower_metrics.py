"""The metrics that clients report, in training and in evaluation."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")

from flwr.app import Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from g2uardfl.aggregators.base import Event
from g2uardfl.aggregators.fedavg import FedAvg as Mean
from g2uardfl.flower import AggregatorStrategy, G2uardFLStrategy, array_record
from helpers.flower import client_weights, log_lines, sending, sends, train_round
from helpers.models import odd_mlp

MODEL = odd_mlp()
CLIENTS = client_weights(MODEL)


def test_metrics_are_averaged_over_accepted_clients_only():
    strategy = G2uardFLStrategy()
    nodes = {c: sends(w, loss=float(i), **{"num-examples": i + 1}) for i, (c, w) in enumerate(CLIENTS.items())}
    _, metrics = train_round(strategy, array_record(MODEL), nodes)
    accepted = [i for i, c in enumerate(CLIENTS) if strategy.verdicts[c].decision == "accepted"]
    assert 0 < len(accepted) < len(CLIENTS)
    total = sum(i + 1 for i in accepted)
    assert metrics["loss"] == pytest.approx(sum(i * (i + 1) for i in accepted) / total)
    assert metrics["g2uardfl-accepted"] == len(accepted)
    assert "num-examples" not in metrics


@pytest.mark.parametrize(
    "odd", [{"other": 1.0}, {"loss": [1.0, 2.0]}, {"num-examples": 0, "loss": 5.0}, {"loss": 0.5, "more": 1}]
)
def test_metrics_of_another_form_do_not_change_the_average(odd):
    nodes = {c: sends(w, loss=0.25) for c, w in CLIENTS.items()}
    nodes[next(iter(nodes))] = sends(next(iter(CLIENTS.values())), **odd)
    _, metrics = train_round(AggregatorStrategy("fedavg"), array_record(MODEL), nodes)
    assert metrics["loss"] == pytest.approx(0.25)
    assert metrics["g2uardfl-accepted"] == len(CLIENTS)


def test_without_examples_there_is_no_average_and_no_error():
    nodes = {c: sends(w, loss=1.0, **{"num-examples": 0}) for c, w in CLIENTS.items()}
    with log_lines() as lines:
        arrays, metrics = train_round(G2uardFLStrategy(), array_record(MODEL), nodes)
    assert arrays is not None
    assert "loss" not in metrics
    assert len(lines) == 1, "the line of the round"


def test_an_aggregation_function_of_the_operator_receives_whole_contents_and_may_fail():
    received = []

    def broken(records, key):
        received.extend(records)
        raise RuntimeError("no")

    with log_lines() as lines:
        strategy = AggregatorStrategy("fedavg", train_metrics_aggr_fn=broken)
        arrays, metrics = train_round(strategy, array_record(MODEL), sending(CLIENTS))
    assert arrays is not None
    assert metrics["g2uardfl-accepted"] == len(received) == len(CLIENTS)
    assert all(record.array_records for record in received)
    assert any("could not be aggregated (RuntimeError: 'no')" in line for line in lines)


def test_an_aggregation_function_of_the_operator_receives_capped_counts_and_finite_metrics():
    received = []

    def keep(records, key):
        received.extend(next(iter(record.metric_records.values())) for record in records)
        return MetricRecord({"mine": 1})

    nodes = {c: sends(w, loss=0.5) for c, w in CLIENTS.items()}
    attacker, diverged = list(CLIENTS)[:2]
    nodes[attacker] = sends(CLIENTS[attacker], loss=0.5, **{"num-examples": 10**14})
    nodes[diverged] = sends(CLIENTS[diverged], loss=float("nan"))
    strategy = AggregatorStrategy("fedavg", train_metrics_aggr_fn=keep)
    _, metrics = train_round(strategy, array_record(MODEL), nodes)
    assert [record["num-examples"] for record in received] == [80.0, *[10] * (len(CLIENTS) - 2)]
    assert all(record["loss"] == 0.5 for record in received)
    assert (metrics["mine"], metrics["g2uardfl-metrics-left-out"]) == (1, 1)


def evaluated(*reports):
    """The average of what clients report in an evaluation round."""
    asked = Message(RecordDict(), 5, "evaluate")
    replies = [Message(RecordDict({"m": MetricRecord(given)}), reply_to=asked) for given in reports]
    return AggregatorStrategy("fedavg").aggregate_evaluate(1, replies)


def trained(*reports):
    """The average of what clients report in a training round."""
    nodes = {index: sends(MODEL, **given) for index, given in enumerate(reports, start=1)}
    return train_round(AggregatorStrategy("fedavg"), array_record(MODEL), nodes)[1]


@pytest.mark.parametrize("average", [trained, evaluated])
def test_one_false_report_in_ten_does_not_move_the_average(average):
    honest = [{"accuracy": 0.9, "num-examples": 100}] * 9
    metrics = average(*honest, {"accuracy": 0.0, "num-examples": 9 * 10**14})
    assert metrics["accuracy"] == pytest.approx(0.9)


@given(st.lists(st.floats(-1e308, 1e308), min_size=1, max_size=4), st.integers(0, 10**15 - 1))
def test_a_minority_of_false_reports_cannot_move_the_average_far_from_the_honest_ones(lies, count):
    honest = [{"loss": 0.4 + 0.02 * i, "num-examples": 50 + 10 * i} for i in range(len(lies) + 2)]
    metrics = evaluated(*honest, *({"loss": lie, "num-examples": count} for lie in lies))
    spread = honest[-1]["loss"] - honest[0]["loss"]
    assert honest[0]["loss"] - 2 * spread <= metrics["loss"] <= honest[-1]["loss"] + 2 * spread


@pytest.mark.parametrize("average", [trained, evaluated])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), [0.5, float("nan")]])
def test_metrics_that_are_not_finite_are_left_out_and_counted(average, value):
    usual = [0.5, 0.5] if isinstance(value, list) else 0.5
    with log_lines() as lines:
        metrics = (
            average({"loss": usual}, {"loss": usual}, {"loss": value})
            if average is trained
            else average(*({"loss": loss, "num-examples": 10} for loss in (usual, usual, value)))
        )
    assert metrics["loss"] == usual
    assert metrics["g2uardfl-metrics-left-out"] == 1
    assert "WARNING left out the metrics of 1 of 3 clients: not finite" in lines


def test_an_integer_beyond_float64_is_left_out():
    metrics = evaluated(*({"steps": steps, "num-examples": 10} for steps in (5, 5, 10**400)))
    assert metrics["steps"] == 5


@given(st.lists(st.tuples(st.floats(0.4, 0.6), st.integers(80, 120)), min_size=1, max_size=2))
def test_without_a_majority_the_average_is_the_weighted_mean(reports):
    metrics = evaluated(*({"loss": loss, "num-examples": count} for loss, count in reports))
    total = sum(count for _, count in reports)
    assert metrics["loss"] == pytest.approx(sum(loss * count for loss, count in reports) / total)


def test_honest_clients_without_outliers_get_the_weighted_mean_of_flower():
    reports = [{"loss": loss, "num-examples": n} for loss, n in ((0.3, 10), (0.4, 20), (0.5, 15), (0.6, 40), (0.7, 12))]
    flowers = FedAvg().aggregate_evaluate(
        1, [Message(RecordDict({"m": MetricRecord(r)}), reply_to=Message(RecordDict(), 5, "evaluate")) for r in reports]
    )
    assert evaluated(*reports)["loss"] == pytest.approx(flowers["loss"])


@pytest.mark.parametrize("kind", ["rolled_back", "eliminated", "model_kept"])
def test_each_event_of_the_rule_is_a_metric(kind):
    class Eventful(Mean):
        name = "eventful"

        def combine(self, round_):
            return replace(super().combine(round_), events=(Event(kind, "Done."),))

    _, metrics = train_round(AggregatorStrategy(Eventful()), array_record(MODEL), sending(CLIENTS))
    names = ["rolled-back", "eliminated", "model-kept"]
    assert {name: metrics[f"g2uardfl-{name}"] for name in names} == {n: int(n == kind.replace("_", "-")) for n in names}


def test_evaluation_ignores_unusable_replies():
    def reply(given):
        return Message(given, reply_to=Message(RecordDict(), 5, "evaluate"))

    good = [reply(RecordDict({"m": MetricRecord({"num-examples": n, "acc": a})})) for n, a in ((1, 0.0), (3, 1.0))]
    bad = [
        reply(Error(1, "no")),
        reply(RecordDict()),
        reply(RecordDict({"m": MetricRecord({"acc": 1.0})})),
        reply(RecordDict({"m": MetricRecord({"num-examples": float("inf"), "acc": 1.0})})),
        reply(RecordDict({"m": MetricRecord({"num-examples": 5, "acc": [1.0]})})),
        Mock(spec=Message, has_error=Mock(side_effect=RuntimeError("unreadable"))),
    ]
    strategy = G2uardFLStrategy()
    with log_lines() as lines:
        metrics = strategy.aggregate_evaluate(1, [*bad, *good])
    assert metrics == MetricRecord({"acc": 0.75, "g2uardfl-metrics-left-out": 0})
    assert "ignored 5 of 8" in lines[0]
    assert strategy.aggregate_evaluate(1, []) is None
    assert strategy.aggregate_evaluate(1, bad[:1]) is None
