"""Whole rounds of the strategies: the model, the rounds that keep it, the log, the audit, and Flower's own `start`."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from helpers.models import batch_norm_model, numpy_model, odd_mlp, perturbed

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

import g2uardfl
from g2uardfl.aggregators import find, names
from g2uardfl.aggregators.base import Event, Outcome, model_kept
from g2uardfl.aggregators.context import NeedsServer, ServerContext
from g2uardfl.aggregators.fedavg import FedAvg as Mean
from g2uardfl.core.errors import ConfigError
from g2uardfl.defense.recording import RoundRecorder
from g2uardfl.flower import AggregatorStrategy, Audit, G2uardFLStrategy, array_record, state_dict
from helpers.flower import (
    LocalGrid,
    client_weights,
    content,
    log_lines,
    reported_name,
    same_bits,
    sending,
    sends,
    silent,
    train_round,
)

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


def trained(model, server_round):
    """What clients send in a round; NumPy, which makes the noise, has no bfloat16."""
    if any(isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16 for value in model.values()):
        clients = client_weights({name: value.float() for name, value in model.items()}, seed=server_round)
        return {c: {name: value.bfloat16() for name, value in sent.items()} for c, sent in clients.items()}
    return client_weights(model, seed=server_round)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_the_guard_in_flower_equals_the_guard_without_it_bit_for_bit(make):
    weights = make()
    strategy, guard = G2uardFLStrategy(seed=3), g2uardfl.G2uardFL(seed=3)
    arrays = array_record(weights)
    for server_round in (1, 2, 3):
        clients = trained(weights, server_round)
        arrays, _ = train_round(strategy, arrays, sending(clients), server_round)
        result = guard.aggregate(weights, clients)
        assert same_bits(arrays, result.weights)
        assert strategy.verdicts == result.verdicts
        weights = result.weights


@pytest.mark.parametrize("name", [name for name in names() if not issubclass(find(name), NeedsServer)])
def test_every_rule_by_name_gives_the_same_model_as_without_flower(name):
    model = odd_mlp()
    clients = client_weights(model)
    counts = {client: 5 + index for index, client in enumerate(clients)}
    seed = {"seed": 0} if find(name).takes_seed else {}
    strategy = AggregatorStrategy(name, **seed)
    nodes = {c: sends(w, **{"num-examples": counts[c]}) for c, w in clients.items()}
    arrays, _ = train_round(strategy, array_record(model), nodes)
    result = g2uardfl.aggregators.create(name, **seed).aggregate(model, clients, counts)
    assert same_bits(arrays, result.weights)
    assert strategy.verdicts == result.verdicts


def test_a_rule_that_runs_models_receives_whole_models():
    received = []

    class Looks(NeedsServer):
        name, summary, needs = "looks", "", ""

        def combine(self, round_):
            received.append(round_)
            return Mean().combine(round_)

    rule = Looks()
    rule.attach(ServerContext())
    model, clients = batch_norm_model(), client_weights(batch_norm_model())
    train_round(AggregatorStrategy(rule), array_record(model), sending(clients))
    (round_,) = received
    assert list(round_.global_weights) == list(model)
    assert sorted(round_.client_weights) == sorted(clients)
    for client, weights in round_.client_weights.items():
        assert all(np.array_equal(weights[name], clients[client][name]) for name in model)


def test_a_recorded_guard_decides_changes_the_model_and_counts_kept_rounds_over_several_rounds():
    weights = odd_mlp()
    recorder, guard = RoundRecorder(), g2uardfl.G2uardFL(seed=3)
    strategy = AggregatorStrategy(g2uardfl.G2uardFL(seed=3), min_replies=4, observers=[recorder])
    arrays, kept, decided = array_record(weights), 0, []
    for server_round, replies in enumerate([6, 2, 6, 0, 1, 6, 3, 6], start=1):
        clients = client_weights(weights, clients=6, attackers=1, seed=server_round)
        nodes = {c: sends(w) if index < replies else silent for index, (c, w) in enumerate(clients.items())}
        changed, _ = train_round(strategy, arrays, nodes, server_round)
        if replies < 4:
            kept += 1
            assert changed is None
        else:
            result = guard.aggregate(weights, clients)
            weights, arrays = result.weights, changed
            decided.append(server_round)
            assert strategy.verdicts == result.verdicts
        assert (strategy.rounds_done, strategy.rounds_kept) == (server_round, kept)
        assert same_bits(strategy.current_arrays, weights)
    assert not same_bits(arrays, odd_mlp())
    assert strategy.aggregator.round == len(decided) == 4
    assert recorder.record.numbers == decided


@pytest.mark.parametrize("usable", [0, 1, 3])
def test_with_fewer_usable_replies_than_the_minimum_the_model_is_kept_and_the_round_counts(usable):
    model, clients = odd_mlp(), client_weights(odd_mlp(), clients=6)
    nan = {name: torch.full_like(value, torch.nan) for name, value in model.items()}
    nodes = {c: sends(w if index < usable else nan) for index, (c, w) in enumerate(clients.items())}
    strategy = G2uardFLStrategy(min_replies=4)
    arrays, metrics = train_round(strategy, array_record(model), nodes)
    assert arrays is None
    assert (strategy.rounds_done, strategy.rounds_kept) == (1, 1)
    assert (metrics["g2uardfl-held-out"], metrics["g2uardfl-invalid"]) == (usable, 6 - usable)
    assert metrics["g2uardfl-rounds-kept"] == 1
    assert strategy.guard.round == 0, "the rule was not asked"
    arrays, metrics = train_round(strategy, array_record(model), sending(clients), 2)
    assert arrays is not None
    assert (strategy.rounds_done, strategy.rounds_kept) == (2, 1)


def test_exactly_the_minimum_of_usable_replies_is_enough():
    model, clients = odd_mlp(), client_weights(odd_mlp(), clients=4)
    arrays, _ = train_round(G2uardFLStrategy(seed=0, min_replies=4), array_record(model), sending(clients))
    assert same_bits(arrays, g2uardfl.G2uardFL(seed=0).aggregate(model, clients).weights)


def test_without_training_there_is_no_round():
    strategy = G2uardFLStrategy(fraction_train=0.0)
    assert train_round(strategy, array_record(odd_mlp()), {1: sends(odd_mlp())}) == (None, None)
    assert strategy.rounds_done == 0


def test_nodes_are_sampled_as_by_fedavg():
    nodes = {i: sends(odd_mlp()) for i in range(1, 11)}
    chosen = []
    for strategy in (FedAvg(fraction_train=0.5), G2uardFLStrategy(fraction_train=0.5)):
        random.seed(7)
        messages = strategy.configure_train(1, array_record(odd_mlp()), ConfigRecord(), LocalGrid(nodes))
        chosen.append([message.metadata.dst_node_id for message in messages])
        assert all(message.content["config"]["server-round"] == 1 for message in messages)
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == 5


# What an operator sees of a round


class Eventful(Mean):
    """FedAvg that reports the events it is given."""

    name = "eventful"

    def __init__(self, *kinds: str) -> None:
        super().__init__()
        self.events = tuple(Event(kind, f"This is about {kind}.") for kind in kinds)

    def combine(self, round_) -> Outcome:
        outcome = super().combine(round_)
        return Outcome(outcome.step, outcome.shares, outcome.verdicts, "A remark.", self.events)


@pytest.mark.parametrize(
    ("kinds", "level"),
    [
        ([], "INFO"),
        (["rolled_back"], "WARNING"),
        (["eliminated"], "INFO"),
        (["model_kept"], "WARNING"),
        (["eliminated", "rolled_back"], "WARNING"),
    ],
)
def test_every_event_is_logged_audited_and_in_the_report(tmp_path, kinds, level):
    strategy = AggregatorStrategy(Eventful(*kinds), audit_path=tmp_path / "audit.jsonl")
    with log_lines() as lines:
        train_round(strategy, array_record(odd_mlp()), sending(client_weights(odd_mlp())))
    (line,) = lines
    assert line.startswith(f"{level} eventful round 1: ")
    (record,) = Audit(tmp_path / "audit.jsonl").rounds
    assert [event["kind"] for event in record["events"]] == [event.kind for event in strategy.report.events] == kinds
    for kind in kinds:
        assert f"This is about {kind}." in line
        assert kind in line.partition("]")[2].partition(":")[0]
        assert f"This is about {kind}." in record["note"]
    assert line.endswith("A remark.")
    assert record["note"].endswith("A remark.")


@pytest.mark.parametrize("usable", [0, 2])
def test_a_round_with_too_few_replies_is_a_warning_and_in_the_audit(tmp_path, usable):
    clients = client_weights(odd_mlp(), clients=6)
    nodes = {c: sends(w) if index < usable else silent for index, (c, w) in enumerate(clients.items())}
    strategy = G2uardFLStrategy(min_replies=4, audit_path=tmp_path / "audit.jsonl")
    with log_lines() as lines:
        train_round(strategy, array_record(odd_mlp()), nodes)
    why = "2 of 4 required usable updates arrived" if usable else "No usable reply arrived"
    message = f"{why}: the global model was kept."
    (line,) = lines
    assert line.startswith("WARNING g2uardfl round 1: ")
    assert line.endswith(f"model_kept: {message}")
    (record,) = Audit(tmp_path / "audit.jsonl").rounds
    assert record["events"] == [{"kind": "model_kept", "message": message}]
    assert record["note"] == message
    assert len(record["verdicts"]) == 6


def test_the_audit_holds_the_seconds_of_each_stage(tmp_path):
    strategy = G2uardFLStrategy(audit_path=tmp_path / "audit.jsonl")
    train_round(strategy, array_record(odd_mlp()), sending(client_weights(odd_mlp())))
    line = json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[-1])
    assert line["stage_seconds"] == strategy.report.seconds
    assert {"reading", "clustering", "filtering", "elimination", "building the model"} <= line["stage_seconds"].keys()


def test_one_line_for_each_round_names_clients_and_reasons():
    model, clients = odd_mlp(), client_weights(odd_mlp())
    strategy = G2uardFLStrategy()
    with log_lines() as lines:
        train_round(strategy, array_record(model), {NEWCOMER: silent, **sending(clients)})
    (line,) = lines
    assert " g2uardfl round 1: " in line
    for decision in ("accepted", "held_out", "malicious"):
        count = sum(verdict.decision == decision for verdict in strategy.verdicts.values())
        assert f"{count} {decision.replace('_', ' ')}" in line
    assert f"1 invalid ({NEWCOMER}: It did not reply in time)" in line


# Flower's own start


def answering(weights_of_round):
    """A node that answers training with the weights of the round, and evaluation with an accuracy."""

    def node(message):
        if message.metadata.message_type == "train":
            return Message(content(weights_of_round(message.content["config"]["server-round"])), reply_to=message)
        return Message(RecordDict({"m": MetricRecord({"num-examples": 2, "accuracy": 0.5})}), reply_to=message)

    return node


def start(strategy, rounds=2, **options):
    nodes = {c: answering(lambda r, i=i: perturbed(odd_mlp(), 100 * r + i)) for i, c in enumerate(range(1, 9))}
    return strategy.start(LocalGrid(nodes), array_record(odd_mlp()), num_rounds=rounds, **options)


def test_start_runs_whole_rounds_and_evaluates():
    evaluated = []
    result = start(G2uardFLStrategy(), evaluate_fn=lambda number, arrays: evaluated.append(number))
    assert sorted(result.train_metrics_clientapp) == [1, 2]
    assert result.train_metrics_clientapp[2]["g2uardfl-round"] == 2
    assert result.evaluate_metrics_clientapp[2]["accuracy"] == pytest.approx(0.5)
    assert evaluated == [0, 1, 2]
    assert set(state_dict(result.arrays)) == set(odd_mlp())


def test_a_run_in_which_no_round_changed_the_model_returns_the_initial_model():
    strategy = G2uardFLStrategy(min_replies=100)
    result = start(strategy)
    assert same_bits(result.arrays, odd_mlp())
    assert strategy.report.events == (model_kept("8 of 100 required usable updates arrived"),)


NODE_IDS = "Clients are identified by node id"


@pytest.mark.parametrize(
    ("options", "warned"), [({}, True), ({"authenticated_nodes": True}, False), ({"identity": reported_name}, False)]
)
def test_a_start_warns_that_node_ids_may_not_survive_a_restart(options, warned):
    with log_lines(preflight=True) as lines:
        start(G2uardFLStrategy(**options), rounds=2)
    warnings = [line for line in lines if NODE_IDS in line]
    assert len(warnings) == warned
    assert all("authenticated_nodes=True" in line and "identity=" in line for line in warnings)


class HttpGrid(LocalGrid):
    """Looks like Flower's grid over a network."""

    __module__ = "flwr.superlink.grid.http_grid"


