"""Grids: from lists of values to the configs of runs."""

from __future__ import annotations

import math

import pytest

from g2uardfl.core.errors import ConfigError
from g2uardfl.experiments.grid import Grid, axes_of


def test_a_grid_has_every_combination_once_and_seeds_vary_slowest():
    configs = Grid({"attack": ["none", "pgd"], "seed": [1, 0], "pmr": [0.1, 0.2]}).configs()
    found = [(config.seed, config.attack, config.pmr) for config in configs]
    assert found == [(seed, attack, pmr) for seed in (0, 1) for attack in ("none", "pgd") for pmr in (0.1, 0.2)]


def test_appended_settings_apply_only_to_their_value():
    grid = Grid({"attack": ["black_box", "pgd,radius=1.5,rounds=7"], "defense": ["krum", "g2uardfl,profile=paper"]})
    plain, paper, pgd, both = grid.configs()
    assert (plain.attack_settings, plain.defense_settings, plain.rounds) == ({}, {}, 100)
    assert (paper.defense, paper.defense_settings) == ("g2uardfl", {"profile": "paper"})
    assert (pgd.attack, pgd.attack_settings, pgd.rounds, pgd.defense_settings) == ("pgd", {"radius": 1.5}, 7, {})
    assert (both.attack_settings, both.defense_settings) == ({"radius": 1.5}, {"profile": "paper"})


def test_a_wrapped_attack_and_a_path_are_names_without_settings():
    (config,) = Grid({"attack": ["randomized(./a,b.py:Mine)"]}).configs()
    assert (config.attack, config.attack_settings) == ("randomized(./a,b.py:Mine)", {})


def test_each_cell_is_a_grid_that_shares_the_other_axes(tmp_path):
    (tmp_path / "grid.toml").write_text("""
rounds = 3
seed = [0, 1]
[[cells]]
defense = ["fedavg", "krum"]
[[cells]]
defense = "g2uardfl"
"defense.profile" = "paper"
alpha = [0.5, inf]
rounds = 9
""")
    found = [
        (config.seed, config.defense, config.rounds, config.alpha, config.defense_settings)
        for config in Grid.from_file(tmp_path / "grid.toml").configs()
    ]
    assert found == [
        row
        for seed in (0, 1)
        for row in (
            (seed, "fedavg", 3, math.inf, {}),
            (seed, "krum", 3, math.inf, {}),
            (seed, "g2uardfl", 9, 0.5, {"profile": "paper"}),
            (seed, "g2uardfl", 9, math.inf, {"profile": "paper"}),
        )
    ]


def test_options_replace_the_axes_of_a_file_in_every_cell():
    grid = Grid({"seed": [0, 1], "rounds": [3]}, [{"rounds": [9], "attack": ["pgd"]}]).with_axes({"rounds": [1]})
    assert [(config.seed, config.rounds, config.attack) for config in grid.configs()] == [(0, 1, "pgd"), (1, 1, "pgd")]


def test_values_of_an_assignment_are_split_at_commas_outside_of_brackets():
    assert axes_of({}, ["x=[1, 2],[3]", "profile=default,paper", "pmr=0.1"]) == {
        "x": [[1, 2], [3]], "profile": ["default", "paper"], "pmr": [0.1],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = []", "has no value"),
        ("cells = 3", r"starts with \[\[cells\]\]"),
        ("rounds = [1, 0]", "rounds=0"),
        ('"server.x" = 1', "unknown prefix"),
    ],
)
def test_a_grid_that_makes_no_sense_is_rejected(tmp_path, text, message):
    (tmp_path / "grid.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        Grid.from_file(tmp_path / "grid.toml").configs()
