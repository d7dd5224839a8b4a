"""The commands and code of the README, run unchanged."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from g2uardfl import G2uardFL
from g2uardfl.report.page import svg
from helpers.command_line import cli as cli

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", README, flags=re.S)
    for line in block.splitlines()
    if line.startswith("g2uardfl ")
]


CODE = re.findall(r"```python\n(.*?)```", README, flags=re.S)
sys.path.insert(0, str(ROOT / "docs"))
try:
    import headline
finally:
    sys.path.pop(0)


def test_the_python_example_runs_and_prints_a_verdict_on_every_client(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    weights = {"fc.weight": np.zeros((3, 4), np.float32), "fc.bias": np.zeros(3, np.float32)}
    clients = {
        f"client-{i}": {
            name: array + rng.normal(size=array.shape).astype(np.float32) for name, array in weights.items()
        }
        for i in range(8)
    }
    monkeypatch.chdir(tmp_path)
    exec(compile(CODE[0], "README.md", "exec"), {"global_weights": weights, "client_weights": clients})
    printed = capsys.readouterr().out
    assert len(re.findall(r"^client-\d (accepted|held_out|malicious|invalid) .*\.$", printed, flags=re.M)) == 8
    assert G2uardFL.load(tmp_path / "guard.state").profile == "default"


def test_the_flower_example_makes_a_strategy(tmp_path, monkeypatch):
    pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")
    monkeypatch.chdir(tmp_path)
    values: dict[str, Any] = {}
    exec(compile(CODE[1], "README.md", "exec"), values)
    assert values["strategy"].min_train_nodes == 10


def test_the_headline_table_and_figure_are_those_of_the_committed_results():
    rows = headline.rows()
    assert headline.readme(README, rows) == README
    assert README.count(headline.table(rows)) == 1
    assert headline.FIGURE.read_text(encoding="utf-8") == svg(headline.figure(rows), is_themed=True)


def test_the_headline_has_the_mean_of_a_file_written_by_hand(tmp_path, monkeypatch):
    lines = ["defense,attack,profile,rounds,asr,acc,benign_refused"]
    lines += ["FLAME,Black-box,,200,80,99,10", "FLAME,Black-box,,200,90,98,30", "Krum,Black-box,,200,1,1,1"]
    for name in ("rules", "robustness"):
        (tmp_path / f"{name}.csv").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setattr(headline, "RESULTS", tmp_path)
    table = headline.table(headline.rows())
    assert "| FLAME | 85 | not run | 98.5 | 20.0 | 200 |\n" in table
    assert "| Multi-Krum | not run | not run | not run | not run |  |\n" in table


@pytest.mark.slow
def test_the_commands_run_one_after_the_other(cli, tmp_path):
    assert len(COMMANDS) >= 5
    for command in COMMANDS:
        program, *arguments = shlex.split(command)
        assert program == "g2uardfl"
        done = cli(*arguments)
        assert done.status == 0, f"{command}\n{done.stderr}"
        assert done.stdout
    assert (tmp_path / "runs/both.html").exists()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_make_targets_that_a_page_names_exist(page):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = re.findall(r"^make (\w+)", (ROOT / page).read_text(encoding="utf-8"), flags=re.M)
    assert {"demo", "test"} <= set(named)
    assert all(re.search(rf"^{name}:", makefile, flags=re.M) for name in named)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_page_that_a_page_links_to_exists(page):
    for link in re.findall(r"\]\((?!http)([^)#]+)", (ROOT / page).read_text(encoding="utf-8")):
        assert (ROOT / link).exists(), link
