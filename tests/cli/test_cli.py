"""The command line: commands, files and errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import g2uardfl
from g2uardfl.core.errors import ConfigError
from g2uardfl.simulation.config import RunConfig
from helpers.command_line import PROGRAM, run_process, run_python
from helpers.plugins import separate_modules as separate_modules
from helpers.runs import timeless_rounds

DOCS = Path(__file__).parents[2] / "docs"


def test_version_prints_the_version(cli):
    assert cli("--version").stdout.strip() == f"g2uardfl {g2uardfl.__version__}"


def test_the_demo_prints_the_results_and_writes_its_report(cli, tmp_path):
    result = cli("demo", "--rounds", "2")
    assert result.status == 0, result.stderr
    summaries = [
        json.loads((tmp_path / f"runs/demo/{name}/summary.json").read_text())
        for name in ("fedavg", "multi_krum", "g2uardfl")
    ]
    assert summaries[0]["start"] == summaries[1]["start"] == summaries[2]["start"]
    printed = " ".join(result.stdout.split())
    for summary in summaries:
        assert f"{100 * summary['asr_tail_mean']:.1f} %" in printed
        assert f"{100 * summary['acc_tail_mean']:.1f} %" in printed
    page = (tmp_path / "runs/demo/report.html").read_text()
    assert page.count('<details class="run"') == 3


RUN = ("run", "--attack", "black_box", "--defense", "g2uardfl", "--rounds", "2", "--set", "start=scratch")


@pytest.fixture
def finished_run(cli, tmp_path):
    """The directory of a finished run."""
    result = cli(*RUN)
    assert result.status == 0, result.stderr
    return tmp_path / "runs/digits-black_box-g2uardfl-0"


def test_a_run_writes_its_directory(finished_run):
    assert {path.name for path in finished_run.iterdir()} == {
        "config.toml", "rounds.jsonl", "summary.json", "model.safetensors", "report.html", "checkpoint",
    }  # fmt: skip


def test_a_run_is_overwritten_only_on_request(cli, finished_run):
    rejected = cli(*RUN)
    assert rejected.status == 2
    assert "--overwrite" in rejected.stderr
    assert cli(*RUN, "--overwrite").status == 0


def test_a_run_with_another_defence_leaves_out_the_settings_of_the_files_defence(cli, finished_run, tmp_path):
    result = cli("run", "--config", finished_run / "config.toml", "--defense", "krum", "--out", "krum")
    assert result.status == 0, result.stderr
    assert RunConfig.from_file(tmp_path / "krum/config.toml").defense_settings == {"malicious_clients": 2}


def test_the_config_file_of_a_run_repeats_it(cli, finished_run, tmp_path):
    repeated = cli("run", "--config", finished_run / "config.toml", "--out", "other")
    assert repeated.status == 0, repeated.stderr
    assert timeless_rounds(finished_run) == timeless_rounds(tmp_path / "other")


def test_report_and_compare_write_pages(cli, finished_run, tmp_path):
    assert cli("report", finished_run, finished_run, "--out", "both.html").status == 0
    assert (tmp_path / "both.html").read_text().count('<details class="run"') == 2
    assert "black_box  g2uardfl" in cli("compare", finished_run).stdout
    assert (tmp_path / "compare.html").exists()


def test_a_finished_run_and_a_run_with_other_settings_are_not_resumed(cli, finished_run):
    assert "is finished" in cli("resume", finished_run).stderr
    changed = cli(*RUN, "--pmr", "0.1", "--resume")
    assert changed.status == 2
    assert "other settings" in changed.stderr


def test_list_prints_the_names_of_each_kind(cli):
    everything = cli("list").stdout
    assert all(name in everything for name in ("digits", "black_box", "fedavg", "g2uardfl"))
    assert "fedavg" not in cli("list", "tasks").stdout


def test_debug_shows_the_traceback(cli):
    with pytest.raises(ConfigError, match="unknown task 'nope'"):
        cli("run", "--task", "nope", "--debug")


OWN_DEFENSE = '''
from g2uardfl.aggregators.fedavg import FedAvg


class Mine(FedAvg):
    """A third party's rule."""

    name = "mine"
    summary = "the average under another name"
