"""BatchNorm federations on the digits: honest clients are never flagged, and attackers do not lower the accuracy."""

from __future__ import annotations

import math
from copy import deepcopy
from functools import cache

import numpy as np
import pytest
import torch

from g2uardfl.aggregators import create
from helpers.batch_norm import CLIENTS, DigitsFederation, Lie, changed, flagged

pytestmark = pytest.mark.slow

RULES = ("fedavg", "g2uardfl")
SEEDS = 2
LIES = {
    "a mean of 100 more": changed("running_mean", lambda array: array + 100),
    "a huge mean": changed("running_mean", lambda array: torch.full_like(array, 1e15)),
    "a huge variance": changed("running_var", lambda array: torch.full_like(array, 1e6)),
    "a negative counter": changed("num_batches_tracked", lambda array: torch.full_like(array, -(2**62))),
}
HIDDEN_LIES = {
    "a mean of 8 more": changed("running_mean", lambda array: array + 8),
    "no variance": changed("running_var", lambda array: array * 0),
}


def new_federation(rule: str, alpha: float, seed: int) -> DigitsFederation:
    return DigitsFederation(create(rule, **({"seed": 0} if rule == "g2uardfl" else {})), alpha, seed)


@cache
def after_15_rounds(rule: str, seed: int) -> tuple[DigitsFederation, dict]:
    """A federation of clients with the same kind of data, and what its clients send in round 16."""
    federation = new_federation(rule, math.inf, seed)
    assert_nobody_is_mentioned(federation.run(15))
    assert federation.accuracy() > 85
    return federation, deepcopy(federation).train()


def three_more_rounds(rule: str, seed: int, attackers: dict[int, Lie]) -> tuple[DigitsFederation, list]:
    """The federation after 18 rounds, and the results of the last three, in which some clients attack."""
    trained, sent = after_15_rounds(rule, seed)
    federation = deepcopy(trained)
    return federation, [federation.finish_round(sent, attackers), *federation.run(2, attackers)]


@cache
def accuracy_without_attackers(rule: str) -> float:
    return np.mean([three_more_rounds(rule, seed, {})[0].accuracy() for seed in range(SEEDS)])


def assert_nobody_is_mentioned(results: list) -> None:
    assert [flagged(result) for result in results] == [[]] * len(results)
    assert not [result.note for result in results if "is far outside" in result.note]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_honest_clients_are_never_flagged_and_no_round_mentions_them(alpha, seed):
    """`after_15_rounds` asserts the same of clients with the same kind of data."""
    federation = new_federation("fedavg", alpha, seed)
    results = federation.run(15)
    assert_nobody_is_mentioned(results)
    assert {result.note for result in results} == {""}
    assert federation.accuracy() > 85


@pytest.mark.parametrize("lie", ["a mean of 100 more", *HIDDEN_LIES])
@pytest.mark.parametrize("rule", RULES)
def test_one_attacker_of_ten_moves_the_accuracy_by_less_than_a_point(rule, lie):
    accuracies = []
    for seed in range(SEEDS):
        federation, results = three_more_rounds(rule, seed, {CLIENTS - 1: (LIES | HIDDEN_LIES)[lie]})
        assert [flagged(result) for result in results] == [[CLIENTS - 1] if lie in LIES else []] * 3
        accuracies.append(federation.accuracy())
    assert abs(accuracy_without_attackers(rule) - np.mean(accuracies)) < 1


@pytest.mark.parametrize(
    ("rule", "lie"), [("fedavg", "a mean of 100 more"), *(("g2uardfl", lie) for lie in list(LIES)[1:])]
)
def test_four_attackers_of_ten_are_flagged_in_every_round(rule, lie):
    federation, results = three_more_rounds(rule, 0, dict.fromkeys(range(6, 10), LIES[lie]))
    assert [flagged(result) for result in results] == [[6, 7, 8, 9]] * 3
    assert federation.accuracy() > accuracy_without_attackers(rule) - 2
