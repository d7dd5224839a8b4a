"""The command line, called in this process or in a new one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from g2uardfl.cli import main
from helpers.processes import PATIENCE, running

PROGRAM = [sys.executable, "-c", "from g2uardfl.cli import main; main()"]
"""The command that starts g2uardfl in a new process."""


@dataclass(frozen=True)
class Finished:
    """The result of a command."""

    status: int
    stdout: str
    stderr: str


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Finished]:
    """Runs g2uardfl in this process, in the folder `tmp_path`, on a terminal with 200 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("G2UARDFL_DEBUG", "")  # restored after a test of --debug
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(*arguments: object) -> Finished:
        monkeypatch.setattr(sys, "argv", ["g2uardfl", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Finished(int(ended.value.code or 0), *capsys.readouterr())

    return call


def run_process(command: list[str], folder: Path | None = None) -> Finished:
    """Run a command in a new process and wait for its end."""
    environment = {**os.environ, "COLUMNS": "200"}
    with running(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        stdout, stderr = process.communicate(timeout=10 * PATIENCE)
    return Finished(process.returncode, stdout, stderr)


def run_python(code: str) -> Finished:
    """Run Python code in a new process and wait for its end."""
    return run_process([sys.executable, "-c", code])
