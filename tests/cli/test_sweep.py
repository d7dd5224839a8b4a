"""`g2uardfl sweep` on the command line."""

from __future__ import annotations

import pytest

from g2uardfl.cli.lists import repeated

SMALL = ("--rounds", "2", "--clients", "12", "--per-round", "4", "--local-steps", "1", "--set", "start=scratch")


def test_a_list_option_takes_all_values_up_to_the_next_option():
    arguments = ["g.toml", "--seed", "0", "1", "--out", "x", "y", "--alpha", "-1", "-.5", "--log=csv", "z"]
    expected = "g.toml --seed 0 --seed 1 --out x y --alpha -1 --alpha -.5 --log=csv z"
    assert repeated(arguments, {"--seed", "--alpha", "--log"}) == expected.split()


@pytest.mark.slow
def test_a_sweep_prints_each_run_and_the_comparison_and_skips_what_is_finished(cli, tmp_path):
    grid = ("sweep", "--defense", "fedavg", "median", "--seed", "0", "1", *SMALL, "--jobs", "1", "--out", "runs")
    first = cli(*grid)
    assert first.status == 0, first.stderr
    assert "[4/4]" in first.stdout
    assert next(line.split()[:2] for line in first.stdout.splitlines() if line.startswith("median  ")) == [
        "median",
        "2",
    ]
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 4
    again = cli(*grid)
    assert "4 runs in runs: 4 finished" in again.stdout
    assert "[1/" not in again.stdout


@pytest.mark.slow
def test_a_failed_run_is_listed_at_the_end_with_exit_status_1(cli, tmp_path):
    result = cli("sweep", "--attack", "pgd", "--data-dir", "none", "--task", "mnist", *SMALL, "--out", "runs")
    assert result.status == 1
    last = result.stderr.strip().splitlines()
    assert last[0].startswith("failed: ")
    assert "mnist" in last[0]
    assert last[-1] == "1 of 1 runs failed"


def test_a_dry_run_lists_the_runs_and_writes_nothing(cli, tmp_path):
    result = cli("sweep", "--defense", "fedavg", "g2uardfl,profile=paper", *SMALL, "--dry-run")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["new", "new"]
    assert "g2uardfl_paper" in result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.toml"], "cannot read none.toml"),
        (["--seed", "0", "x"], "'x' is not a valid integer"),
        (["--defense", "fedavg", "flme"], "'flme'"),
        (["--defense", "krum,malicious=1"], "krum against none: unknown setting 'malicious'"),
        (["--set", "pmr"], "key=value,value"),
        (["--jobs", "0"], "jobs=0"),
        (["--device", "abacus"], "device='abacus' is not available"),
        (["--log", "nowhere"], "unknown tracker 'nowhere'"),
    ],
)
def test_wrong_arguments_are_one_line_errors_before_anything_runs(cli, tmp_path, arguments, message):
    result = cli("sweep", *arguments)
    assert result.status == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert message in result.stderr
    assert not (tmp_path / "runs").exists()
