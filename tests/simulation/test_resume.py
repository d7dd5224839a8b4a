"""Interrupted runs: after a stop, a crash, a kill or a full disk, a resumed run has the same result."""

from __future__ import annotations

import random
import signal
import sys

import pytest

from g2uardfl.core.errors import StateError
from g2uardfl.core.state_files import SavedState, read_state, write_state
from g2uardfl.simulation import checkpoint as checkpoints
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.directory import FinishedRun, RunDirectory, resumed
from g2uardfl.simulation.run import Interrupted, Simulation
from helpers.command_line import cli as cli
from helpers.command_line import run_process
from helpers.runs import timeless_rounds, timeless_summary

CONFIG = RunConfig(
    task="digits", attack="black_box", defense="g2uardfl", rounds=7, checkpoint_every=2, start="scratch", churn=0.2
)

RUN = [
    *("run", "--attack", "black_box", "--defense", "g2uardfl", "--rounds", "7", "--checkpoint-every", "2"),
    *("--start-from", "scratch", "--churn", "0.2", "--out", "run"),
]
"""The command of the same run."""

SIGNAL_ITSELF = """
import os, signal, sys

operations, signal_number = map(int, sys.argv[1:3])
del sys.argv[1:3]

def counted(operation):
    def call(*arguments):
        global operations
        operations -= 1
        if operations == 0:
            os.kill(os.getpid(), signal_number)
        return operation(*arguments)
    return call

for name in ("fsync", "replace", "rename"):
    setattr(os, name, counted(getattr(os, name)))

from g2uardfl.cli import main
main()
"""
"""Runs g2uardfl and sends a signal to itself before a given file operation."""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("uninterrupted") / "run"
    Simulation(CONFIG).run([RunDirectory(path)])
    return path


