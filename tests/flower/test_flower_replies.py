"""Replies of hostile, failing and silent clients: each excludes its sender from the round and changes nothing else."""

from __future__ import annotations

import re
import tracemalloc
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

import g2uardfl
from g2uardfl.core.errors import StateError
from g2uardfl.flower import AggregatorStrategy, G2uardFLStrategy, array_record
from helpers.flower import (
    LocalGrid,
    answers,
    client_weights,
    content,
    log_lines,
    named,
    raw,
    reported_name,
    same_bits,
    sending,
    sends,
    silent,
    train_round,
)
from helpers.models import odd_mlp

MODEL = odd_mlp()
CLIENTS = client_weights(MODEL)
NEWCOMER = 77


def hostile_nodes(model):
    """Case -> a node that replies badly, and the reason in its verdict."""
    record = array_record(model)
    first, *others = model
    nan = {name: torch.full_like(value, torch.nan) for name, value in model.items()}
    no_metrics = RecordDict({"arrays": record})
    two_arrays = RecordDict({"a": record, "b": record, "metrics": MetricRecord({"num-examples": 1})})
    two_metrics = RecordDict({"a": record, "m": MetricRecord({"num-examples": 1}), "n": MetricRecord()})
    failure = Error(3, "Traceback\n  secrets\n\x1b[31mValueError: no\x00 data")
    return {
        "nan": (sends(nan), "NaN"),
        "infinity": (sends({**model, first: model[first] + torch.inf}), "NaN, infinity"),
        "huge numbers": (sends({name: value + 1e30 for name, value in model.items()}), "too large|beyond all reason"),
        "other names": (sends({f"x{name}": value for name, value in model.items()}), "sent no"),
        "an additional name": (
            sends({**model, "backdoor": torch.ones(3)}),
            "'backdoor', which the model does not have",
        ),
        "a missing name": (sends({name: model[name] for name in others}), f"sent no '{first}'"),
        "a very long name": (sends({**model, "y" * 10**6: torch.ones(1)}), "which the model does not|y\\.\\.\\."),
        "other shapes": (sends({name: value[None] for name, value in model.items()}), "shape"),
        "huge arrays": (sends({name: np.zeros((4000, 500), np.float32) for name in model}), "shape"),
        "integers": (sends({name: value.long() for name, value in model.items()}), "int64 instead of float32"),
        "garbage": (
            sends(ArrayRecord({name: raw(b"garbage") for name in model})),
            "'0.weight' that is not a NumPy file",
        ),
        "a huge claim": (
            sends(ArrayRecord({name: raw(array.data[:-4], shape=(10**12,)) for name, array in record.items()})),
            "'0.weight' that is damaged: its size contradicts its header",
        ),
        "no arrays": (sends({}), "sent no"),
        "no record": (answers(RecordDict()), "0 ArrayRecords"),
        "two models": (answers(two_arrays), "2 ArrayRecords"),
        "no metrics": (answers(no_metrics), "0 MetricRecords"),
        "two metrics": (answers(two_metrics), "2 MetricRecords"),
        "no count": (answers(RecordDict({"a": record, "m": MetricRecord({"loss": 1.0})})), "sent no 'num-examples'"),
        "negative count": (sends(model, **{"num-examples": -1}), "impossible 'num-examples': -1"),
        "infinite count": (sends(model, **{"num-examples": float("inf")}), "impossible 'num-examples': inf"),
        "count that is no number": (sends(model, **{"num-examples": float("nan")}), "impossible 'num-examples': nan"),
        "several counts": (sends(model, **{"num-examples": [1, 2]}), r"impossible 'num-examples': \[1, 2\]"),
        "failure": (lambda message: Message(failure, reply_to=message), "failed: '.*no.x00 data'"),
        "silence": (silent, "did not reply in time"),
        "two replies": (lambda message: [Message(content(model), reply_to=message)] * 2, "replied 2 times"),
    }


