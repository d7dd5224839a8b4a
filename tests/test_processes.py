"""The session-wide check for processes that tests leave behind, and the helper that starts processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from helpers.processes import PATIENCE, alive, running

CONFTEST = """
from helpers.processes import LeftoverProcesses

def pytest_configure(config):
    config.pluginmanager.register(LeftoverProcesses(grace=0.5))
"""

LEAVES_A_PROCESS = """
import subprocess, sys

SLEEP = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(1000)"]

def test_leaves_a_child():
    with open("pids", "ab") as pids:
        subprocess.Popen(SLEEP, stdout=pids)

def test_leaves_a_process_whose_parent_has_ended():
    with open("pids", "ab") as pids:
        parent = f"import subprocess; subprocess.Popen({SLEEP!r}, start_new_session=True)"
        subprocess.run([sys.executable, "-c", parent], stdout=pids, check=True)

def test_leaves_a_child_with_an_empty_environment():
    with open("pids", "ab") as pids:
        subprocess.Popen(SLEEP, stdout=pids, env={})
"""

LEAVES_NOTHING = """
import subprocess, sys
from multiprocessing import resource_tracker

def test_waits_for_its_process():
    resource_tracker.ensure_running()
    subprocess.run([sys.executable, "-c", ""], check=True)
"""

WAITS = """
import subprocess, sys, time

def test_waits_for_a_long_time():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    print(f"pid={process.pid}", flush=True)
    time.sleep(1000)
"""


alone_and_in_parallel = pytest.mark.parametrize(
    "arguments",
    [pytest.param((), id="alone"), pytest.param(("-p", "xdist", "-n", "2"), id="in-parallel", marks=pytest.mark.slow)],
)


def suite(folder: Path, test: str, *arguments: str) -> list[str]:
    """Write a test suite that has the check; return the command that runs it."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_suite.py").write_text(test)
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]


def has_ended(pid: int) -> bool:
    try:
        return not alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def environment():
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@alone_and_in_parallel
def test_a_session_that_leaves_processes_behind_kills_them_and_fails(tmp_path, environment, arguments):
    command = suite(tmp_path, LEAVES_A_PROCESS, *arguments)
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    left = (tmp_path / "pids").read_text().split()
    assert "3 passed" in done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert len(left) == 3
    assert all(has_ended(int(pid)) for pid in left)
    message = done.stdout.partition("left processes behind, which were killed")[2]
    assert "test_suite.py::test_leaves_a_child (call)" in message
    assert "test_suite.py::test_leaves_a_process_whose_parent_has_ended (call)" in message


@alone_and_in_parallel
def test_a_session_that_leaves_nothing_behind_passes(tmp_path, environment, arguments):
    command = suite(tmp_path, LEAVES_NOTHING, *arguments)
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == pytest.ExitCode.OK, done.stdout
    assert "left processes behind" not in done.stdout


def test_a_terminated_session_ends_the_processes_of_its_tests(tmp_path, environment):
    command = suite(tmp_path, WAITS, "-s")
    with running(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as session:
        pid = next(int(found[1]) for line in session.stdout if (found := re.search(r"pid=(\d+)", line)))
        session.send_signal(signal.SIGTERM)
        output = session.communicate(timeout=PATIENCE)[0]
        assert session.returncode == pytest.ExitCode.INTERRUPTED
        assert "left processes behind" in output
        assert has_ended(pid)


@pytest.fixture
def sigint_ignored():
    """As under `nohup` or in a background job of a shell."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint_ignored")
def test_a_process_can_be_interrupted_even_if_this_one_ignores_interrupts():
    program = "import time; print(flush=True); time.sleep(1000)"
    with running([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in process.communicate(timeout=PATIENCE)[1]
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_a_process_and_its_children_end_with_the_test_that_started_them():
    program = (
        "import os, subprocess, sys, time;"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], start_new_session=True);"
        "print(os.getpid(), child.pid, flush=True); time.sleep(1000)"
    )

    def fail() -> None:
        with running([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
            started.extend(int(pid) for pid in process.stdout.readline().split())
            raise ZeroDivisionError

    started: list[int] = []
    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(started) == 2
    assert all(has_ended(pid) for pid in started)
