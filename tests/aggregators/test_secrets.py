"""Rules that draw random numbers: without a seed nobody can predict them."""

from __future__ import annotations

import numpy as np
import pytest

from g2uardfl import aggregators
from g2uardfl.core.state_files import SavedState

RULES = [name for name in aggregators.names() if aggregators.find(name).takes_seed]
NOISY = {"weak_dp": {"noise": 0.1}, "flame": {"noise_factor": 1.0}}
MODEL = {"w": np.zeros(50)}
CLIENTS = {client: {"w": np.random.default_rng(client).normal(size=50)} for client in range(6)}

rule_that_adds_noise = pytest.mark.parametrize("name", NOISY)


def test_the_rules_with_a_seed_are_those_that_draw_random_numbers():
    assert RULES == ["g2uardfl", "weak_dp", "flame", "deepsight"]


@pytest.mark.parametrize("name", RULES)
def test_the_seed_is_none_by_default_and_a_drawn_secret_is_only_in_the_state(name):
    first, second = aggregators.create(name), aggregators.create(name)
    secret = first.state().values["secret"]
    assert first.configuration()["seed"] is None
    assert secret != second.state().values["secret"]
    assert str(secret) not in repr(first)
    assert aggregators.create(name, seed=7).state().values["secret"] == 7


@rule_that_adds_noise
def test_without_a_seed_the_noise_is_another_each_time_and_with_one_the_same(name):
    def model_of(**settings):
        return aggregators.create(name, **NOISY[name], **settings).aggregate(MODEL, CLIENTS).weights["w"]

    assert not np.array_equal(model_of(), model_of())
    assert np.array_equal(model_of(seed=5), model_of(seed=5))


@rule_that_adds_noise
def test_a_restored_rule_continues_with_the_noise_of_the_saved_one(name):
    rule, restored = (aggregators.create(name, **NOISY[name]) for _ in range(2))
    rule.aggregate(MODEL, CLIENTS)
    restored.restore(SavedState(rule.state().values))
    results = [one.aggregate(MODEL, CLIENTS).weights["w"] for one in (rule, restored)]
    assert np.array_equal(*results)
