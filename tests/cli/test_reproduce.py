"""`g2uardfl reproduce`: runs a table at the smoke scale, keeps finished runs, and fails if a cell is missing."""

from __future__ import annotations

import csv
import json

import pytest

from g2uardfl.experiments.paper.rendering import SMOKE

TABLE = """
title = "Three defences"
figures = ["asr", "acc", "ds"]
[settings]
task = "digits"
attack = "black_box"
[axes]
defense = ["No defense", "Krum", "G²uardFL"]
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(TABLE, encoding="utf-8")
    path.with_suffix(".csv").write_text("defense,asr,acc,ds\nKrum,93.30,93.97,1.39\n", encoding="utf-8")
    return path


def times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.glob("*/summary.json")}


def test_a_table_is_run_shown_and_written_in_every_format_and_finished_runs_are_kept(cli, table, tmp_path):
    done = cli("reproduce", table, "--jobs", 1)
    assert done.status == 0, done.stderr
    assert SMOKE in done.stdout
    assert "1.39 (recomputed: 12.51)" in done.stdout
    folder = tmp_path / "runs" / "smoke"
    first = times(folder)
    assert len(first) == 4
    for suffix in ("md", "csv", "tex", "svg", "html"):
        assert (folder / "pages" / f"mine.{suffix}").read_text(encoding="utf-8")
    rows = list(csv.DictReader((folder / "pages" / "mine.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["defense"], row["profile"], row["scale"]) for row in rows] == [
        ("No defense", "", "smoke"),
        ("Krum", "", "smoke"),
        ("G²uardFL", "paper", "smoke"),
        ("G²uardFL", "default", "smoke"),
    ]
    measured = {row["defense"]: float(row["acc"]) for row in rows if row["profile"] != "default"}
    for path in folder.glob("krum*/summary.json"):
        assert measured["Krum"] == pytest.approx(100 * json.loads(path.read_text())["acc_tail_mean"], abs=1e-4)

    again = cli("reproduce", table, "--jobs", 1)
    assert again.status == 0
    assert "4 runs in runs/smoke: 4 finished" in again.stdout
    assert times(folder) == first

    # A run that is missing is not executed where only finished ones are asked for.
    krum = next(path for path in first if path.parent.name.startswith("krum"))
    krum.rename(krum.with_suffix(".kept"))
    partial = cli("reproduce", table, "--finished", "--pages", tmp_path / "partial")
    assert partial.status == 1
    assert "missing: mine: Krum\n" in partial.stderr
    assert not krum.exists()
    krum.with_suffix(".kept").rename(krum)

    # The pages can be made again from the CSV file alone.
    page = folder / "pages" / "mine.md"
    before = page.read_text(encoding="utf-8")
    for path in first:
        path.unlink()
    printed = cli("reproduce", table, "--results", folder / "pages" / "mine.csv", "--pages", tmp_path / "copy")
    assert printed.status == 0
    assert (tmp_path / "copy" / "mine.md").read_text(encoding="utf-8") == before


def test_a_missing_cell_is_named_and_the_command_fails(cli, tmp_path):
    (tmp_path / "broken.py").write_text(
        "from g2uardfl.aggregators import Aggregator\n"
        "class Broken(Aggregator):\n"
        "    name = summary = 'broken'\n"
        "    def combine(self, round_):\n"
        "        raise RuntimeError('no')\n"
    )
    table = tmp_path / "mine.toml"
    table.write_text(
        TABLE.replace('defense = ["No defense", "Krum", "G²uardFL"]', "")
        + '[axes.defense]\nBroken = { defense = "broken:Broken" }\n"No defense" = { defense = "fedavg" }\n',
        encoding="utf-8",
    )
    done = cli("reproduce", table, "--jobs", 1)
    assert done.status == 1
    assert "missing: mine: Broken\n" in done.stderr
    assert "1 cells are missing" in done.stderr
    assert "No defense" not in done.stderr
    assert "missing" in (tmp_path / "runs" / "smoke" / "pages" / "mine.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["efectiveness"], "there is no table 'efectiveness': did you mean effectiveness?"),
        (["pmr", "--scale", "large"], "--scale large: choose one of smoke, paper"),
        (["pmr", "--local", "years"], "--local years: choose one of steps, epochs"),
        (["pmr", "--only", "0.07"], "--only 0.07: there is no such label; choose from 0.00, "),
        (["pmr", "--rounds", "3"], "--rounds belongs to --scale paper"),
        (["pmr", "--results", "none.csv"], "cannot read none.csv"),
    ],
)
def test_wrong_arguments_are_clear_errors(cli, arguments, words):
    done = cli("reproduce", *arguments)
    assert done.status == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_cells_of_a_table_of_the_paper_run_on_real_data(cli, real_data, tmp_path):
    done = cli("reproduce", "robustness", "--only", "mnist", "3DFed", "--jobs", 1, "--data-dir", real_data)
    assert done.status == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "runs/smoke/pages/robustness.csv").read_text(encoding="utf-8").splitlines()))
    assert {(row["attack"], row["profile"]) for row in rows} == {
        ("3DFed", profile) for profile in ("", "paper", "default")
    }
