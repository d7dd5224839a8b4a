"""What a round leaves on disk besides its verdicts: note, events and the seconds of each stage."""

from __future__ import annotations

import json

import pytest

from g2uardfl import aggregators
from g2uardfl.defense.recording import RoundRecorder
from g2uardfl.report.page import render
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.directory import FinishedRun, RunDirectory
from g2uardfl.simulation.run import Simulation

STAGES = ["reading", "observation", "construction", "clustering", "filtering", "elimination", "building the model"]
SHORT = {"task": "digits", "attack": "black_box", "engine": "loop", "start": "scratch"}


@pytest.fixture(scope="module")
def rolled_back(tmp_path_factory):
    """A run whose guard starts over a model under attack, so that it has something to undo."""
    folder = tmp_path_factory.mktemp("run")
    config = RunConfig(
        task="digits", attack="black_box", defense="g2uardfl", rounds=30, defend_from=15, seed=3, engine="loop"
    )
    Simulation(config).run([RunDirectory(folder, overwrite=True)])
    return FinishedRun(folder)


def test_a_rollback_is_in_the_run_files_with_the_number_of_the_round(rolled_back):
    events = [(record["round"], event) for record in rolled_back.rounds for event in record["events"]]
    found = [(number, event) for number, event in events if event["kind"] == "rolled_back"]
    assert found
    for number, event in found:
        assert 15 <= event["round"] < number
        assert f"rolled back to the start of round {event['round']}" in event["message"]
        assert event["message"] in rolled_back.rounds[number - 1]["note"]


def test_a_rollback_is_on_the_report_page(rolled_back):
    messages = {
        event["message"]
        for record in rolled_back.rounds
        for event in record["events"]
        if event["kind"] == "rolled_back"
    }
    page = render([rolled_back], "report")
    assert all(message in page for message in messages)


def test_a_defended_round_has_the_seconds_of_each_stage_and_an_undefended_one_those_of_its_path(rolled_back):
    assert list(rolled_back.rounds[-1]["stage_seconds"]) == STAGES
    assert list(rolled_back.rounds[0]["stage_seconds"]) == ["reading", "decision", "building the model"]
    for record in rolled_back.rounds:
        assert sum(record["stage_seconds"].values()) <= record["seconds"]["defend"]


def test_every_rule_writes_the_same_keys():
    for name in ("fedavg", "krum", "foolsgold"):
        simulation = Simulation(RunConfig(**SHORT, defense=name, rounds=2))
        simulation.run()
        for record in simulation.records:
            assert {"note", "events", "stage_seconds"} <= set(record)
            json.dumps(record)


def test_a_rule_of_ones_own_takes_the_place_of_the_named_one():
    rule = aggregators.create("median")
    simulation = Simulation(RunConfig(**SHORT, defense="fedavg", rounds=2), defense=rule)
    assert simulation.defense is rule
    simulation.run()
    reasons = {verdict["reason"] for verdict in simulation.records[-1]["verdicts"].values()}
    named = Simulation(RunConfig(**SHORT, defense="median", rounds=2))
    named.run()
    assert reasons == {verdict["reason"] for verdict in named.records[-1]["verdicts"].values()}


def test_observers_see_the_defended_rounds_alone():
    simulation = Simulation(RunConfig(**SHORT, defense="g2uardfl", rounds=5, defend_from=3))
    recorder = RoundRecorder()
    simulation.observers.append(recorder)
    simulation.run()
    assert recorder.record.numbers == [3, 4, 5]
    assert [list(one.clients) for one in recorder.record.rounds] == [one["selected"] for one in simulation.records[2:]]