@pytest.mark.parametrize("grid", [LocalGrid, HttpGrid])
def test_each_weakness_is_one_warning_before_the_first_round(grid):
    model = {**batch_norm_model(), "head.weight": torch.zeros(100, 100)}
    clients = {i: perturbed(model, i) for i in range(1, 5)}
    strategy = G2uardFLStrategy(seed=1, min_replies=4)
    with log_lines(preflight=True) as lines:
        for number in (1, 2):
            grid_of_nodes = grid(sending(clients))
            messages = strategy.configure_train(number, array_record(model), ConfigRecord(), grid_of_nodes)
            strategy.aggregate_train(number, grid_of_nodes.send_and_receive(messages))
    found = [line for line in lines if line.startswith("WARNING g2uardfl preflight: ")]
    assert lines[: len(found)] == found
    expected = ["norms only", NODE_IDS, "min_replies=4", "untrained", "are buffers"]
    expected += ["fixed seed"] if grid is HttpGrid else []
    assert len(found) == len(expected)
    for words in expected:
        assert sum(words in line for line in found) == 1


def test_a_model_without_parameters_is_rejected_before_any_client_is_asked():
    grid = LocalGrid({1: sends({"n": np.zeros(3, np.int64)})})
    with pytest.raises(ValueError, match="nothing to aggregate"):
        G2uardFLStrategy().start(grid, array_record({"n": np.zeros(3, np.int64)}), num_rounds=1)
    assert not grid.sent


def with_codebook(weights, value):
    return {**weights, "codebook.embed": torch.full((6,), value)}


def test_a_false_value_in_a_declared_buffer_is_flagged():
    nodes = {client: sends(with_codebook(sent, 0.1)) for client, sent in client_weights(odd_mlp()).items()}
    nodes[NEWCOMER] = sends(with_codebook(perturbed(odd_mlp(), NEWCOMER), 1000.0))
    strategy = AggregatorStrategy("fedavg", buffers=["codebook.*"])
    train_round(strategy, array_record(with_codebook(odd_mlp(), 0.0)), nodes)
    assert strategy.verdicts[NEWCOMER].decision == "malicious"
    assert "embed of 'codebook'" in strategy.verdicts[NEWCOMER].reason


def test_a_pattern_without_a_match_stops_the_server_at_its_start():
    strategy = G2uardFLStrategy(buffers=["codebok.*"])
    with pytest.raises(ConfigError, match=r"'codebok\.\*' matches no array"):
        strategy.start(LocalGrid({}), array_record(with_codebook(odd_mlp(), 0.0)), num_rounds=1)
