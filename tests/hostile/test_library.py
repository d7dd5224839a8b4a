"""Hostile clients against every rule, through the library call."""

from __future__ import annotations

from functools import cache

import pytest

from helpers.hostile import HONEST, UNUSABLE, WELL_FORMED, Hostile, always, campaign, every, first, since
from helpers.models import batch_norm_model, flat, numpy_model, odd_mlp, same
from helpers.rules import RULES, WITH_MEMORY, make

MODELS = {"mlp": odd_mlp, "batch norm": batch_norm_model, "numpy": numpy_model}
SCHEDULES = {
    "always": always,
    "every second round": every(2),
    "the first round": first(1),
    "from the third on": since(3),
}


def rejected(results) -> set[str]:
    return {v.decision for result in results for c, v in result.verdicts.items() if str(c).startswith("hostile")}


def honest_verdicts(results) -> list[dict]:
    return [{client: result.verdicts[client] for client in range(HONEST)} for result in results]


@cache
def honest_campaign(rule: str, model: str, rounds: int):
    """The results without hostile clients."""
    weights = MODELS[model]()
    return campaign(make(rule, weights), weights, rounds=rounds)


@pytest.mark.parametrize(
    ("rule", "schedule"),
    [(rule, one) for rule in RULES for one in SCHEDULES if rule in WITH_MEMORY or one == "every second round"],
)
def test_more_hostile_clients_than_honest_ones_in_any_rounds_change_nothing(rule, schedule):
    weights = batch_norm_model()
    hostile = [Hostile(lie, SCHEDULES[schedule], many=2) for lie in UNUSABLE.values()]
    expected = honest_campaign(rule, "batch norm", 3)
    results = campaign(make(rule, weights), weights, hostile)
    assert rejected(results) == {"invalid"}
    assert honest_verdicts(results) == honest_verdicts(expected)
    assert all(same(result.weights, other.weights) for result, other in zip(results, expected, strict=True))


@pytest.mark.parametrize("kind", WELL_FORMED)
def test_the_guard_limits_what_one_client_of_nine_moves(kind):
    """In the first rounds all clients must agree: it may veto a change, and no more."""
    weights = odd_mlp()
    (expected,) = honest_campaign("g2uardfl", "mlp", 1)
    (result,) = campaign(make("g2uardfl"), weights, [Hostile(WELL_FORMED[kind])], rounds=1)
    step = flat(expected.weights) - flat(weights)
    assert (flat(result.weights) - flat(expected.weights)).norm() <= step.norm()