HOSTILE = hostile_nodes(MODEL)


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("rule", ["g2uardfl", "fedavg"])
def test_a_hostile_client_is_invalid_and_nothing_else_changes(rule, case):
    node, reason = HOSTILE[case]
    seed = {"seed": 0} if rule == "g2uardfl" else {}
    strategy = AggregatorStrategy(rule, **seed)
    arrays, metrics = train_round(strategy, array_record(MODEL), {NEWCOMER: node, **sending(CLIENTS)})
    without = g2uardfl.aggregators.create(rule, **seed).aggregate(MODEL, CLIENTS, dict.fromkeys(CLIENTS, 10))
    assert same_bits(arrays, without.weights)
    verdict = strategy.verdicts.pop(NEWCOMER)
    assert verdict.decision == "invalid"
    assert re.search(reason, verdict.reason), verdict.reason
    assert len(verdict.reason) < 600
    assert strategy.verdicts == without.verdicts
    assert metrics["g2uardfl-invalid"] == 1


def test_all_hostile_clients_together_leave_the_round_to_the_others():
    hostile = {index + 1: node for index, (node, _) in enumerate(HOSTILE.values())}
    strategy = G2uardFLStrategy(seed=0, min_replies=3)
    with log_lines() as lines:
        arrays, _ = train_round(strategy, array_record(MODEL), {**hostile, **sending(CLIENTS)})
    assert same_bits(arrays, g2uardfl.G2uardFL(seed=0).aggregate(MODEL, CLIENTS).weights)
    assert {strategy.verdicts[node].decision for node in hostile} == {"invalid"}
    (line,) = lines
    assert f"{len(hostile)} invalid" in line
    assert line.isprintable()
    assert len(line) < 2000


@pytest.mark.parametrize("dtype", [np.uint16, np.uint8, ">f4", np.float64, bool])
def test_a_large_array_in_place_of_a_small_one_is_rejected_before_it_is_copied(dtype):
    large = array_record(MODEL)
    large["0.bias"] = Array(np.ones(2_000_000, dtype))
    reply = Message(content(large), reply_to=Message(RecordDict(), NEWCOMER, "train"))
    strategy = AggregatorStrategy("fedavg")
    strategy.current_arrays = array_record(MODEL)
    tracemalloc.start()
    strategy.aggregate_train(1, [reply])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "of shape (2000000,) instead of" in strategy.verdicts[NEWCOMER].reason
    assert peak < 1_000_000


def test_a_reply_to_the_message_of_another_round_is_late():
    strategy = G2uardFLStrategy()
    grid = LocalGrid(sending(CLIENTS))
    late = next(iter(CLIENTS))
    old = grid.send_and_receive(strategy.configure_train(1, array_record(MODEL), ConfigRecord(), grid))
    strategy.aggregate_train(1, old)
    new = grid.send_and_receive(strategy.configure_train(2, array_record(MODEL), ConfigRecord(), grid))
    mixed = [reply for reply in new if reply.metadata.src_node_id != late]
    mixed += [reply for reply in old if reply.metadata.src_node_id == late]
    strategy.aggregate_train(2, mixed)
    invalid = {client: v.reason for client, v in strategy.verdicts.items() if v.decision == "invalid"}
    assert invalid == {late: "It replied to the message of another round."}


def test_late_replies_are_ignored_if_others_are_on_time():
    grid = LocalGrid(sending(CLIENTS))
    strategy = G2uardFLStrategy()
    old = grid.send_and_receive(strategy.configure_train(1, array_record(MODEL), ConfigRecord(), grid))
    new = grid.send_and_receive(strategy.configure_train(2, array_record(MODEL), ConfigRecord(), grid))
    strategy.aggregate_train(2, [*old, *new])
    assert "invalid" not in {verdict.decision for verdict in strategy.verdicts.values()}


