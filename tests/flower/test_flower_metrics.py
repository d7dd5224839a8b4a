"""The metrics that clients report, in training and in evaluation."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")

from flwr.app import Error, Message, MetricRecord, RecordDict

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
    assert any("could not be aggregated" in line for line in lines)


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
    ]
    strategy = G2uardFLStrategy()
    with log_lines() as lines:
        metrics = strategy.aggregate_evaluate(1, [*bad, *good])
    assert metrics == MetricRecord({"acc": 0.75})
    assert "ignored 4 of 7" in lines[0]
    assert strategy.aggregate_evaluate(1, []) is None
    assert strategy.aggregate_evaluate(1, bad[:1]) is None
