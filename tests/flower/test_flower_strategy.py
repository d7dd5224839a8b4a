"""The strategies: what Flower asks of one, what hostile clients do to it, and what an operator sees."""

from __future__ import annotations

import random
import re
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.models import batch_norm_model, numpy_model, odd_mlp

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Strategy

import g2uardfl
from g2uardfl.core.errors import ConfigError, StateError
from g2uardfl.flower import AggregatorStrategy, G2uardFLStrategy, array_record, state_dict
from helpers.flower import LocalGrid, answers, content, decisions, honest, log_lines, perturbed, play, raw, sends

NEWCOMER = 77


def low_precision(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {name: value.to(dtype) for name, value in odd_mlp().items()}


def many_arrays() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(3)
    return {f"block{i}.weight": generator.normal(size=(2, 3)).astype(np.float32) for i in range(150)}


MODELS = {
    "mlp": odd_mlp,
    "batch norm": batch_norm_model,
    "numpy": numpy_model,
    "float16": lambda: low_precision(torch.float16),
    "bfloat16": lambda: low_precision(torch.bfloat16),
    "float64": lambda: low_precision(torch.float64),
    "many arrays": many_arrays,
}


def client_models(model, server_round):
    if any(isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16 for value in model.values()):
        clients = honest({name: value.float() for name, value in model.items()}, seed=server_round)
        return {c: {name: value.bfloat16() for name, value in sent.items()} for c, sent in clients.items()}
    return honest(model, seed=server_round)


def same_bits(record: ArrayRecord, weights) -> bool:
    got = state_dict(record)
    wanted = {name: torch.as_tensor(value) for name, value in weights.items()}
    return got.keys() == wanted.keys() and all(
        got[name].dtype == wanted[name].dtype and torch.equal(got[name], wanted[name]) for name in wanted
    )


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_the_guard_in_flower_is_the_guard_bit_for_bit_over_rounds(make):
    weights = make()
    strategy, guard = G2uardFLStrategy(seed=3), g2uardfl.G2uardFL(seed=3)
    arrays = array_record(weights)
    for server_round in (1, 2, 3):
        clients = client_models(weights, server_round)
        arrays, _ = play(strategy, arrays, {c: sends(sent) for c, sent in clients.items()}, server_round)
        result = guard.aggregate(weights, clients)
        assert same_bits(arrays, result.weights)
        assert strategy.verdicts == result.verdicts
        weights = result.weights


def rules_that_need_no_server():
    from g2uardfl import aggregators

    return [name for name in aggregators.names() if not hasattr(aggregators.find(name), "attach")]


@pytest.mark.parametrize("name", rules_that_need_no_server())
def test_any_rule_by_name_gives_what_it_gives_without_flower(name):
    model = odd_mlp()
    clients = honest(model)
    counts = {client: 5 + index for index, client in enumerate(clients)}
    strategy = AggregatorStrategy(name)
    arrays, _ = play(
        strategy, array_record(model), {c: sends(w, **{"num-examples": counts[c]}) for c, w in clients.items()}
    )
    result = g2uardfl.aggregators.create(name).aggregate(model, clients, counts)
    assert same_bits(arrays, result.weights)
    assert strategy.verdicts == result.verdicts


def test_a_rule_that_looks_at_whole_models_finds_them():
    from g2uardfl.aggregators.context import NeedsServer, ServerContext

    seen = []

    class Looks(NeedsServer):
        name, summary, needs = "looks", "", ""

        def combine(self, round_):
            seen.append((sorted(self._client_weights), sorted(self._global_weights)))
            return g2uardfl.aggregators.create("fedavg").combine(round_)

    rule = Looks()
    rule.attach(ServerContext())
    model, clients = odd_mlp(), honest(odd_mlp())
    play(AggregatorStrategy(rule), array_record(model), {c: sends(w) for c, w in clients.items()})
    assert seen == [(sorted(clients), sorted(model))]


def test_it_is_a_flower_strategy_that_takes_what_fedavg_takes_in_its_order_or_by_name():
    strategy = G2uardFLStrategy(0.5, 0.25, 3, min_available_nodes=9, score_percentile=10.0, profile="paper", seed=4)
    assert isinstance(strategy, Strategy)
    assert (strategy.fraction_train, strategy.fraction_evaluate, strategy.min_train_nodes) == (0.5, 0.25, 3)
    assert (strategy.min_available_nodes, strategy.weighted_by_key) == (9, "num-examples")
    assert (strategy.guard.config.score_percentile, strategy.guard.config.seed) == (10.0, 4)
    assert strategy.min_replies == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: G2uardFLStrategy(fraction_trian=0.5), "did you mean fraction_train"),
        (lambda: G2uardFLStrategy(score_percentil=5), "did you mean score_percentile"),
        (lambda: G2uardFLStrategy(score_percentile=500), "score_percentile=500"),
        (lambda: AggregatorStrategy("no_such_rule"), "unknown defense 'no_such_rule'"),
        (lambda: AggregatorStrategy(g2uardfl.G2uardFL(), score_percentile=5), "unknown setting 'score_percentile'"),
        (lambda: G2uardFLStrategy(min_replies=0), "min_replies=0"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_in_a_sentence(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def huge(model):
    return {name: np.zeros((4000, 500), np.float32) for name in model}


def hostile_nodes(model):
    """Everything a client might do instead of answering properly -> the decision it earns and why."""
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
        "beyond reason": (sends({name: value + 1e30 for name, value in model.items()}), "too large|beyond all reason"),
        "other names": (sends({f"x{name}": value for name, value in model.items()}), "sent no"),
        "a name too many": (sends({**model, "backdoor": torch.ones(3)}), "'backdoor', which the model does not have"),
        "a name missing": (sends({name: model[name] for name in others}), f"sent no '{first}'"),
        "names without end": (sends({**model, "y" * 10**6: torch.ones(1)}), "which the model does not|y\\.\\.\\."),
        "other shapes": (sends({name: value[None] for name, value in model.items()}), "shape"),
        "huge arrays": (sends(huge(model)), "shape"),
        "whole numbers": (sends({name: value.long() for name, value in model.items()}), "int64 instead of float32"),
        "garbage": (
            sends(ArrayRecord({name: raw(b"garbage") for name in model})),
            "^The client sent '0.weight' that is not a NumPy file.$",
        ),
        "a huge claim": (
            sends(ArrayRecord({name: raw(array.data[:-4], shape=(10**12,)) for name, array in record.items()})),
            "^The client sent '0.weight' that is damaged: its size is not what its header says.$",
        ),
        "no arrays": (sends({}), "sent no"),
        "no record": (answers(RecordDict()), "0 ArrayRecords"),
        "two models": (answers(two_arrays), "2 ArrayRecords"),
        "no metrics": (answers(no_metrics), "0 MetricRecords"),
        "two metrics": (answers(two_metrics), "2 MetricRecords"),
        "no count": (answers(RecordDict({"a": record, "m": MetricRecord({"loss": 1.0})})), "did not say"),
        "negative count": (sends(model, **{"num-examples": -1}), "is -1"),
        "endless count": (sends(model, **{"num-examples": float("inf")}), "is inf"),
        "no number": (sends(model, **{"num-examples": float("nan")}), "is nan"),
        "a list of counts": (sends(model, **{"num-examples": [1, 2]}), r"is \[1, 2\]"),
        "failure": (lambda message: Message(failure, reply_to=message), "failed: '.*no.x00 data'"),
        "silence": (lambda message: None, "did not reply in time"),
        "two replies": (lambda message: [Message(content(model), reply_to=message)] * 2, "replied 2 times"),
    }


@pytest.mark.parametrize("case", hostile_nodes(odd_mlp()))
@pytest.mark.parametrize("rule", ["g2uardfl", "fedavg"])
def test_a_hostile_client_loses_its_own_place_and_changes_nothing_else(rule, case):
    model, clients = odd_mlp(), honest(odd_mlp())
    node, why = hostile_nodes(model)[case]
    strategy = AggregatorStrategy(rule)
    arrays, metrics = play(strategy, array_record(model), {NEWCOMER: node, **{c: sends(w) for c, w in clients.items()}})
    without = g2uardfl.aggregators.create(rule).aggregate(model, clients, dict.fromkeys(clients, 10))
    assert same_bits(arrays, without.weights)
    verdict = strategy.verdicts.pop(NEWCOMER)
    assert verdict.decision == "invalid"
    assert re.search(why, verdict.reason), verdict.reason
    assert len(verdict.reason) < 600
    assert strategy.verdicts == without.verdicts
    assert metrics["g2uardfl-invalid"] == 1


def test_all_of_them_at_once_leave_the_round_to_the_honest():
    model, clients = odd_mlp(), honest(odd_mlp())
    bad = {index + 1: node for index, (node, _) in enumerate(hostile_nodes(model).values())}
    strategy = G2uardFLStrategy()
    with log_lines() as lines:
        arrays, _ = play(strategy, array_record(model), {**bad, **{c: sends(w) for c, w in clients.items()}})
    assert same_bits(arrays, g2uardfl.G2uardFL().aggregate(model, clients).weights)
    assert {strategy.verdicts[node].decision for node in bad} == {"invalid"}
    (line,) = lines
    assert f"{len(bad)} invalid" in line
    assert line.isprintable()
    assert len(line) < 2000


def test_a_reply_to_another_rounds_message_is_late():
    model, clients = odd_mlp(), honest(odd_mlp())
    strategy = G2uardFLStrategy()
    grid = LocalGrid({c: sends(w) for c, w in clients.items()})
    late = next(iter(clients))
    old = grid.send_and_receive(strategy.configure_train(1, array_record(model), ConfigRecord(), grid))
    strategy.aggregate_train(1, old)
    fresh = grid.send_and_receive(strategy.configure_train(2, array_record(model), ConfigRecord(), grid))
    mixed = [reply for reply in fresh if reply.metadata.src_node_id != late]
    mixed += [reply for reply in old if reply.metadata.src_node_id == late]
    strategy.aggregate_train(2, mixed)
    assert strategy.verdicts[late].reason == "It replied to another round's message."
    assert sum(decision == "invalid" for decision in decisions(strategy).values()) == 1


def test_a_late_reply_beside_one_in_time_is_passed_over():
    model, clients = odd_mlp(), honest(odd_mlp())
    grid = LocalGrid({c: sends(w) for c, w in clients.items()})
    strategy = G2uardFLStrategy()
    old = grid.send_and_receive(strategy.configure_train(1, array_record(model), ConfigRecord(), grid))
    fresh = grid.send_and_receive(strategy.configure_train(2, array_record(model), ConfigRecord(), grid))
    strategy.aggregate_train(2, [*old, *fresh])
    assert "invalid" not in decisions(strategy).values()


def test_who_was_not_asked_has_no_say():
    model, clients = odd_mlp(), honest(odd_mlp())
    stranger = Message(content(model), reply_to=Message(RecordDict(), NEWCOMER, "train"))
    strategy = G2uardFLStrategy()
    grid = LocalGrid({c: sends(w) for c, w in clients.items()})
    replies = grid.send_and_receive(strategy.configure_train(1, array_record(model), ConfigRecord(), grid))
    arrays, _ = strategy.aggregate_train(1, [*replies, stranger])
    assert strategy.verdicts[NEWCOMER].reason == "It replied without having been asked."
    assert same_bits(arrays, g2uardfl.G2uardFL().aggregate(model, clients).weights)


def test_an_answer_in_another_nodes_name_counts_for_neither():
    model, clients = odd_mlp(), honest(odd_mlp())
    victim, liar = list(clients)[:2]

    def lies(message):
        reply = Message(content(clients[liar]), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = victim
        return reply

    strategy = G2uardFLStrategy()
    play(strategy, array_record(model), {**{c: sends(w) for c, w in clients.items()}, liar: lies})
    assert strategy.verdicts[liar].reason == "It replied in another node's place."
    assert strategy.verdicts[victim].decision != "invalid"


def test_an_error_that_the_superlink_writes_for_a_lost_node_is_that_nodes():
    model, clients = odd_mlp(), honest(odd_mlp())
    lost = next(iter(clients))

    def unavailable(message):
        reply = Message(Error(5, "Error: Node Unavailable"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = 1
        return reply

    strategy = G2uardFLStrategy()
    play(strategy, array_record(model), {**{c: sends(w) for c, w in clients.items()}, lost: unavailable})
    assert strategy.verdicts[lost].reason == "It failed: 'Error: Node Unavailable'."
    assert len(strategy.verdicts) == len(clients)


def test_replies_as_flowers_own_tests_mock_them_are_understood():
    model, clients = odd_mlp(), honest(odd_mlp())
    strategy = G2uardFLStrategy()
    strategy.current_arrays = array_record(model)
    replies = []
    for client, weights in clients.items():
        reply = Mock(spec=Message)
        reply.content, reply.metadata = content(weights), Mock(src_node_id=client)
        reply.has_error = lambda: False
        replies.append(reply)
    arrays, _ = strategy.aggregate_train(server_round=1, replies=replies)
    assert same_bits(arrays, g2uardfl.G2uardFL().aggregate(model, clients).weights)


def test_aggregating_before_any_model_was_sent_says_what_is_missing():
    with pytest.raises(StateError, match="configure_train"):
        G2uardFLStrategy().aggregate_train(1, [])


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(10)))
def test_the_order_of_replies_changes_nothing(order):
    model, clients = odd_mlp(), honest(odd_mlp())
    nodes = {c: sends(w) for c, w in clients.items()}
    nodes[5], nodes[6] = hostile_nodes(model)["two replies"][0], hostile_nodes(model)["garbage"][0]
    results = []
    for arrangement in (range(10), order):
        strategy = AggregatorStrategy("fedavg")
        grid = LocalGrid(nodes)
        replies = grid.send_and_receive(strategy.configure_train(1, array_record(model), ConfigRecord(), grid))
        by_node = [[r for r in replies if r.metadata.src_node_id == node] for node in nodes]
        arrays, _ = strategy.aggregate_train(1, [reply for index in arrangement for reply in by_node[index]])
        results.append((strategy.verdicts, arrays))
    assert results[0] == results[1]


@pytest.mark.parametrize("usable", [0, 1, 3])
def test_with_fewer_usable_replies_than_the_minimum_the_model_is_kept_and_the_round_counts(usable):
    model, clients = odd_mlp(), honest(odd_mlp(), clients=6)
    nan = {name: torch.full_like(value, torch.nan) for name, value in model.items()}
    nodes = {c: sends(w if index < usable else nan) for index, (c, w) in enumerate(clients.items())}
    strategy = G2uardFLStrategy(min_replies=4)
    with log_lines() as lines:
        arrays, metrics = play(strategy, array_record(model), nodes)
    assert arrays is None
    assert (strategy.rounds_done, strategy.rounds_kept) == (1, 1)
    assert (metrics["g2uardfl-held-out"], metrics["g2uardfl-invalid"]) == (usable, 6 - usable)
    assert metrics["g2uardfl-rounds-kept"] == 1
    (line,) = [line for line in lines if "round 1" in line]
    assert line.startswith("WARNING")
    assert "kept" in line
    assert strategy.guard.round == 0, "nobody was judged"
    arrays, metrics = play(strategy, array_record(model), {c: sends(w) for c, w in clients.items()}, 2)
    assert arrays is not None
    assert (strategy.rounds_done, strategy.rounds_kept) == (2, 1)


def test_exactly_the_minimum_is_enough():
    model, clients = odd_mlp(), honest(odd_mlp(), clients=4)
    arrays, _ = play(G2uardFLStrategy(min_replies=4), array_record(model), {c: sends(w) for c, w in clients.items()})
    assert same_bits(arrays, g2uardfl.G2uardFL().aggregate(model, clients).weights)


def test_without_training_there_is_no_round():
    strategy = G2uardFLStrategy(fraction_train=0.0)
    assert play(strategy, array_record(odd_mlp()), {1: sends(odd_mlp())}) == (None, None)
    assert strategy.rounds_done == 0


def reported_name(reply: Message) -> str:
    return str(reply.content["who"]["name"])


def named(weights, name):
    given = content(weights)
    given["who"] = ConfigRecord({"name": name})
    return answers(given)


def test_an_identity_of_the_operators_own_outlives_new_node_ids():
    model = odd_mlp()
    clients = honest(model)
    strategy, guard = G2uardFLStrategy(identity=reported_name), g2uardfl.G2uardFL()
    arrays, weights = array_record(model), model
    for server_round in (1, 2):
        by_name = {f"client {i}": sent for i, sent in enumerate(clients.values())}
        nodes = {server_round * 1000 + i: named(sent, name) for i, (name, sent) in enumerate(by_name.items())}
        arrays, _ = play(strategy, arrays, nodes, server_round)
        result = guard.aggregate(weights, by_name)
        weights = result.weights
        assert strategy.verdicts == result.verdicts
    assert same_bits(arrays, weights)


def test_two_nodes_that_claim_one_identity_both_lose_their_place():
    clients = honest(odd_mlp())
    nodes = {i: named(sent, f"client {i}") for i, sent in enumerate(clients.values(), 1)}
    nodes[50] = named(odd_mlp(), "client 1")
    strategy = G2uardFLStrategy(identity=reported_name)
    play(strategy, array_record(odd_mlp()), nodes)
    assert strategy.verdicts["client 1"].reason == "It replied through 2 nodes."
    assert len(strategy.verdicts) == len(clients)


@pytest.mark.parametrize(
    ("identity", "why"),
    [
        (reported_name, "could not be identified"),
        (lambda reply: [1, 2], "was identified as a list"),
        (lambda reply: True, "was identified as a bool"),
    ],
)
def test_a_client_that_cannot_be_identified_is_invalid(identity, why):
    clients = honest(odd_mlp())
    strategy = G2uardFLStrategy(identity=identity)
    play(strategy, array_record(odd_mlp()), {c: sends(w) for c, w in clients.items()})
    assert all(verdict.decision == "invalid" and why in verdict.reason for verdict in strategy.verdicts.values())


def test_a_node_that_stays_silent_is_known_by_the_name_it_gave_before():
    clients = honest(odd_mlp())
    nodes = {i: named(sent, f"client {i}") for i, sent in enumerate(clients.values(), 1)}
    strategy = G2uardFLStrategy(identity=reported_name)
    arrays, _ = play(strategy, array_record(odd_mlp()), nodes)
    play(strategy, arrays, {**nodes, 1: lambda message: None}, 2)
    assert strategy.verdicts["client 1"].reason == "It did not reply in time."


def run(strategy, nodes, rounds=2, **options):
    return strategy.start(LocalGrid(nodes), array_record(odd_mlp()), num_rounds=rounds, **options)


def trains(weights_of_round):
    """A node that answers training by its round's weights and evaluation by an accuracy."""

    def node(message):
        if message.metadata.message_type == "train":
            return Message(content(weights_of_round(message.content["config"]["server-round"])), reply_to=message)
        return Message(RecordDict({"m": MetricRecord({"num-examples": 2, "accuracy": 0.5})}), reply_to=message)

    return node


def whole_federation():
    return {c: trains(lambda r, i=i: perturbed(odd_mlp(), 100 * r + i)) for i, c in enumerate(honest(odd_mlp()))}


def test_flowers_start_runs_whole_rounds_and_evaluates():
    seen = []
    result = run(G2uardFLStrategy(), whole_federation(), evaluate_fn=lambda number, arrays: seen.append(number))
    assert sorted(result.train_metrics_clientapp) == [1, 2]
    assert result.train_metrics_clientapp[2]["g2uardfl-round"] == 2
    assert result.evaluate_metrics_clientapp[2]["accuracy"] == pytest.approx(0.5)
    assert seen == [0, 1, 2]
    assert set(state_dict(result.arrays)) == set(odd_mlp())


def test_a_run_in_which_no_round_moved_the_model_ends_with_the_model_it_began_with():
    result = run(G2uardFLStrategy(min_replies=100), whole_federation())
    assert same_bits(result.arrays, odd_mlp())


@pytest.mark.parametrize(
    ("options", "warned"), [({}, True), ({"authenticated_nodes": True}, False), ({"identity": reported_name}, False)]
)
def test_a_start_with_node_ids_that_may_not_last_is_warned_about(options, warned):
    with log_lines() as lines:
        run(G2uardFLStrategy(**options), whole_federation(), rounds=1)
    warnings = [line for line in lines if "knows clients by their node ids" in line]
    assert len(warnings) == warned
    assert all("authenticate" in line and "identity=" in line and "neutral" in line for line in warnings)


def test_a_model_without_parameters_is_refused_before_anybody_is_asked():
    grid = LocalGrid({1: sends({"n": np.zeros(3, np.int64)})})
    with pytest.raises(ValueError, match="nothing to aggregate"):
        G2uardFLStrategy().start(grid, array_record({"n": np.zeros(3, np.int64)}), num_rounds=1)
    assert not grid.sent


def test_one_line_a_round_says_who_and_why():
    model, clients = odd_mlp(), honest(odd_mlp())
    strategy = G2uardFLStrategy()
    with log_lines() as lines:
        play(strategy, array_record(model), {NEWCOMER: lambda m: None, **{c: sends(w) for c, w in clients.items()}})
    (line,) = lines
    counts = {d: sum(x == d for x in decisions(strategy).values()) for d in ("accepted", "held_out", "malicious")}
    assert line.startswith("INFO g2uardfl round 1: ")
    for decision, count in counts.items():
        assert f"{count} {decision.replace('_', ' ')}" in line
    assert f"1 invalid ({NEWCOMER}: It did not reply in time)" in line


def test_metrics_are_averaged_over_the_accepted_alone():
    model, clients = odd_mlp(), honest(odd_mlp())
    strategy = G2uardFLStrategy()
    nodes = {c: sends(w, loss=float(i), **{"num-examples": i + 1}) for i, (c, w) in enumerate(clients.items())}
    _, metrics = play(strategy, array_record(model), nodes)
    accepted = [i for i, c in enumerate(clients) if strategy.verdicts[c].decision == "accepted"]
    assert 0 < len(accepted) < len(clients)
    total = sum(i + 1 for i in accepted)
    assert metrics["loss"] == pytest.approx(sum(i * (i + 1) for i in accepted) / total)
    assert metrics["g2uardfl-accepted"] == len(accepted)
    assert "num-examples" not in metrics


@pytest.mark.parametrize(
    "odd", [{"other": 1.0}, {"loss": [1.0, 2.0]}, {"num-examples": 0, "loss": 5.0}, {"loss": 0.5, "more": 1}]
)
def test_metrics_unlike_the_others_do_not_spoil_the_average(odd):
    model, clients = odd_mlp(), honest(odd_mlp())
    nodes = {c: sends(w, loss=0.25) for c, w in clients.items()}
    nodes[next(iter(nodes))] = sends(next(iter(clients.values())), **odd)
    _, metrics = play(AggregatorStrategy("fedavg"), array_record(model), nodes)
    assert metrics["loss"] == pytest.approx(0.25)
    assert metrics["g2uardfl-accepted"] == len(clients)


def test_when_nobody_has_examples_there_is_no_average_and_no_crash():
    model, clients = odd_mlp(), honest(odd_mlp())
    nodes = {c: sends(w, loss=1.0, **{"num-examples": 0}) for c, w in clients.items()}
    with log_lines() as lines:
        arrays, metrics = play(G2uardFLStrategy(), array_record(model), nodes)
    assert arrays is not None
    assert "loss" not in metrics
    assert len(lines) == 1, "nothing went wrong that would have to be told"


def test_an_aggregation_function_of_the_operators_own_sees_whole_contents_and_may_fail():
    seen = []

    def broken(records, key):
        seen.extend(records)
        raise RuntimeError("no")

    model, clients = odd_mlp(), honest(odd_mlp())
    with log_lines() as lines:
        arrays, metrics = play(
            AggregatorStrategy("fedavg", train_metrics_aggr_fn=broken),
            array_record(model),
            {c: sends(w) for c, w in clients.items()},
        )
    assert arrays is not None
    assert metrics["g2uardfl-accepted"] == len(seen) == len(clients)
    assert all(record.array_records for record in seen)
    assert any("could not be aggregated" in line for line in lines)


def test_evaluation_leaves_out_what_cannot_be_read():
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
    assert "left out 4 of 7" in lines[0]
    assert strategy.aggregate_evaluate(1, []) is None
    assert strategy.aggregate_evaluate(1, bad[:1]) is None


def test_sampling_is_fedavgs():
    nodes = {i: sends(odd_mlp()) for i in range(1, 11)}
    chosen = []
    for strategy in (FedAvg(fraction_train=0.5), G2uardFLStrategy(fraction_train=0.5)):
        random.seed(7)
        messages = strategy.configure_train(1, array_record(odd_mlp()), ConfigRecord(), LocalGrid(nodes))
        chosen.append([message.metadata.dst_node_id for message in messages])
        assert all(message.content["config"]["server-round"] == 1 for message in messages)
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == 5


def test_what_a_client_sends_is_left_as_it_was():
    model, clients = odd_mlp(), honest(odd_mlp())
    records = {c: array_record(w) for c, w in clients.items()}
    before = {c: {name: array.data for name, array in record.items()} for c, record in records.items()}
    sent = array_record(model)
    held = {name: array.data for name, array in sent.items()}
    play(G2uardFLStrategy(), sent, {c: sends(record) for c, record in records.items()})
    assert all(array.data == held[name] for name, array in sent.items())
    assert all(records[c][name].data == data for c, arrays in before.items() for name, data in arrays.items())
