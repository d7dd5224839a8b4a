"""Replaying records: figures against a count by hand, the command, and what goes wrong."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from g2uardfl import aggregators
from g2uardfl.aggregators.base import Verdict
from g2uardfl.core.errors import ConfigError
from g2uardfl.defense.recording import Record
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.recorder import RECORD_FILE, Recorder
from g2uardfl.simulation.replay import replay
from g2uardfl.simulation.run import Simulation

RECORDS = Path(__file__).parents[1] / "records"
ATTACKED = RECORDS / "digits-black_box-alphainf-pmr0.25-clean-seed5.npz"
QUIET = RECORDS / "digits-none-alphainf-pmr0.25-clean-seed5.npz"


class Suspicious(aggregators.find("fedavg")):
    """Refuses clients with an even number."""

    def judge(self, observation):
        return {
            client: Verdict("malicious" if client % 2 == 0 else "accepted", "By its number.")
            for client in observation.clients
        }


def test_figures_are_those_of_a_count_by_hand():
    record = Record.load(ATTACKED)
    result = replay(record, Suspicious())
    pairs = [
        (client % 2 == 0, bool(attacks))
        for observation, truth in zip(record.rounds, record.attacking, strict=True)
        for client, attacks in zip(observation.clients, truth, strict=True)
    ]
    flagged_attackers = sum(flagged and attacks for flagged, attacks in pairs)
    assert result.detection is not None
    assert result.detection.precision == pytest.approx(flagged_attackers / sum(flagged for flagged, _ in pairs))
    assert result.detection.recall == pytest.approx(flagged_attackers / sum(attacks for _, attacks in pairs))
    assert result.refused == pytest.approx(sum(flagged for flagged, _ in pairs) / len(pairs))
    missed = [
        any(attacks and client % 2 for client, attacks in zip(observation.clients, truth, strict=True))
        for observation, truth in zip(record.rounds, record.attacking, strict=True)
    ]
    assert result.attacker_accepted == pytest.approx(sum(missed) / len(missed))


def test_the_default_profile_tells_recorded_attackers_and_the_paper_profile_refuses_more_honest_clients():
    default = replay(Record.load(ATTACKED), aggregators.create("g2uardfl"))
    paper = replay(Record.load(ATTACKED), aggregators.create("g2uardfl", profile="paper"))
    assert default.detection.recall > 0.9
    assert default.detection.precision > 0.8
    assert default.rand_index > 0.7
    assert paper.detection.benign_flagged > 3 * default.detection.benign_flagged
    assert paper.rand_index < default.rand_index


def test_where_nobody_attacks_few_are_refused():
    result = replay(Record.load(QUIET), aggregators.create("g2uardfl"))
    assert result.refused < 0.06
    assert result.attacker_accepted == 0
    assert math.isnan(result.rand_index)


def test_a_record_without_the_truth_says_only_who_would_be_refused():
    record = Record.load(ATTACKED)
    record.attacking = []
    result = replay(record, aggregators.create("g2uardfl"))
    assert result.detection is None
    assert math.isnan(result.attacker_accepted)
    assert 0 < result.refused < 0.5


def test_a_rule_that_cannot_decide_records_is_one_clear_error():
    with pytest.raises(ConfigError, match="krum cannot decide recorded rounds"):
        replay(Record.load(QUIET), aggregators.create("krum"))


def test_a_run_is_recorded_with_the_truth_and_its_replay_decides_the_same(tmp_path):
    settings = {"task": "digits", "attack": "randomized(pgd)", "rounds": 6, "defend_from": 3, "start": "scratch"}
    config = RunConfig(**settings, engine="loop", defense="g2uardfl", defense_settings={"sketch_width": 256})
    simulation = Simulation(config)
    simulation.run([Recorder(tmp_path)])
    record = Record.load(tmp_path / RECORD_FILE)
    defended = simulation.records[2:]
    assert [list(observation.clients) for observation in record.rounds] == [one["selected"] for one in defended]
    for observation, truth, one in zip(record.rounds, record.attacking, defended, strict=True):
        assert {c for c, attacks in zip(observation.clients, truth, strict=True) if attacks} == set(one["attacking"])
    guard = aggregators.create("g2uardfl", sketch_width=256)
    for observation, one in zip(record.rounds, defended, strict=True):
        decisions = {str(client): verdict.decision for client, verdict in guard.judge(observation).items()}
        assert decisions == {client: verdict["decision"] for client, verdict in one["verdicts"].items()}


def test_the_command_prints_a_row_a_record_and_takes_settings():
    program = str(Path(sys.executable).with_name("g2uardfl"))
    command = [program, "replay", str(ATTACKED), str(QUIET), "--set", "least_evidence=20"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("digits-") == 2
    assert any("digits-" in line and line.count("100.00") == 3 for line in done.stdout.splitlines())
    narrow = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "80"}, check=False)
    assert all(one in narrow.stdout for one in (ATTACKED.stem, QUIET.stem, "rounds with an attacker accepted %"))
    wrong = subprocess.run(
        [*command[:-1], "no_such_setting=1"], capture_output=True, text=True, env={**os.environ}, check=False
    )
    assert wrong.returncode == 2
    assert len(wrong.stderr.strip().splitlines()) == 1
    assert "no_such_setting" in wrong.stderr
