"""The constructors of the strategies."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")

from flwr.serverapp.strategy import FedAvg, Strategy

import g2uardfl
from g2uardfl.core.errors import ConfigError
from g2uardfl.flower import AggregatorStrategy, G2uardFLStrategy
from helpers.flower import array_record, client_weights, log_lines, sending, train_round
from helpers.models import odd_mlp

OWN = {"min_replies", "identity", "authenticated_nodes", "state_path", "audit_path", "audit_max_bytes"}
OWN |= {"observers", "buffers"}


def parameters(strategy: type) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(strategy).parameters)


@pytest.mark.parametrize("strategy", [AggregatorStrategy, G2uardFLStrategy])
def test_the_arguments_of_fedavg_are_explicit_in_the_same_order_and_with_the_same_defaults(strategy):
    explicit = [p for p in parameters(strategy).values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    shared = [(p.name, p.default) for p in explicit if p.name != "aggregator"]
    assert shared == [(p.name, p.default) for p in parameters(FedAvg).values()]


@pytest.mark.parametrize(
    ("strategy", "rest"), [(AggregatorStrategy, "rule_settings"), (G2uardFLStrategy, "guard_settings")]
)
def test_our_own_arguments_are_explicit_keywords(strategy, rest):
    own = {p.name for p in parameters(strategy).values() if p.kind is p.KEYWORD_ONLY}
    assert own == OWN | ({"profile", "seed"} if strategy is G2uardFLStrategy else set())
    assert [p.name for p in parameters(strategy).values() if p.kind is p.VAR_KEYWORD] == [rest]
    assert not any(p.kind is p.VAR_POSITIONAL for p in parameters(strategy).values())


@pytest.mark.parametrize("strategy", [AggregatorStrategy, G2uardFLStrategy])
def test_every_argument_is_documented(strategy):
    for name in parameters(strategy):
        assert name in strategy.__doc__


def test_a_strategy_takes_the_arguments_of_fedavg_by_position_and_by_name():
    strategy = G2uardFLStrategy(0.5, 0.25, 3, min_available_nodes=9, profile="paper", score_percentile=10.0, seed=4)
    assert isinstance(strategy, Strategy)
    assert (strategy.fraction_train, strategy.fraction_evaluate, strategy.min_train_nodes) == (0.5, 0.25, 3)
    assert (strategy.min_available_nodes, strategy.weighted_by_key) == (9, "num-examples")
    configuration = strategy.guard.configuration()
    assert {name: configuration[name] for name in ("profile", "seed", "score_percentile")} == {
        "profile": "paper", "seed": 4, "score_percentile": 10.0
    }  # fmt: skip


def test_every_argument_of_fedavg_arrives():
    given = {
        "fraction_train": 0.5, "fraction_evaluate": 0.25, "min_train_nodes": 3, "min_evaluate_nodes": 4,
        "min_available_nodes": 5, "weighted_by_key": "n", "arrayrecord_key": "a", "configrecord_key": "c",
        "train_metrics_aggr_fn": lambda records, key: None, "evaluate_metrics_aggr_fn": lambda records, key: None,
    }  # fmt: skip
    assert given.keys() == parameters(FedAvg).keys()
    for strategy in (AggregatorStrategy("fedavg", **given), G2uardFLStrategy(**given)):
        assert {name: getattr(strategy, name) for name in given} == given


@pytest.mark.parametrize("make", [G2uardFLStrategy, lambda **given: AggregatorStrategy("g2uardfl", **given)])
def test_the_guard_draws_a_secret_that_neither_log_nor_audit_show(make, tmp_path):
    with log_lines() as lines:
        strategy = make(audit_path=tmp_path / "audit.jsonl")
        train_round(strategy, array_record(odd_mlp()), sending(client_weights(odd_mlp())))
    assert strategy.aggregator.configuration()["seed"] is None
    assert lines
    for text in (*lines, (tmp_path / "audit.jsonl").read_text(), repr(strategy.aggregator)):
        assert str(strategy.aggregator.observer.secret) not in text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: G2uardFLStrategy(fraction_trian=0.5), "unknown setting 'fraction_trian': did you mean fraction_train"),
        (lambda: G2uardFLStrategy(min_replys=5), "did you mean min_replies"),
        (lambda: G2uardFLStrategy(false_alarm_rat=0.1), "did you mean false_alarm_rate"),
        (lambda: AggregatorStrategy("multi_krum", audit_pat="x"), "did you mean audit_path"),
        (lambda: G2uardFLStrategy(profile="paper", score_percentile=500), "score_percentile=500"),
        (lambda: G2uardFLStrategy(score_percentile=5), "score_percentile is a setting of profile='paper'"),
        (lambda: AggregatorStrategy("no_such_rule"), "unknown defense 'no_such_rule'"),
        (lambda: G2uardFLStrategy(min_replies=0), "min_replies=0 is not allowed"),
        (
            lambda: AggregatorStrategy(g2uardfl.G2uardFL(), window=50),
            r"^Pass settings only together with a rule name; an Aggregator object is already configured\.$",
        ),
    ],
)
def test_a_wrong_setting_is_rejected_in_one_sentence(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
