"""`g2uardfl compare`: tables for the terminal, for programs and for documents."""

from __future__ import annotations

import csv
import io
import json

import pytest

from helpers.runs import round_record, write_run


@pytest.fixture
def runs(tmp_path):
    """Runs with two seeds: FLAME against an attacker, ACC 90 and 80 %, ASR 10 and 20 %; FedAvg without one."""
    for seed in (0, 1):
        record = round_record(1, acc=0.9 - 0.1 * seed, asr=0.1 + 0.1 * seed, m1="malicious", c1="accepted")
        write_run(tmp_path / f"runs/flame{seed}", [record], defense="flame", attack="black_box", seed=seed)
        write_run(
            tmp_path / f"runs/fedavg{seed}", [round_record(1, asr=0.0, c1="accepted")], attack="black_box", seed=seed
        )
    return "runs"


def test_a_row_shows_mean_and_deviation_over_the_seeds_in_percent(cli, runs):
    printed = cli("compare", runs, "--figures", "acc", "asr", "recall").stdout.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in printed if line.startswith(("fedavg", "flame"))}
    assert rows["flame"] == ["2", *["85.00", "±", "7.07", "15.00", "±", "7.07", "100.00", "±", "0.00"]]
    assert rows["fedavg"] == ["2", *["90.00", "±", "0.00", "0.00", "±", "0.00", "-"]]


def test_no_line_is_wider_than_the_terminal_and_no_figure_is_missing(cli, runs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    printed = cli("compare", runs).stdout
    assert max(map(len, printed.splitlines())) <= 80
    assert "…" not in printed
    rows = [line for line in printed.splitlines() if line.startswith("flame")]
    assert sum(line.count("±") for line in rows) == 11


def test_csv_holds_means_and_deviations_as_fractions(cli, runs):
    rows = list(csv.DictReader(io.StringIO(cli("compare", runs, "--format", "csv").stdout)))
    flame = next(row for row in rows if row["defense"] == "flame")
    assert (flame["runs"], flame["seeds"]) == ("2", "0 1")
    assert float(flame["acc_mean"]) == pytest.approx(0.85)
    assert float(flame["asr_std"]) == pytest.approx(0.1 / 2**0.5)
    assert next(row for row in rows if row["defense"] == "fedavg")["recall_mean"] == ""


def test_json_holds_the_value_of_each_run(cli, runs):
    rows = json.loads(cli("compare", runs, "--format", "json").stdout)
    flame = next(row for row in rows if row["settings"] == {"defense": "flame"})
    assert flame["seeds"] == [0, 1]
    assert flame["figures"]["asr"]["values"] == pytest.approx([0.1, 0.2])


def test_markdown_and_latex_are_tables_for_documents(cli, runs):
    chosen = ("--figures", "acc", "recall")
    assert cli("compare", runs, "--format", "md", *chosen).stdout == (
        "| defense | runs | ACC % | recall % |\n| --- | ---: | ---: | ---: |\n"
        "| fedavg | 2 | 90.00 ± 0.00 | - |\n| flame | 2 | 85.00 ± 7.07 | 100.00 ± 0.00 |\n"
    )
    latex = cli("compare", runs, "--format", "latex", *chosen).stdout
    assert "defense & runs & ACC \\% & recall \\% \\\\\n" in latex
    assert "flame & 2 & 85.00 $\\pm$ 7.07 & 100.00 $\\pm$ 0.00 \\\\\n" in latex


def test_only_a_table_writes_a_page_unless_one_is_asked_for(cli, runs, tmp_path):
    cli("compare", runs, "--format", "csv")
    assert not (tmp_path / "compare.html").exists()
    cli("compare", runs)
    assert (tmp_path / "compare.html").exists()


def test_several_runs_with_one_seed_are_pointed_out(cli, runs, tmp_path):
    assert "one seed" not in cli("compare", runs, "--format", "md").stderr
    record = round_record(1, c1="accepted")
    write_run(tmp_path / "runs/again", [record], attack="black_box", seed=1)
    assert "several runs with one seed" in cli("compare", runs, "--format", "md").stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "is not a run directory and holds none"),
        (["runs", "--format", "yaml"], "choose one of table, csv, json, md, latex"),
        (["runs", "--figures", "accuracy"], "no figure 'accuracy'"),
    ],
)
def test_wrong_arguments_are_one_line_errors(cli, runs, arguments, message):
    result = cli("compare", *arguments)
    assert result.status == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert message in result.stderr
