"""The report of a round in `rounds.jsonl`: note, events and the seconds of each stage."""

from __future__ import annotations

import json
import logging

import pytest

from g2uardfl.defense.recording import RoundRecorder
from g2uardfl.report.page import render
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.directory import FinishedRun, RunDirectory
from g2uardfl.simulation.run import Simulation

STAGES = ["reading", "observation", "construction", "clustering", "filtering", "elimination", "building the model"]
SHORT = {"task": "digits", "attack": "black_box", "engine": "loop", "start": "scratch"}


@pytest.fixture(scope="module")
def rolled_back(tmp_path_factory):
    """A run in which the guard starts with a model under attack, so that it rolls the model back."""
    folder = tmp_path_factory.mktemp("run")
    settings = {"task": "digits", "task_settings": {"wrong_labels": 0.15}, "attack": "black_box", "engine": "loop"}
    config = RunConfig(**settings, defense="g2uardfl", rounds=30, evaluate_every=30, defend_from=15, seed=7)
    Simulation(config).run([RunDirectory(folder)])
    return FinishedRun(folder)


def rollbacks(run):
    """The number of the round and the event of each rollback."""
    events = ((record["round"], event) for record in run.rounds for event in record["events"])
    return [(number, event) for number, event in events if event["kind"] == "rolled_back"]


def test_a_rollback_is_recorded_with_the_round_that_was_restored(rolled_back):
    assert rollbacks(rolled_back)
    for number, event in rollbacks(rolled_back):
        assert 15 <= event["round"] < number
        assert f"rolled back to the start of round {event['round']}" in event["message"]
        assert event["message"] in rolled_back.rounds[number - 1]["note"]


def test_a_rollback_is_on_the_report_page(rolled_back):
    page = render([rolled_back], "report")
    assert all(event["message"] in page for _, event in rollbacks(rolled_back))


def test_a_round_has_the_seconds_of_each_stage(rolled_back):
    assert list(rolled_back.rounds[-1]["stage_seconds"]) == STAGES
    assert list(rolled_back.rounds[0]["stage_seconds"]) == ["reading", "decision", "building the model"]
    for record in rolled_back.rounds:
        assert sum(record["stage_seconds"].values()) <= record["seconds"]["defend"]


@pytest.mark.parametrize("defense", ["fedavg", "krum", "foolsgold"])
def test_every_rule_has_the_same_keys(defense):
    simulation = Simulation(RunConfig(**SHORT, defense=defense, rounds=2))
    simulation.run()
    for record in simulation.records:
        assert {"note", "events", "stage_seconds"} <= set(record)
        json.dumps(record)


def test_observers_are_called_with_defended_rounds_only():
    simulation = Simulation(RunConfig(**SHORT, defense="g2uardfl", rounds=5, defend_from=3))
    recorder = RoundRecorder()
    simulation.observers.append(recorder)
    simulation.run()
    assert recorder.record.numbers == [3, 4, 5]
    assert [list(one.clients) for one in recorder.record.rounds] == [one["selected"] for one in simulation.records[2:]]


def test_a_simulation_does_not_warn_of_its_own_fixed_seed(caplog, capsys):
    simulation = Simulation(RunConfig(**SHORT, defense="g2uardfl", rounds=2))
    with caplog.at_level(logging.DEBUG):
        simulation.run()
    assert "fixed seed" not in caplog.text + "".join(capsys.readouterr())
