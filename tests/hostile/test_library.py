"""Hostile clients against every rule, through the library call."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

from g2uardfl.core.state_files import write_state
from helpers.hostile import HONEST, UNUSABLE, WELL_FORMED, Hostile, always, campaign, every, first, since
from helpers.models import batch_norm_model, flat, numpy_model, odd_mlp, same
from helpers.rules import RULES, make

MODELS = {"mlp": odd_mlp, "batch norm": batch_norm_model, "numpy": numpy_model}
SCHEDULES = {
    "always": always,
    "every second round": every(2),
    "the first round": first(1),
    "from the third on": since(3),
}


def refused(results) -> set[str]:
    return {v.decision for result in results for c, v in result.verdicts.items() if str(c).startswith("hostile")}


def honest_verdicts(results) -> list[dict]:
    return [{client: result.verdicts[client] for client in range(HONEST)} for result in results]


@cache
def honest_campaign(rule: str, model: str, rounds: int):
    """The results without hostile clients."""
    weights = MODELS[model]()
    return campaign(make(rule, weights), weights, rounds=rounds)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", UNUSABLE)
@pytest.mark.parametrize("rule", RULES)
def test_what_cannot_be_used_costs_its_sender_the_round_and_nobody_else_anything(rule, kind, model):
    weights = MODELS[model]()
    (expected,) = honest_campaign(rule, model, 1)
    (result,) = campaign(make(rule, weights), weights, [Hostile(UNUSABLE[kind])], rounds=1)
    verdict = result.verdicts["hostile 0-0"]
    assert verdict.decision == "invalid"
    assert verdict.reason.startswith("The client ")
    assert verdict.reason.isprintable()
    assert len(verdict.reason) < 1000
    assert honest_verdicts([result]) == honest_verdicts([expected])
    assert same(result.weights, expected.weights)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("rule", RULES)
def test_more_hostile_clients_than_honest_ones_in_any_rounds_change_nothing(rule, schedule):
    weights = batch_norm_model()
    hostile = [Hostile(lie, SCHEDULES[schedule], many=2) for lie in UNUSABLE.values()]
    expected = honest_campaign(rule, "batch norm", 3)
    results = campaign(make(rule, weights), weights, hostile)
    assert refused(results) == {"invalid"}
    assert honest_verdicts(results) == honest_verdicts(expected)
    assert all(same(result.weights, other.weights) for result, other in zip(results, expected, strict=True))


@pytest.mark.parametrize("kind", WELL_FORMED)
@pytest.mark.parametrize("rule", RULES)
def test_what_can_be_read_is_judged_and_the_training_goes_on(rule, kind, tmp_path):
    weights = batch_norm_model()
    made = make(rule, weights)
    results = campaign(made, weights, [Hostile(WELL_FORMED[kind], many=2)])
    for result in results:
        assert len(result.verdicts) == HONEST + 2
        assert np.isfinite(np.asarray(flat(result.weights))).all()
        assert json.loads(json.dumps(result.report.as_dict())) == result.report.as_dict()
    assert not same(results[-1].weights, weights)
    write_state(tmp_path / "state", "rule", made.state())


@pytest.mark.parametrize("kind", WELL_FORMED)
def test_the_guard_limits_what_one_client_of_nine_moves(kind):
    """Its update is clipped to a usual norm, and its share is one ninth."""
    weights = odd_mlp()
    (expected,) = honest_campaign("g2uardfl", "mlp", 1)
    (result,) = campaign(make("g2uardfl"), weights, [Hostile(WELL_FORMED[kind])], rounds=1)
    step = flat(expected.weights) - flat(weights)
    assert (flat(result.weights) - flat(expected.weights)).norm() < step.norm()
