"""Names of runs, and the settings in which runs differ."""

from __future__ import annotations

import pytest

from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.naming import defense_name, differing, run_name
from g2uardfl.simulation.run import Simulation


def resolved(**settings) -> RunConfig:
    return Simulation(RunConfig(task="digits", clients=10, per_round=5, **settings)).config


@pytest.mark.parametrize(
    ("settings", "name"),
    [({}, "g2uardfl"), ({"profile": "default"}, "g2uardfl"), ({"profile": "paper"}, "g2uardfl (paper)")],
)
def test_the_profile_is_shown_unless_it_is_the_default(settings, name):
    assert defense_name(resolved(defense="g2uardfl", defense_settings=settings)) == name


def test_a_run_is_named_by_defence_attack_and_task():
    config = resolved(attack="randomized", defense="g2uardfl", defense_settings={"profile": "paper"})
    assert run_name(config) == "g2uardfl (paper) against randomized(pgd_replacement) on digits"


def test_runs_with_another_profile_or_partition_differ_only_in_that_setting():
    runs = [
        resolved(defense="g2uardfl", alpha=0.1),
        resolved(defense="g2uardfl"),
        resolved(defense="g2uardfl", defense_settings={"profile": "paper"}),
    ]
    found = differing(runs)
    assert found == {
        "alpha": [0.1, float("inf"), float("inf")],
        "defense.profile": ["default", "default", "paper"],
    }


def test_a_seed_that_differs_is_one_setting():
    assert differing([resolved(defense="g2uardfl", seed=seed) for seed in (1, 2)]) == {"seed": [1, 2]}


def test_a_setting_that_only_one_of_two_runs_of_a_rule_has_differs():
    runs = [RunConfig(defense="krum"), RunConfig(defense="krum", defense_settings={"malicious_clients": 1})]
    assert differing(runs) == {"defense.malicious_clients": [None, 1]}


def test_steps_in_place_of_epochs_are_a_difference():
    assert differing([RunConfig(local_steps=3), RunConfig(local_epochs=1)]) == {
        "local_epochs": [None, 1],
        "local_steps": [3, None],
    }


def test_ignored_settings_are_left_out():
    assert differing([RunConfig(seed=1), RunConfig(seed=2)], ignored=["seed"]) == {}
