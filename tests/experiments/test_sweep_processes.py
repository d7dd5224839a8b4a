"""Sweeps in processes: failures, Ctrl-C."""

from __future__ import annotations

import subprocess

import psutil
import pytest

from g2uardfl.experiments.pool import Pool
from g2uardfl.experiments.sweep import Sweep
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.directory import RunDirectory, resumed
from g2uardfl.simulation.run import Simulation
from helpers.command_line import PROGRAM
from helpers.processes import PATIENCE, running
from helpers.runs import TINY, timeless_rounds, timeless_summary

pytestmark = pytest.mark.slow
RULES = '''
import os, signal
from g2uardfl.aggregators.fedavg import FedAvg


class Raises(FedAvg):
    """Fails in its second round."""

    name = "raises"
    summary = "fails"

    def combine(self, round_):
        if round_.number > 1:
            raise ValueError("no\\nsuch thing")
        return super().combine(round_)


class Dies(FedAvg):
    """Ends its process."""

    name = "dies"
    summary = "ends its process"

    def combine(self, round_):
        os.kill(os.getpid(), signal.SIGKILL)
'''


class Watcher:
    """Records the calls of an observer."""

    def __init__(self):
        self.rounds, self.finished, self.failed = [], {}, {}

    def on_round(self, job, record):
        self.rounds.append((job.path, record["round"]))

    def on_finished(self, job, summary):
        self.finished[job.path] = summary

    def on_failed(self, job, error):
        self.failed[job.path] = error


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A sweep of four runs in two processes: two rules that work, one that raises, one that dies."""
    out = tmp_path_factory.mktemp("sweep")
    (out / "failing_rules.py").write_text(RULES)
    rules = ("fedavg", "failing_rules:Raises", "failing_rules:Dies", "median")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(out))
        configs = [RunConfig(**TINY, defense=rule) for rule in rules]
        sweep, watcher = Sweep(configs, out, jobs=2), Watcher()
        sweep.execute(watcher)
        yield sweep, watcher, Sweep(configs, out)


def test_a_run_of_a_sweep_equals_the_same_run_alone(executed, tmp_path):
    sweep, _, _ = executed
    Simulation(sweep.runs[0].config).run([RunDirectory(tmp_path / "alone")])
    assert timeless_rounds(sweep.runs[0].path) == timeless_rounds(tmp_path / "alone")
    assert timeless_summary(sweep.runs[0].path) == timeless_summary(tmp_path / "alone")


def test_a_run_that_fails_does_not_stop_the_others(executed):
    sweep, watcher, _ = executed
    assert list(watcher.finished) == [sweep.runs[0].path, sweep.runs[3].path]
    assert watcher.failed[sweep.runs[1].path] == "ValueError: no such thing"
    assert "was killed by SIGKILL" in watcher.failed[sweep.runs[2].path]


def test_the_observer_is_called_in_every_round(executed):
    sweep, watcher, _ = executed
    for run in (sweep.runs[0], sweep.runs[3]):
        assert [number for path, number in watcher.rounds if path == run.path] == [1, 2, 3]


def test_finished_runs_are_not_executed_again(executed):
    sweep, _, again = executed
    assert [run.path for run in again.unfinished] == [sweep.runs[1].path, sweep.runs[2].path]


def test_without_jobs_no_process_is_started():
    before = psutil.Process().children()
    Pool([], 2, Watcher()).run()
    assert psutil.Process().children() == before


PRESSES_CTRL_C = '''
import os, signal
from g2uardfl import Callback


class Presser(Callback):
    """Sends SIGINT to all processes of the terminal, once two runs have begun."""

    def on_round(self, simulation, record):
        begun = list(simulation.path.parent.glob("*/rounds.jsonl"))
        if record["round"] >= 3 and len(begun) == 2 and not os.path.exists("pressed"):
            open("pressed", "w").close()
            os.kill(0, signal.SIGINT)
'''
LONG = ("--defense", "fedavg", "median", "--attack", "black_box", "--rounds", "2000", "--clients", "12",
        "--per-round", "4", "--local-steps", "1", "--set", "start=scratch", "checkpoint_every=1000")  # fmt: skip


def test_ctrl_c_stops_after_the_round_and_loses_none(tmp_path):
    (tmp_path / "presses.py").write_text(PRESSES_CTRL_C)
    command = [*PROGRAM, "sweep", *LONG, "--jobs", "2", "--out", "runs", "--log", "presses:Presser"]
    with running(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        _, stderr = process.communicate(timeout=2 * PATIENCE)
    assert process.returncode == 130
    assert "0 of 2 runs are finished" in stderr
    runs = list(tmp_path.glob("runs/*"))
    assert len(runs) == 2
    for run in runs:
        assert len(resumed(run).records) == len(timeless_rounds(run)) > 0
