"""The README's own commands and code, run as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from helpers.command_line import cli as cli

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", README, flags=re.S)
    for line in block.splitlines()
    if line.startswith("g2uardfl ")
]


def test_the_python_example_runs_and_says_what_became_of_every_client(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert len(re.findall(r"^client-\d (accepted|held_out|malicious|invalid) .*\.$", printed, flags=re.M)) == 8
    assert (tmp_path / "guard.state").exists()


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
