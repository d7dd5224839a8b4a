"""The command line, as a person uses it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import g2uardfl
from helpers.runs import timeless_rounds

PROGRAM = [sys.executable, "-c", "from g2uardfl.cli import main; main()"]


@pytest.fixture
def cli(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("G2UARDFL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )

    return call


def test_the_version_is_printed(cli):
    assert cli("--version").stdout.strip() == f"g2uardfl {g2uardfl.__version__}"


@pytest.mark.parametrize(
    "command",
    [[], ["demo"], ["run"], ["report"], ["resume"], ["compare"], ["pretrain"], ["list"], ["data"], ["data", "fetch"]],
)
def test_every_command_has_help(cli, command):
    result = cli(*command, "--help")
    assert result.returncode == 0
    assert "Usage: " in result.stdout


def test_help_needs_no_torch():
    code = (
        "import sys, g2uardfl.cli; heavy = {'torch', 'numpy', 'sklearn', 'plotly', 'flwr'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_importing_the_guard_needs_torch_and_numpy_only():
    code = (
        "import sys, g2uardfl; g2uardfl.G2uardFL;"
        "names = {'sklearn', 'scipy', 'plotly', 'flwr', 'rich', 'typer', 'safetensors', 'platformdirs'};"
        "heavy = names & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_defence_runs_where_only_torch_numpy_and_scikit_learn_are_installed():
    code = """
import sys
for name in ("rich", "typer", "plotly", "safetensors", "platformdirs", "tomli_w", "flwr"):
    sys.modules[name] = None
import numpy as np, tempfile, os, g2uardfl
model = {"w": np.zeros(4, np.float32)}
guard = g2uardfl.G2uardFL()
result = guard.aggregate(model, {i: {"w": np.full(4, i, np.float32)} for i in range(4)})
path = os.path.join(tempfile.mkdtemp(), "state")
guard.save(path); g2uardfl.G2uardFL.load(path)
sys.exit(0 if len(result.verdicts) == 4 else 1)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_demo_measures_both_and_writes_its_report(cli, tmp_path):
    result = cli("demo", "--rounds", "4")
    assert result.returncode == 0, result.stderr
    assert "fedavg" in result.stdout
    assert "g2uardfl" in result.stdout
    fedavg, guard = (
        json.loads((tmp_path / f"runs/demo/{name}/summary.json").read_text()) for name in ("fedavg", "g2uardfl")
    )
    assert fedavg["start"] == guard["start"]
    said = " ".join(result.stdout.split())
    for summary in (fedavg, guard):
        assert f"{100 * summary['asr']:.1f} %" in said
        assert f"{100 * summary['acc']:.1f} %" in said
    page = (tmp_path / "runs/demo/report.html").read_text()
    assert "<script src" not in page
    assert "http" not in re.sub(r"<script>.*?</script>", "", page, flags=re.S)


def test_a_run_writes_a_directory_and_refuses_to_overwrite_it(cli, tmp_path):
    arguments = ("run", "--attack", "black_box", "--defense", "g2uardfl", "--rounds", "2", "--set", "start=scratch")
    assert cli(*arguments).returncode == 0
    folder = tmp_path / "runs/digits-black_box-g2uardfl-0"
    assert {path.name for path in folder.iterdir()} == {
        "config.toml", "rounds.jsonl", "summary.json", "model.safetensors", "report.html", "checkpoint",
    }  # fmt: skip
    again = cli(*arguments)
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    assert cli(*arguments, "--overwrite").returncode == 0
    from_file = cli("run", "--config", str(folder / "config.toml"), "--out", "other")
    assert from_file.returncode == 0, from_file.stderr
    first, second = (timeless_rounds(place) for place in (folder, tmp_path / "other"))
    assert first == second
    assert cli("report", str(folder), "other", "--out", "both.html").returncode == 0
    assert (tmp_path / "both.html").stat().st_size > 100_000
    compared = cli("compare", str(folder), "other")
    assert "other" in compared.stdout
    assert (tmp_path / "compare.html").exists()
    assert "is finished" in cli("resume", "other").stderr
    changed = cli(*arguments, "--pmr", "0.1", "--resume")
    assert changed.returncode == 2
    assert "other settings" in changed.stderr


def test_list_names_what_there_is(cli):
    everything = cli("list").stdout
    assert all(name in everything for name in ("digits", "black_box", "fedavg", "g2uardfl"))
    assert "fedavg" not in cli("list", "tasks").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--task", "nope"], "unknown task 'nope'"),
        (["run", "--attack", "nope"], "unknown attack 'nope'"),
        (["run", "--defense", "nope"], "unknown defense 'nope'"),
        (["run", "--defense", "g2uardfl", "--set", "profil=paper"], "did you mean profile?"),
        (["run", "--rounds", "many"], "--rounds"),
        (["run", "--rounds", "0"], "rounds=0"),
        (["run", "--nonsense"], "--nonsense"),
        (["run", "--set", "x"], "key=value"),
        (["run", "--set", "defence.x=1"], "before the dot"),
        (["run", "--defense", "g2uardfl", "--set", "recovery_step=9"], "recovery_step=9"),
        (["run", "--config", "none.toml"], "cannot read none.toml"),
        (["run", "--model", "huge"], "no model 'huge'"),
        (["report", "nowhere"], "not a run directory"),
        (["list", "things"], "choose tasks, attacks or defenses"),
        (["dmeo"], "dmeo"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(cli, arguments, words):
    result = cli(*arguments)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_debug_shows_the_traceback(cli):
    assert "Traceback" in cli("run", "--task", "nope", "--debug").stderr


def test_an_output_folder_that_cannot_be_written_is_one_line(cli, tmp_path):
    (tmp_path / "file").write_text("")
    result = cli("run", "--rounds", "1", "--set", "start=scratch", "--out", str(Path("file") / "run"))
    assert result.returncode == 2
    assert "choose another --out" in result.stderr


OWN_DEFENSE = '''
from g2uardfl.aggregators.fedavg import FedAvg


class Mine(FedAvg):
    """Somebody else's rule."""

    name = "mine"
    summary = "an average under another name"
'''


def test_a_task_and_a_defence_in_the_current_folder_plug_in_by_their_addresses(cli, tmp_path):
    page = (Path(__file__).parents[2] / "docs/own-task.md").read_text(encoding="utf-8")
    (tmp_path / "vibration.py").write_text(re.search(r"```python\n(.*?)```", page, flags=re.S)[1], encoding="utf-8")
    (tmp_path / "mine.py").write_text(OWN_DEFENSE, encoding="utf-8")
    names = ("--task", "vibration:Vibration", "--defense", "mine:Mine", "--attack", "black_box")
    result = cli("run", *names, "--rounds", "2", "--clients", "12", "--per-round", "4", "--out", "own")
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "own/summary.json").read_text())["rounds"] == 2
