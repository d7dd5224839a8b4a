"""Processes that tests start: they can be interrupted, end with their test, and none is left after the session."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest

MARKER = "G2UARDFL_TEST_SESSIONS"
"""Environment variable with the ids of the test sessions that a process belongs to, the outermost first."""
PATIENCE = 60.0
"""Seconds to wait for something that takes well under a second on an idle machine; only failing tests wait so long."""


@contextmanager
def running(command: Sequence[str | os.PathLike[str]], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start `command` in a session of its own, with SIGINT not ignored; kill it and its descendants on exit."""
    with _sigint_not_ignored():
        started = subprocess.Popen(command, text=True, start_new_session=True, **options)
    with started as process:
        try:
            yield process
        finally:
            family = _family(process.pid) if process.poll() is None else []
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            kill(family)


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kill `processes` and wait until they have ended."""
    processes = list(processes)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    wait_until_ended(processes, PATIENCE)


def wait_until_ended(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until all `processes` have ended, at most `seconds`; return those that have not."""
    deadline = time.monotonic() + seconds
    left = [process for process in processes if alive(process)]
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = [process for process in left if alive(process)]
    return left


def alive(process: psutil.Process) -> bool:
    """Whether a process still runs; one that waits to be reaped by its parent does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class LeftoverProcesses:
    """pytest plugin: kills the processes that a session has left behind, and makes the session fail.

    Every process that the tests start inherits an environment variable with the session's id, which identifies it even
    when its parent has ended. Children without that variable are found by their parent. Each worker of pytest-xdist
    does the same for its own tests. SIGTERM ends the session as Ctrl-C does, so that tests clean up.

    Parameters
    ----------
    grace
        Seconds that processes have to end by themselves.
    """

    def __init__(self, grace: float = 20.0) -> None:
        self.grace = grace
        self.session_id = uuid.uuid4().hex
        self.left: list[str] = []

    def pytest_configure(self) -> None:
        """Mark the environment for the processes that this one starts."""
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        outer = os.environ.get(MARKER)
        os.environ[MARKER] = f"{outer}:{self.session_id}" if outer else self.session_id
        os.environ["SPT_NOENV"] = "1"  # setproctitle (Ray, Flower) must not overwrite the environment

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Collect what a worker of pytest-xdist has found."""
        self.left += getattr(node, "workeroutput", {}).get("processes left behind", [])

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        """Look for processes after all fixtures and workers have ended."""
        yield
        gc.collect()  # engines that nothing refers to any more end their processes
        deadline = time.monotonic() + self.grace
        while self._processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        for _ in range(3):  # a process may start another one just before it is killed
            processes = self._processes()
            self.left += [_description(process) for process in processes]
            kill(processes)
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["processes left behind"] = self.left
        elif self.left and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Print what was found, after everything else."""
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if self.left and reporter is not None and not hasattr(config, "workeroutput"):
            reporter.section("The tests left processes behind, which were killed", red=True, bold=True)
            for line in self.left:
                reporter.write_line(line)

    def _processes(self) -> list[psutil.Process]:
        """The processes of this session that are still alive, without this one and its resource tracker."""
        this = psutil.Process()
        children = this.children()
        ignored = {this, *(child for child in children if _is_resource_tracker(child))}
        found = {process for child in set(children) - ignored for process in [child, *_descendants(child)]}
        for process in psutil.process_iter():
            if self.session_id in _environment(process).get(MARKER, "").split(":"):
                found.add(process)
        return [process for process in found - ignored if alive(process)]


def _family(pid: int) -> list[psutil.Process]:
    """A process and its descendants."""
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return []
    return [process, *_descendants(process)]


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _is_resource_tracker(process: psutil.Process) -> bool:
    """Whether a child of this process is multiprocessing's resource tracker, which ends with this process."""
    try:
        return any("resource_tracker" in argument for argument in process.cmdline())
    except psutil.Error:
        return False


def _environment(process: psutil.Process) -> dict[str, str]:
    """The environment a process was started with; empty for processes of other users."""
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def _description(process: psutil.Process) -> str:
    try:
        command = " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        command = "?"
    test = _environment(process).get("PYTEST_CURRENT_TEST", "unknown")
    return f"{process.pid}: {command[:200]} (started in: {test})"


@contextmanager
def _sigint_not_ignored() -> Iterator[None]:
    """Within this context, new processes do not inherit an ignored SIGINT, as `nohup make &` would pass it on."""
    before = signal.getsignal(signal.SIGINT)
    if before != signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the new process starts with the default action instead
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
