"""Results of many runs: where they are, in what they differ, their means and tables."""

from __future__ import annotations

import math

import pytest

import g2uardfl
from g2uardfl.core.errors import ConfigError, StateError
from g2uardfl.experiments.results import find_runs, grouped, read_runs, shown_settings
from g2uardfl.simulation.config import RunConfig
from helpers.runs import round_record, write_run


def test_runs_are_found_in_folders_at_any_depth_and_by_patterns(tmp_path):
    runs = [write_run(tmp_path / name) for name in ("a/b/run", "c", "d/run")]
    assert find_runs([tmp_path]) == runs
    assert find_runs([tmp_path / "**"]) == runs
    assert find_runs([tmp_path / "c", tmp_path / "*"]) == [runs[1], runs[0], runs[2]]
    with pytest.raises(ConfigError, match="holds none"):
        find_runs([tmp_path / "c/no"])


def test_unfinished_runs_are_left_out_and_named(tmp_path):
    runs = [write_run(tmp_path / name) for name in ("a", "b")]
    (runs[1] / "summary.json").unlink()
    finished, unfinished = read_runs([tmp_path])
    assert ([run.path for run in finished], unfinished) == (runs[:1], runs[1:])
    with pytest.raises(StateError, match="g2uardfl resume"):
        read_runs([runs[1]])


def test_runs_are_grouped_over_seeds_by_all_other_settings_that_differ(tmp_path):
    for seed, asr in ((0, 0.2), (1, 0.4)):
        for profile, alpha in (("default", 0.5), ("paper", 0.5), ("paper", 10.0)):
            settings = {"defense": "g2uardfl", "defense_settings": {"profile": profile}, "alpha": alpha}
            write_run(tmp_path / f"{profile}{alpha}{seed}", [round_record(1, asr=asr)], seed=seed, **settings)
    groups = grouped(read_runs([tmp_path])[0])
    assert [group.settings for group in groups] == [
        {"defense": "g2uardfl", "alpha": 0.5},
        {"defense": "g2uardfl (paper)", "alpha": 0.5},
        {"defense": "g2uardfl (paper)", "alpha": 10.0},
    ]
    for group in groups:
        assert group.mean("asr") == pytest.approx(0.3)
        assert group.deviation("asr") == pytest.approx(0.2 / math.sqrt(2))
    assert shown_settings([RunConfig(), RunConfig(seed=1)]) == 2 * [{"attack": "none", "defense": "fedavg"}]
    assert len(grouped(read_runs([tmp_path])[0], by_seed=True)) == 6


def test_a_figure_that_no_run_defines_has_no_mean_and_one_value_no_deviation(tmp_path):
    write_run(tmp_path / "run", [round_record(1, c1="accepted")])
    (group,) = grouped(read_runs([tmp_path])[0])
    assert (group.mean("recall"), group.deviation("acc")) == (None, None)


def test_settings_that_follow_from_task_or_rounds_are_no_difference():
    configs = [
        RunConfig(task="digits", clients=50, lr=0.05, rounds=3, attack_until=3),
        RunConfig(task="mnist", clients=200, lr=0.01, rounds=4, attack_until=4),
    ]
    assert shown_settings(configs) == [{"task": "digits", "rounds": 3}, {"task": "mnist", "rounds": 4}]
    configs.append(RunConfig(task="mnist", clients=100, lr=0.01, rounds=4, attack_until=2))
    assert shown_settings(configs)[2] == {"task": "mnist", "rounds": 4, "clients": 100, "attack_until": 2}


ROUNDS = [
    round_record(1, acc=0.5, asr=0.25, m1="malicious", m2="accepted", c1="held_out", c2="accepted"),
    round_record(2, acc=0.75, asr=0.5, c1="accepted", c3="invalid"),
]


@pytest.fixture
def tables(tmp_path):
    """The tables of two runs."""
    write_run(tmp_path / "one", ROUNDS, attack="pgd", seed=3)
    write_run(tmp_path / "two", attack="black_box", alpha=0.5)
    return g2uardfl.load_runs(tmp_path)


def test_the_table_of_runs_has_settings_and_figures(tables):
    one, two = (row for _, row in tables.runs.iterrows())
    assert (one.task, one.attack, one.defense, one.seed, one.alpha) == ("digits", "pgd", "fedavg", 3, math.inf)
    assert (one.acc, one.asr_max, one.recall, one.start_acc) == (0.75, 0.5, 0.5, 0.9)
    assert (two.attack, two.alpha) == ("black_box", 0.5)
    assert math.isnan(two.recall)
    assert len(set(tables.runs.columns)) == len(tables.runs.columns)


def test_the_table_of_rounds_counts_decisions_and_errors(tables):
    first, second = (row for _, row in tables.rounds[tables.rounds.attack == "pgd"].iterrows())
    assert (first["round"], first.acc, first.asr) == (1, 0.5, 0.25)
    assert (first.accepted, first.held_out, first.malicious, first.invalid) == (2, 1, 1, 0)
    assert (first.attacking, first.attacking_refused, first.benign_refused) == (2, 1, 1)
    assert (second.accepted, second.invalid, second.attacking, second.benign_refused) == (1, 1, 0, 0)


def test_the_table_of_verdicts_has_ground_truth_and_decision(tables):
    found = tables.verdicts[tables.verdicts.attack == "pgd"]
    rows = list(zip(found["round"], found.client, found.malicious, found.decision, strict=True))
    assert rows == [
        (1, "m1", True, "malicious"), (1, "m2", True, "accepted"), (1, "c1", False, "held_out"),
        (1, "c2", False, "accepted"), (2, "c1", False, "accepted"), (2, "c3", False, "invalid"),
    ]  # fmt: skip


def test_without_pandas_the_error_names_the_extra(tmp_path, monkeypatch):
    write_run(tmp_path / "run")
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"g2uardfl\[analysis\]"):
        g2uardfl.load_runs(tmp_path)
