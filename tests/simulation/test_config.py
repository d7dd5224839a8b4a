"""The config of a run: files, assignments and errors."""

from __future__ import annotations

import dataclasses
import math

import pytest

from g2uardfl import tasks
from g2uardfl.core.errors import ConfigError
from g2uardfl.core.settings import build
from g2uardfl.simulation.config import RunConfig, read_values, with_assignments

DEFAULTS = tasks.create("digits").defaults


def test_a_resolved_config_has_the_tasks_defaults_where_nothing_is_given():
    config = RunConfig(lr=0.2, clients=30, momentum=0.0).resolved(DEFAULTS)
    assert (config.lr, config.clients, config.momentum) == (0.2, 30, 0.0)
    assert (config.per_round, config.batch_size) == (DEFAULTS.per_round, DEFAULTS.batch_size)
    assert (config.local_epochs, config.lr_decay) == (DEFAULTS.local_epochs, DEFAULTS.lr_decay)
    assert config.weight_decay == DEFAULTS.weight_decay


def test_a_config_file_restores_the_whole_config(tmp_path):
    config = RunConfig(alpha=math.inf, pmr=0.4, defense_settings={"false_alarm_rate": 0.25}).resolved(DEFAULTS)
    (tmp_path / "config.toml").write_text(config.to_toml())
    assert RunConfig.from_file(tmp_path / "config.toml") == config


def test_the_learning_rate_decays_every_round():
    config = RunConfig(lr=0.1, lr_decay=0.5).resolved(DEFAULTS)
    assert [config.recipe(number).lr for number in (1, 2, 4)] == [0.1, 0.05, 0.0125]


NEVER_ZERO = ("clients", "per_round", "local_epochs", "local_steps", "lr", "batch_size", "lr_decay", "attack_until")


@pytest.mark.parametrize("name", NEVER_ZERO)
def test_zero_is_rejected_and_not_replaced_by_the_tasks_default(name):
    with pytest.raises(ConfigError, match=f"{name}=0"):
        RunConfig(**{name: 0})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attack_from": 5, "rounds": 2}, "attack_from=5 is after the last round"),
        ({"defend_from": 5, "rounds": 2}, "defend_from=5 is after the last round"),
        ({"attack_from": 5, "attack_until": 4}, "attack_until=4 is before attack_from=5"),
        ({"local_steps": 5, "local_epochs": 2}, "exclude each other"),
        ({"sample_limit": 100, "partition": "natural"}, "sample_limit would separate samples"),
    ],
)
def test_settings_that_contradict_each_other_are_rejected(settings, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig(**settings).resolved(DEFAULTS)


def test_settings_that_are_given_are_kept():
    config = RunConfig(local_steps=5, momentum=0.0, weight_decay=0.0, attack_until=7).resolved(DEFAULTS)
    assert (config.local_steps, config.local_epochs, config.attack_until) == (5, None, 7)
    assert (config.momentum, config.weight_decay) == (0.0, 0.0)


def test_a_config_file_of_version_1_has_its_old_meaning(tmp_path):
    text = "format = 1\nlocal_epochs = 2\nattack_until = 0\n"
    (tmp_path / "epochs.toml").write_text(f"{text}local_steps = 0")
    assert RunConfig.from_file(tmp_path / "epochs.toml") == RunConfig(local_epochs=2)
    (tmp_path / "steps.toml").write_text(f"{text}local_steps = 5")
    assert RunConfig.from_file(tmp_path / "steps.toml") == RunConfig(local_steps=5)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [("rounds", "key=value"), ("server.x=1", "unknown prefix"), ("rounds=0", "rounds=0"), ("pmr=1.5", "pmr=1.5")],
)
def test_a_wrong_assignment_is_rejected(assignment, message):
    with pytest.raises(ConfigError, match=message):
        build(RunConfig, with_assignments({}, [assignment]))


def test_a_value_that_is_not_toml_is_a_string():
    assert with_assignments({}, ["start=some file.safetensors"]) == {"start": "some file.safetensors"}


def test_a_config_file_that_cannot_be_used_is_a_clear_error(tmp_path):
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_values(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match="cannot read"):
        read_values(tmp_path / "none.toml")
    (tmp_path / "typo.toml").write_text("round = 3")
    with pytest.raises(ConfigError, match="did you mean rounds"):
        RunConfig.from_file(tmp_path / "typo.toml")
    (tmp_path / "newer.toml").write_text("format = 3")
    with pytest.raises(ConfigError, match="another version"):
        read_values(tmp_path / "newer.toml")


def test_more_clients_per_round_than_clients_are_rejected():
    with pytest.raises(ConfigError, match="select fewer"):
        dataclasses.replace(RunConfig(), clients=5, per_round=6).resolved(DEFAULTS)
