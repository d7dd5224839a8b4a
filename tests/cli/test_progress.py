"""Progress where there is no terminal: lines, with an estimate."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from g2uardfl.cli import progress, sweep_progress
from g2uardfl.experiments.job import Job
from g2uardfl.simulation.config import RunConfig


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests set: `clock[0]` seconds."""
    seconds = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    return seconds


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=200)


def printed(console):
    return console.file.getvalue().splitlines()


def test_training_to_convergence_prints_a_line_now_and_then_and_at_its_end(clock, console):
    with progress.bar(console) as bars:
        show = progress.PretrainingProgress(bars)
        for step in range(1, 101):
            clock[0] = 2.0 * (step - 1)
            show(step, 100)
    lines = [line for line in printed(console) if line]
    assert lines[0] == "training to convergence: 1 %"
    assert lines[1] == "training to convergence: 7 % (about 3 min left)"  # 12 s for 6 steps, 93 steps left
    assert lines[-1] == "training to convergence: 100 %"
    assert len(lines) < 20


def jobs_of(*rounds):
    return [Job(RunConfig(rounds=number), Path(f"runs/{index}")) for index, number in enumerate(rounds)]


SCORES = {"acc": 0.9, "asr": 0.25}


def test_each_run_of_a_sweep_is_a_line_with_an_estimate_from_the_rounds_of_all_runs(clock, console):
    jobs = jobs_of(2, 4)
    with sweep_progress.SweepProgress(console, jobs) as show:
        for number in (1, 2):
            clock[0] = 10.0 * number
            show.on_round(jobs[0], {"round": number, **SCORES})
        show.on_finished(jobs[0], SCORES)
        show.on_failed(jobs[1], "ValueError: no")
    lines = [line for line in printed(console) if line]
    assert lines[0] == "[1/2] 0: ACC 90.00 %  ASR 25.00 % (about 40 s left)"  # 10 s from the first round to the second
    assert lines[1] == "[2/2] 1: failed: ValueError: no"
    assert show.failures == [(jobs[1], "ValueError: no")]


def test_rounds_that_a_continued_run_has_finished_before_do_not_count_for_the_estimate(clock, console):
    jobs = jobs_of(100, 50)
    with sweep_progress.SweepProgress(console, jobs) as show:
        show.on_round(jobs[0], {"round": 91, **SCORES})
        clock[0] = 9.0
        show.on_round(jobs[0], {"round": 100, **SCORES})
        show.on_finished(jobs[0], SCORES)
    assert "(about 50 s left)" in printed(console)[0]  # 9 rounds in 9 s, and 50 left


def test_a_line_is_printed_after_a_quiet_minute(clock, console):
    jobs = jobs_of(100)
    with sweep_progress.SweepProgress(console, jobs) as show:
        for number in (1, 2, 3):
            clock[0] = 40.0 * number
            show.on_round(jobs[0], {"round": number, "acc": None, "asr": None})
    assert [line.split(" (")[0] for line in printed(console) if line] == ["2 of 100 rounds"]


def test_a_run_that_ended_early_says_why(clock, console):
    jobs = jobs_of(100)
    with sweep_progress.SweepProgress(console, jobs) as show:
        show.on_finished(jobs[0], {**SCORES, "rounds": 7, "ended_early": "the time limit has expired"})
    assert "after round 7, because the time limit has expired" in printed(console)[0]
