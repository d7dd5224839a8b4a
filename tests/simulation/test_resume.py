"""A run that is stopped, killed or robbed of its disk goes on as if nothing had happened."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from g2uardfl.core.errors import StateError
from g2uardfl.simulation import checkpoint as checkpoints
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.directory import FinishedRun, RunDirectory, resumed
from g2uardfl.simulation.run import Interrupted, Simulation
from g2uardfl.simulation.schedule import Schedule
from helpers.runs import timeless_rounds, timeless_summary

CONFIG = RunConfig(
    task="digits", attack="black_box", defense="g2uardfl", rounds=7, checkpoint_every=2, start="scratch", churn=0.2
)

ARGUMENTS = [
    *("--attack", "black_box", "--defense", "g2uardfl", "--rounds", "7", "--checkpoint-every", "2"),
    *("--start-from", "scratch", "--churn", "0.2"),
]


@pytest.fixture(scope="module")
def whole(all_threads, tmp_path_factory):
    """The run that nobody disturbed."""
    path = tmp_path_factory.mktemp("whole") / "run"
    Simulation(CONFIG).run([RunDirectory(path)])
    return path


def assert_same_result(path, whole):
    assert timeless_rounds(path) == timeless_rounds(whole)
    assert timeless_summary(path) == timeless_summary(whole)
    assert (path / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


class StopAfter(RunDirectory):
    """Asks the run to stop, or breaks it, in a given round."""

    def __init__(self, path, number, error=None):
        super().__init__(path)
        self.number, self.error = number, error

    def on_round(self, simulation, record):
        if record["round"] == self.number:
            if self.error:
                raise self.error
            simulation.stop_asked = True
        super().on_round(simulation, record)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_run_that_was_asked_to_stop_ends_after_the_round_and_goes_on_bit_for_bit(tmp_path, whole, number):
    with pytest.raises(Interrupted, match=f"after round {number}"):
        Simulation(CONFIG).run([StopAfter(tmp_path / "run", number)])
    simulation = resumed(tmp_path / "run")
    assert len(simulation.records) == number
    simulation.run([RunDirectory(tmp_path / "run", resume=True)])
    assert_same_result(tmp_path / "run", whole)


@pytest.mark.parametrize("number", [1, 4, 6])
def test_a_run_that_crashed_goes_on_from_its_last_checkpoint_bit_for_bit(tmp_path, whole, number):
    with pytest.raises(RuntimeError):
        Simulation(CONFIG).run([StopAfter(tmp_path / "run", number, RuntimeError("power cut"))])
    resumed(tmp_path / "run").run([RunDirectory(tmp_path / "run", resume=True)])
    assert_same_result(tmp_path / "run", whole)


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_with_the_same_bytes(tmp_path, whole):
    generator = random.Random(int.from_bytes(os.urandom(4), "big"))
    path = tmp_path / "run"
    command = ["run", *ARGUMENTS, "--out", str(path)]
    program = [sys.executable, "-c", "from g2uardfl.cli import main; main()"]
    kills = 0
    for _ in range(12):
        process = subprocess.Popen([*program, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        lines = len((path / "rounds.jsonl").read_text().splitlines()) if (path / "rounds.jsonl").exists() else 0
        while process.poll() is None and time.monotonic() < deadline and kills < 3:
            now = len((path / "rounds.jsonl").read_text().splitlines()) if (path / "rounds.jsonl").exists() else 0
            if now > lines + generator.randrange(3):
                time.sleep(generator.random() * 0.3)
                process.kill()
                kills += 1
                break
        error = process.communicate(timeout=120)[1]
        if (path / "summary.json").exists():
            break  # it may have been killed while it made its report, when nothing could be lost any more
        assert process.returncode in (-signal.SIGKILL, 2), error
        started = (path / "checkpoint").exists() and any((path / "checkpoint").glob("round-*"))
        command = ["resume", str(path)] if started else [*command, "--overwrite"]
    assert kills >= 1
    assert_same_result(path, whole)


def test_ctrl_c_finishes_the_round_and_says_how_to_go_on(tmp_path, whole):
    path = tmp_path / "run"
    arguments = ["run", *ARGUMENTS, "--out", str(path)]
    program = [sys.executable, "-c", "from g2uardfl.cli import main; main()"]
    process = subprocess.Popen([*program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (path / "rounds.jsonl").exists() or not (path / "rounds.jsonl").read_text():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 130, error
    assert "g2uardfl resume" in error
    again = subprocess.run([*program, *arguments, "--resume"], capture_output=True, text=True, timeout=120, check=False)
    assert again.returncode == 0, again.stderr
    assert_same_result(path, whole)


def test_the_last_two_checkpoints_are_kept_and_a_damaged_one_costs_only_its_rounds(tmp_path, whole):
    path = tmp_path / "run"
    with pytest.raises(RuntimeError):
        Simulation(CONFIG).run([StopAfter(path, 5, RuntimeError("power cut"))])
    kept = sorted(folder.name for folder in (path / "checkpoint").iterdir())
    assert kept == ["round-00000002", "round-00000004"]
    latest = path / "checkpoint/round-00000004/defense.state"
    latest.write_bytes(latest.read_bytes()[:100])
    simulation = resumed(path)
    assert len(simulation.records) == 2
    simulation.run([RunDirectory(path, resume=True)])
    assert_same_result(path, whole)


def test_when_both_checkpoints_are_damaged_that_is_said(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(RuntimeError):
        Simulation(CONFIG).run([StopAfter(path, 5, RuntimeError("power cut"))])
    for folder in (path / "checkpoint").iterdir():
        (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(StateError, match=r"model\.safetensors"):
        resumed(path)


def test_a_config_that_was_changed_is_refused(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(Interrupted):
        Simulation(CONFIG).run([StopAfter(path, 2)])
    text = (path / "config.toml").read_text()
    (path / "config.toml").write_text(text.replace("pmr = 0.25", "pmr = 0.3"))
    with pytest.raises(StateError, match="not the config"):
        resumed(path)
    (path / "config.toml").write_text(text.replace("checkpoint_every = 2", "checkpoint_every = 3"))
    assert len(resumed(path).records) == 2


def test_a_folder_without_a_run_and_a_run_without_a_checkpoint_are_said(tmp_path):
    with pytest.raises(StateError, match=r"no config\.toml"):
        resumed(tmp_path)
    (tmp_path / "config.toml").write_text(CONFIG.to_toml())
    with pytest.raises(StateError, match="no checkpoint yet"):
        resumed(tmp_path)
    with pytest.raises(StateError, match="go on with g2uardfl resume"):
        FinishedRun(tmp_path)


def test_a_full_disk_is_one_clear_line_and_the_run_can_go_on_later(tmp_path, whole, monkeypatch):
    path = tmp_path / "run"
    real = checkpoints.write_state

    def full(place, kind, state):
        if "round-00000004" in str(place):
            raise OSError(28, "No space left on device")
        real(place, kind, state)

    monkeypatch.setattr(checkpoints, "write_state", full)
    with pytest.raises(StateError, match="No space left on device"):
        Simulation(CONFIG).run([RunDirectory(path)])
    monkeypatch.setattr(checkpoints, "write_state", real)
    resumed(path).run([RunDirectory(path, resume=True)])
    assert_same_result(path, whole)


def test_churn_lets_clients_come_and_go_at_some_round():
    rounds, clients = 400, 40
    schedule = Schedule.draw(3, rounds, clients, 10, 0.25, churn=0.5)
    seen = {client: [n for n in range(rounds) if client in schedule.selected[n]] for client in range(clients)}
    late = [client for client, when in seen.items() if when and when[0] > 60]
    gone = [client for client, when in seen.items() if when and when[-1] < rounds - 60]
    assert len(late) >= 3
    assert len(gone) >= 3
    assert len(set(late) | set(gone)) <= 20
    assert all(len(when) > 60 for client, when in seen.items() if client not in late + gone)
    still = Schedule.draw(3, rounds, clients, 10, 0.25)
    assert all(min(when) < 60 and max(when) > rounds - 60 for when in _appearances(still, clients))


def _appearances(schedule, clients):
    return [[n for n, row in enumerate(schedule.selected) if client in row] for client in range(clients)]


def test_churn_never_leaves_a_round_without_clients():
    schedule = Schedule.draw(0, 50, 5, 5, 0.2, churn=1.0)
    assert all(1 <= len(row) <= 5 for row in schedule.selected)
    assert all(len(np.unique(row)) == len(row) for row in schedule.selected)


def test_malicious_clients_are_honest_outside_the_rounds_of_the_attack():
    config = dataclasses.replace(CONFIG, rounds=6, attack_from=3, attack_until=4, pmr=0.5, defense="fedavg", churn=0.0)
    attacked, honest = Simulation(config), Simulation(dataclasses.replace(config, attack="none"))
    attacked.run()
    honest.run()
    assert [bool(record["malicious"]) for record in attacked.records] == [False, False, True, True, False, False]
    same = [
        first["acc"] == second["acc"] and first["asr"] == second["asr"]
        for first, second in zip(attacked.records, honest.records, strict=True)
    ]
    assert same[:2] == [True, True]


def test_the_defence_begins_when_it_is_told_to():
    simulation = Simulation(dataclasses.replace(CONFIG, rounds=4, defend_from=3))
    simulation.run()
    decided = ["FedAvg" in next(iter(record["verdicts"].values()))["reason"] for record in simulation.records]
    assert decided == [True, True, False, False]
    assert simulation.defense.round == 2
