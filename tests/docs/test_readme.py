"""The README's own commands and code, run as they stand."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.runs import session_cache

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", README, flags=re.S)
    for line in block.splitlines()
    if line.startswith("g2uardfl ")
]


def test_the_python_example_runs_and_says_what_became_of_every_client(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^client-\d (accepted|held_out|malicious|invalid) .*\.$", done.stdout, flags=re.M)) == 8
    assert (tmp_path / "guard.state").exists()


@pytest.mark.slow
def test_the_commands_run_one_after_the_other(tmp_path, tmp_path_factory):
    assert len(COMMANDS) >= 5
    environment = {**os.environ, "G2UARDFL_CACHE": str(session_cache(tmp_path_factory))}
    for command in COMMANDS:
        program, *arguments = shlex.split(command)
        assert program == "g2uardfl"
        done = subprocess.run(
            [sys.executable, "-c", "from g2uardfl.cli import main; main()", *arguments],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stderr}"
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