def test_a_node_that_was_not_asked_is_invalid():
    stranger = Message(content(MODEL), reply_to=Message(RecordDict(), NEWCOMER, "train"))
    strategy = G2uardFLStrategy(seed=0)
    grid = LocalGrid(sending(CLIENTS))
    replies = grid.send_and_receive(strategy.configure_train(1, array_record(MODEL), ConfigRecord(), grid))
    arrays, _ = strategy.aggregate_train(1, [*replies, stranger])
    assert strategy.verdicts[NEWCOMER].reason == "It replied without being asked."
    assert same_bits(arrays, g2uardfl.G2uardFL(seed=0).aggregate(MODEL, CLIENTS).weights)


def test_a_reply_in_the_name_of_another_node_counts_for_neither():
    victim, attacker = list(CLIENTS)[:2]

    def lies(message):
        reply = Message(content(CLIENTS[attacker]), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = victim
        return reply

    strategy = G2uardFLStrategy()
    train_round(strategy, array_record(MODEL), {**sending(CLIENTS), attacker: lies})
    assert strategy.verdicts[attacker].reason == "It replied in the name of another node."
    assert strategy.verdicts[victim].decision != "invalid"


def test_an_error_that_the_superlink_reports_for_a_lost_node_belongs_to_that_node():
    lost = next(iter(CLIENTS))

    def unavailable(message):
        reply = Message(Error(5, "Error: Node Unavailable"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = 1
        return reply

    strategy = G2uardFLStrategy()
    train_round(strategy, array_record(MODEL), {**sending(CLIENTS), lost: unavailable})
    assert strategy.verdicts[lost].reason == "It failed: 'Error: Node Unavailable'."
    assert len(strategy.verdicts) == len(CLIENTS)


def test_replies_as_the_tests_of_flower_mock_them_are_usable():
    strategy = G2uardFLStrategy(seed=0)
    strategy.current_arrays = array_record(MODEL)
    replies = []
    for client, weights in CLIENTS.items():
        reply = Mock(spec=Message)
        reply.content, reply.metadata = content(weights), Mock(src_node_id=client)
        reply.has_error = lambda: False
        replies.append(reply)
    arrays, _ = strategy.aggregate_train(server_round=1, replies=replies)
    assert same_bits(arrays, g2uardfl.G2uardFL(seed=0).aggregate(MODEL, CLIENTS).weights)


def test_aggregating_before_a_model_was_sent_is_an_error_that_says_what_to_do():
    with pytest.raises(StateError, match="call configure_train before"):
        G2uardFLStrategy().aggregate_train(1, [])


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(10)))
def test_the_order_of_the_replies_does_not_matter(order):
    clients = client_weights(MODEL, clients=8)
    nodes = {**sending(clients), 5: HOSTILE["two replies"][0], 6: HOSTILE["garbage"][0]}
    results = []
    for arrangement in (range(10), order):
        strategy = AggregatorStrategy("fedavg")
        grid = LocalGrid(nodes)
        replies = grid.send_and_receive(strategy.configure_train(1, array_record(MODEL), ConfigRecord(), grid))
        by_node = [[r for r in replies if r.metadata.src_node_id == node] for node in nodes]
        arrays, _ = strategy.aggregate_train(1, [reply for index in arrangement for reply in by_node[index]])
        results.append((strategy.verdicts, arrays))
    assert results[0] == results[1]


def test_an_identity_chosen_by_the_operator_survives_new_node_ids():
    strategy, guard = G2uardFLStrategy(identity=reported_name, seed=0), g2uardfl.G2uardFL(seed=0)
    arrays, weights = array_record(MODEL), MODEL
    for server_round in (1, 2):
        by_name = {f"client {i}": sent for i, sent in enumerate(CLIENTS.values())}
        nodes = {server_round * 1000 + i: named(sent, name) for i, (name, sent) in enumerate(by_name.items())}
        arrays, _ = train_round(strategy, arrays, nodes, server_round)
        result = guard.aggregate(weights, by_name)
        weights = result.weights
        assert strategy.verdicts == result.verdicts
    assert same_bits(arrays, weights)


def test_two_nodes_that_claim_one_identity_are_both_excluded():
    nodes = {i: named(sent, f"client {i}") for i, sent in enumerate(CLIENTS.values(), 1)}
    nodes[50] = named(MODEL, "client 1")
    strategy = G2uardFLStrategy(identity=reported_name)
    train_round(strategy, array_record(MODEL), nodes)
    assert strategy.verdicts["client 1"].reason == "It replied through 2 nodes."
    assert len(strategy.verdicts) == len(CLIENTS)


def test_a_client_that_cannot_be_identified_is_invalid():
    strategy = G2uardFLStrategy(identity=reported_name)
    train_round(strategy, array_record(MODEL), sending(CLIENTS))
    assert all(v.decision == "invalid" and "identified" in v.reason for v in strategy.verdicts.values())


@pytest.mark.parametrize("name", ["x" * 5_000_000, "line\nbreak\x1b[31m\x00"])
def test_an_identity_of_any_length_and_content_excludes_at_most_its_client(tmp_path, name):
    nodes = {i: named(sent, f"client {i}") for i, sent in enumerate(CLIENTS.values(), 1)}
    nodes[1] = named(MODEL, name)
    strategy = G2uardFLStrategy(
        identity=reported_name, state_path=tmp_path / "guard.state", audit_path=tmp_path / "audit.jsonl"
    )
    with log_lines() as lines:
        train_round(strategy, array_record(MODEL), nodes)
    assert all(line.isprintable() and len(line) < 2000 for line in lines)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1_000_000
    known = {client for client, verdict in strategy.verdicts.items() if verdict.decision != "invalid"}
    assert known == {f"client {i}" for i in range(2, 9)} | ({name} if len(name) < 100 else set())


def test_one_failing_node_of_ten_discards_no_round():
    def fails(message):
        return Message(Error(0, "no"), reply_to=message)

    model, strategy = array_record(MODEL), G2uardFLStrategy(min_train_nodes=10)
    for number in range(1, 6):
        nodes = sending(client_weights(MODEL, clients=9, attackers=0, seed=number))
        changed, _ = train_round(strategy, model, {**nodes, NEWCOMER: fails}, number)
        assert changed is not None
    assert strategy.rounds_kept == 0


@pytest.mark.parametrize(("asked", "fewest"), [(1, 1), (2, 1), (3, 2), (10, 5), (11, 6)])
def test_by_default_half_of_the_clients_that_were_asked_must_reply(asked, fewest):
    for usable in (fewest - 1, fewest):
        nodes = {i: sends(MODEL) if i <= usable else silent for i in range(1, asked + 1)}
        strategy = AggregatorStrategy("fedavg", min_train_nodes=1, min_available_nodes=1)
        changed, _ = train_round(strategy, array_record(MODEL), nodes)
        assert (changed is not None) == (usable == fewest)


def test_a_silent_node_is_reported_under_the_name_it_gave_before():
    nodes = {i: named(sent, f"client {i}") for i, sent in enumerate(CLIENTS.values(), 1)}
    strategy = G2uardFLStrategy(identity=reported_name)
    arrays, _ = train_round(strategy, array_record(MODEL), nodes)
    train_round(strategy, arrays, {**nodes, 1: silent}, 2)
    assert strategy.verdicts["client 1"].reason == "It did not reply in time."


def test_the_messages_of_clients_are_not_altered():
    records = {c: array_record(w) for c, w in CLIENTS.items()}
    before = {c: {name: array.data for name, array in record.items()} for c, record in records.items()}
    sent = array_record(MODEL)
    held = {name: array.data for name, array in sent.items()}
    train_round(G2uardFLStrategy(), sent, sending(records))
    assert all(array.data == held[name] for name, array in sent.items())
    assert all(records[c][name].data == data for c, arrays in before.items() for name, data in arrays.items())