def assert_same_result(path, expected):
    assert timeless_rounds(path) == timeless_rounds(expected)
    assert timeless_summary(path) == timeless_summary(expected)
    assert (path / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()


class InterruptedDirectory(RunDirectory):
    """Stops the run, or raises `error`, in round `number`."""

    def __init__(self, path, number, error=None):
        super().__init__(path)
        self.number, self.error = number, error

    def on_round(self, simulation, record):
        if record["round"] == self.number:
            if self.error:
                raise self.error
            simulation.stop_asked = True
        super().on_round(simulation, record)


def crash(path, number):
    """Run until an error in round `number`."""
    with pytest.raises(RuntimeError, match="power cut"):
        Simulation(CONFIG).run([InterruptedDirectory(path, number, RuntimeError("power cut"))])


def signalled(folder, operation, signal_number, *arguments):
    """Run a command that sends a signal to itself before its file operation number `operation`."""
    program = [sys.executable, "-c", SIGNAL_ITSELF, str(operation), str(int(signal_number))]
    return run_process([*program, *arguments], folder)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_stopped_run_ends_after_the_round_and_resumes_bit_for_bit(tmp_path, uninterrupted, number):
    with pytest.raises(Interrupted, match=f"after round {number}"):
        Simulation(CONFIG).run([InterruptedDirectory(tmp_path / "run", number)])
    simulation = resumed(tmp_path / "run")
    assert len(simulation.records) == number
    simulation.run([RunDirectory(tmp_path / "run", resume=True)])
    assert_same_result(tmp_path / "run", uninterrupted)


@pytest.mark.parametrize("number", [1, 4, 6])
def test_a_crashed_run_resumes_from_its_last_checkpoint_bit_for_bit(tmp_path, uninterrupted, number):
    crash(tmp_path / "run", number)
    resumed(tmp_path / "run").run([RunDirectory(tmp_path / "run", resume=True)])
    assert_same_result(tmp_path / "run", uninterrupted)


@pytest.mark.slow
def test_a_run_that_is_killed_between_any_file_operations_has_the_same_result(tmp_path, uninterrupted, cli):
    path = tmp_path / "run"
    assert signalled(tmp_path, 4, signal.SIGKILL, *RUN).status == -signal.SIGKILL
    assert not list((path / "checkpoint").glob("round-*"))
    assert signalled(tmp_path, 16, signal.SIGKILL, *RUN, "--overwrite").status == -signal.SIGKILL
    for operation in (4, 9):
        assert signalled(tmp_path, operation, signal.SIGKILL, "resume", "run").status == -signal.SIGKILL
    finished = cli("resume", "run")
    assert finished.status == 0, finished.stderr
    assert_same_result(path, uninterrupted)


@pytest.mark.slow
def test_ctrl_c_stops_after_the_round_and_prints_how_to_resume(tmp_path, uninterrupted, cli):
    stopped = signalled(tmp_path, 15, signal.SIGINT, *RUN)
    assert stopped.status == 130, stopped.stderr
    assert "g2uardfl resume run" in stopped.stderr
    assert 1 <= len(timeless_rounds(tmp_path / "run")) < 7
    finished = cli(*RUN, "--resume")
    assert finished.status == 0, finished.stderr
    assert_same_result(tmp_path / "run", uninterrupted)


def test_two_checkpoints_are_kept_and_a_damaged_one_is_replaced_by_the_one_before(tmp_path, uninterrupted):
    path = tmp_path / "run"
    crash(path, 5)
    kept = sorted(folder.name for folder in (path / "checkpoint").iterdir())
    assert kept == ["round-00000002.state", "round-00000004.state"]
    latest = path / "checkpoint/round-00000004.state"
    latest.write_bytes(latest.read_bytes()[:100])
    simulation = resumed(path)
    assert len(simulation.records) == 2
    simulation.run([RunDirectory(path, resume=True)])
    assert_same_result(path, uninterrupted)


def test_two_damaged_checkpoints_are_an_error_that_names_the_file(tmp_path):
    crash(tmp_path / "run", 5)
    for file in (tmp_path / "run/checkpoint").iterdir():
        file.write_bytes(b"")
    with pytest.raises(StateError, match=r"round-00000004\.state.*damaged"):
        resumed(tmp_path / "run")


def test_a_flipped_bit_anywhere_in_a_checkpoint_is_detected(tmp_path):
    """Also in the model, whose bytes any value fits."""
    crash(tmp_path, 2)
    (path,) = (tmp_path / "checkpoint").iterdir()
    content, generator = path.read_bytes(), random.Random(5)
    for position in generator.sample(range(len(content)), 50):
        flipped = content[position] ^ 1 << generator.randrange(8)
        path.write_bytes(content[:position] + bytes([flipped]) + content[position + 1 :])
        with pytest.raises(StateError, match="damaged"):
            checkpoints.read_checkpoint(path.parent, CONFIG)


def test_a_checkpoint_of_an_earlier_version_is_an_error_that_says_what_to_do(tmp_path):
    (tmp_path / "round-00000004").mkdir()
    with pytest.raises(StateError, match=r"earlier version.*--overwrite"):
        checkpoints.read_checkpoint(tmp_path, CONFIG)


@pytest.mark.parametrize("missing", ["round", "config", "start", "model", "defense", "attack"])
def test_an_incomplete_checkpoint_is_a_clear_error(tmp_path, missing):
    crash(tmp_path, 2)
    (path,) = (tmp_path / "checkpoint").iterdir()
    state = read_state(path, "checkpoint")
    values = {name: value for name, value in state.values.items() if name != missing}
    write_state(path, "checkpoint", SavedState(values, state.arrays))
    with pytest.raises(StateError, match=f"incomplete .*{missing}"):
        checkpoints.read_checkpoint(path.parent, CONFIG)


def test_a_run_with_a_changed_config_is_not_resumed(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(Interrupted):
        Simulation(CONFIG).run([InterruptedDirectory(path, 2)])
    text = (path / "config.toml").read_text()
    (path / "config.toml").write_text(text.replace("pmr = 0.25", "pmr = 0.3"))
    with pytest.raises(StateError, match="not the config"):
        resumed(path)
    (path / "config.toml").write_text(text.replace("checkpoint_every = 2", "checkpoint_every = 3"))
    assert len(resumed(path).records) == 2


def test_a_folder_without_run_checkpoint_or_summary_is_an_error(tmp_path):
    with pytest.raises(StateError, match=r"no config\.toml"):
        resumed(tmp_path)
    (tmp_path / "config.toml").write_text(CONFIG.to_toml())
    with pytest.raises(StateError, match="no checkpoint yet"):
        resumed(tmp_path)
    with pytest.raises(StateError, match="continue with g2uardfl resume"):
        FinishedRun(tmp_path)


def test_a_full_disk_is_a_clear_error_and_the_run_can_be_resumed(tmp_path, uninterrupted, monkeypatch):
    path = tmp_path / "run"
    write_state = checkpoints.write_state

    def full(place, kind, state):
        if "round-00000004" in str(place):
            raise OSError(28, "No space left on device")
        write_state(place, kind, state)

    monkeypatch.setattr(checkpoints, "write_state", full)
    with pytest.raises(StateError, match="No space left on device"):
        Simulation(CONFIG).run([RunDirectory(path)])
    monkeypatch.setattr(checkpoints, "write_state", write_state)
    resumed(path).run([RunDirectory(path, resume=True)])
    assert_same_result(path, uninterrupted)