'''
OWN_ATTACK = """
from g2uardfl.attacks.black_box import BlackBox


class Theirs(BlackBox):
    name = "theirs"
    summary = "black box under another name"
"""


@pytest.mark.slow
def test_a_task_an_attack_and_a_defence_in_the_current_folder_are_used_by_their_addresses(tmp_path):
    page = (DOCS / "tutorials/own-task.md").read_text(encoding="utf-8")
    (tmp_path / "vibration.py").write_text(re.search(r"```python\n(.*?)```", page, flags=re.S)[1], encoding="utf-8")
    (tmp_path / "mine.py").write_text(OWN_DEFENSE, encoding="utf-8")
    (tmp_path / "theirs.py").write_text(OWN_ATTACK, encoding="utf-8")
    names = ("--task", "vibration:Vibration", "--defense", "mine:Mine", "--attack", "theirs:Theirs")
    rounds = ("--rounds", "2", "--clients", "12", "--per-round", "4", "--pmr", "1", "--start", "scratch")
    result = run_process([*PROGRAM, "run", *names, *rounds, "--out", "own"], tmp_path)
    assert result.status == 0, result.stderr
    records = [json.loads(line) for line in (tmp_path / "own/rounds.jsonl").read_text().splitlines()]
    assert [len(record["attacking"]) for record in records] == [4, 4]


KEEPS_THE_MODEL = '''
from dataclasses import replace

from g2uardfl.aggregators.base import Event, model_kept
from g2uardfl.aggregators.fedavg import FedAvg


class Keeps(FedAvg):
    """A rule with events of both levels."""

    name = "keeps"
    summary = "says that it keeps the model"

    def combine(self, round_):
        return replace(super().combine(round_), events=(model_kept("For a test"), Event("eliminated", "Removed.")))
'''


@pytest.mark.usefixtures("separate_modules")
def test_a_run_prints_each_kept_model_once_and_nothing_else(cli, tmp_path):
    (tmp_path / "keeps.py").write_text(KEEPS_THE_MODEL, encoding="utf-8")
    rounds = ("--rounds", "2", "--clients", "6", "--per-round", "3", "--set", "start=scratch")
    result = cli("run", "--defense", "keeps:Keeps", *rounds)
    assert result.status == 0, result.stderr
    for number in (1, 2):
        assert result.stdout.count(f"round {number}: For a test: the global model was kept.") == 1
    assert "Removed." not in result.stdout
    assert result.stderr == ""


IMPORTED = "; print(*({names!r} & set(sys.modules)))"
"""Prints which of some packages have been imported."""


def test_importing_the_command_line_imports_no_heavy_package():
    heavy = {"torch", "numpy", "sklearn", "jinja2", "flwr"}
    result = run_python("import sys, g2uardfl.cli" + IMPORTED.format(names=heavy))
    assert (result.status, result.stdout.strip()) == (0, "")


def test_importing_the_guard_imports_only_torch_and_numpy_and_it_runs_without_the_packages_of_the_command_line():
    others = {"sklearn", "scipy", "jinja2", "flwr", "rich", "typer", "safetensors", "platformdirs"}
    result = run_python(
        f"import sys, g2uardfl; g2uardfl.G2uardFL{IMPORTED.format(names=others)}"
        + """
for name in ("rich", "typer", "jinja2", "safetensors", "platformdirs", "tomli_w", "flwr"):
    sys.modules[name] = None
import numpy as np, tempfile, os, g2uardfl
model = {"w": np.zeros(4, np.float32)}
guard = g2uardfl.G2uardFL()
result = guard.aggregate(model, {i: {"w": np.full(4, i, np.float32)} for i in range(4)})
with tempfile.TemporaryDirectory() as folder:
    guard.save(os.path.join(folder, "state"))
    g2uardfl.G2uardFL.load(os.path.join(folder, "state"))
print(len(result.verdicts))
"""
    )
    assert result.status == 0, result.stderr
    assert result.stdout.split("\n") == ["", "4", ""]
