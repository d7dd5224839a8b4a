"""The config of a run holds every setting of task, attack and defence, and means the same when it is read again."""

from __future__ import annotations

import dataclasses

import pytest

from g2uardfl import aggregators, attacks
from g2uardfl.core.errors import ConfigError
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.naming import defense_name
from g2uardfl.simulation.run import Simulation
from helpers.plugins import separate_modules as separate_modules

SMALL = {"task": "digits", "clients": 10, "per_round": 5, "rounds": 2, "start": "scratch", "engine": "loop"}


def config_of(**settings) -> RunConfig:
    return Simulation(RunConfig(**{**SMALL, **settings})).config


def read_again(config: RunConfig, tmp_path) -> RunConfig:
    (tmp_path / "config.toml").write_text(config.to_toml())
    return RunConfig.from_file(tmp_path / "config.toml")


@pytest.mark.parametrize("defense", [*aggregators.names(), "g2uardfl, paper"])
def test_a_defence_made_from_the_resolved_config_has_the_same_settings(defense, tmp_path):
    name, *profile = defense.split(", ")
    settings = {"profile": profile[0]} if profile else {}
    simulation = Simulation(RunConfig(**SMALL, defense=name, defense_settings=settings))
    found = {"seed": simulation.config.seed, **simulation.config.defense_settings}
    for setting, value in simulation.defense.configuration().items():
        assert found[setting] == value
    again = Simulation(read_again(simulation.config, tmp_path))
    assert again.config == simulation.config
    assert again.defense.configuration() == simulation.defense.configuration()


@pytest.mark.parametrize("attack", [*attacks.names(), "randomized(model_obfuscation(dba))"])
def test_an_attack_made_from_the_resolved_config_has_the_same_settings(attack, tmp_path):
    simulation = Simulation(RunConfig(**SMALL, attack=attack))
    again = Simulation(read_again(simulation.config, tmp_path))
    assert again.config == simulation.config
    assert again.attack.configuration() == simulation.attack.configuration()
    settings = {name: value for name, value in simulation.attack.configuration().items() if value is not None}
    assert settings == simulation.config.attack_settings


def test_the_tasks_own_values_of_an_attack_are_resolved():
    assert config_of(attack="pgd").attack_settings["radius"] == 0.5
    assert [config_of(attack="dba").attack_settings[name] for name in ("size", "gap", "shift")] == [2, 1, 0]


def test_a_wrapper_names_the_attack_inside():
    assert config_of(attack="randomized").attack == "randomized(pgd_replacement)"
    nested = config_of(attack="randomized", attack_settings={"attack": "dynamic_pdr"})
    assert nested.attack == "randomized(dynamic_pdr(pgd_replacement))"
    assert nested.attack_settings.keys() == {"probability", "low", "high", "radius", "share"}


def test_task_settings_and_model_are_resolved():
    config = config_of()
    assert (config.model, config.task_settings) == ("cnn", {"wrong_labels": 0.0})


def test_the_seed_of_a_defence_follows_the_run_unless_it_is_given(tmp_path):
    config = config_of(defense="flame", seed=4)
    assert "seed" not in config.defense_settings
    assert config_of(defense="flame", seed=4, defense_settings={"seed": 9}).defense_settings["seed"] == 9


def test_an_attack_without_a_last_round_continues_when_a_config_is_run_for_more_rounds(tmp_path):
    longer = dataclasses.replace(read_again(config_of(attack="pgd"), tmp_path), rounds=5)
    assert Simulation(longer).malicious(5)
    assert not Simulation(dataclasses.replace(longer, attack_until=4)).malicious(5)


def test_a_run_from_its_own_config_is_the_same_run(tmp_path):
    settings = {"attack": "randomized(pgd)", "defense": "g2uardfl", "pmr": 0.4}
    first = Simulation(RunConfig(**SMALL, **settings))
    second = Simulation(read_again(first.config, tmp_path))
    first.run()
    second.run()
    for one, other in zip(first.records, second.records, strict=True):
        assert (one["acc"], one["asr"], one["verdicts"]) == (other["acc"], other["asr"], other["verdicts"])


def test_a_share_of_malicious_clients_below_one_client_is_rejected():
    with pytest.raises(ConfigError, match=r"pmr=0\.01 of 10 clients gives no malicious client"):
        config_of(attack="pgd", pmr=0.01)
    assert config_of(attack="none", pmr=0.01).pmr == 0.01


PROFILE = """
from g2uardfl.defense.agreement import Default


class Same(Default):
    summary = "the default under another name"
"""


def test_a_profile_in_a_file_is_resolved_to_its_absolute_path(tmp_path, monkeypatch, separate_modules):
    (tmp_path / "own_profile.py").write_text(PROFILE)
    monkeypatch.chdir(tmp_path)
    config = config_of(defense="g2uardfl", defense_settings={"profile": "own_profile.py:Same"})
    assert config.defense_settings["profile"] == f"{tmp_path}/own_profile.py:Same"
    assert defense_name(config) == "g2uardfl (Same)"
