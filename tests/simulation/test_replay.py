"""Replays of records: they equal what happened on every task, their figures, and the command."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from g2uardfl import G2uardFL, aggregators
from g2uardfl.aggregators.base import Aggregator, Outcome, Verdict
from g2uardfl.cli import main
from g2uardfl.core.errors import ConfigError
from g2uardfl.defense.observation import Observation
from g2uardfl.defense.recording import Record, without
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.recorder import RECORD_FILE, Recorder
from g2uardfl.simulation.replay import create_for, replay, with_recorded_settings
from g2uardfl.simulation.run import Simulation

TASKS = [
    ("digits", 4, "default"),
    ("digits", 4, "paper"),
    ("mnist", 4, "paper"),
    pytest.param("sentiment140", 2, "paper", marks=pytest.mark.slow),
    pytest.param("cifar10", 2, "default", marks=pytest.mark.slow),
    pytest.param("reddit", 2, "default", marks=pytest.mark.slow),
]
"""Tasks, rounds and profiles: two rounds of a large model, and four of a small one."""
SMALLEST_MODELS = {"mnist": "simplenet", "cifar10": "vgg9"}
SENSITIVE = {"default": {"false_alarm_rate": 0.5}, "paper": {}}
"""Settings with which each profile rejects clients within a few rounds."""
SAMPLES = 50
"""Test samples that are evaluated: these tests do not look at ACC and ASR."""


def recorded_run(folder: Path, **settings) -> tuple[Simulation, Record]:
    """A short run from an untrained model, and its record as read from the file."""
    shape = {"rounds": 4, "clients": 12, "per_round": 8, "pmr": 0.4, "local_steps": 1, "batch_size": 8}
    config = {"attack": "black_box", "defense": "g2uardfl", "start": "scratch", "engine": "loop"}
    values = {**shape, **config, **settings}
    simulation = Simulation(RunConfig(**values, evaluate_every=values["rounds"]))
    task = simulation.task
    task.test, task.backdoor_test = (part.take(torch.arange(SAMPLES)) for part in (task.test, task.backdoor_test))
    simulation.run([Recorder(folder)])
    return simulation, Record.load(folder / RECORD_FILE)


def without_weights(verdicts):
    return {
        client: {name: value for name, value in verdict.items() if name != "weight"}
        for client, verdict in verdicts.items()
        if verdict["decision"] != "invalid"
    }


def assert_same_verdicts(simulation: Simulation, record: Record, guard: G2uardFL):
    """The decisions on the record are, except for weights, those in `rounds.jsonl`; some client is rejected."""
    defended = simulation.records[simulation.config.defend_from - 1 :]
    assert {v["decision"] for one in defended for v in one["verdicts"].values()} & {"malicious", "held_out"}
    assert record.numbers == [one["round"] for one in defended]
    for observation, one in zip(record.rounds, defended, strict=True):
        verdicts = {str(client): asdict(verdict) for client, verdict in guard.judge(observation).items()}
        replayed = {c: {name: value for name, value in v.items() if value is not None} for c, v in verdicts.items()}
        assert replayed == without_weights(json.loads(json.dumps(one["verdicts"])))


@pytest.mark.parametrize(("task", "rounds", "profile"), TASKS)
def test_a_replay_gives_the_verdicts_of_the_run(task, rounds, profile, tmp_path, request):
    data_dir = "" if task == "digits" else str(request.getfixturevalue("real_data"))
    simulation, record = recorded_run(
        tmp_path,
        task=task,
        model=SMALLEST_MODELS.get(task, ""),
        data_dir=data_dir,
        rounds=rounds,
        seed=3,
        defense_settings={"profile": profile, **SENSITIVE[profile]},
    )
    guard = G2uardFL(**with_recorded_settings(record, {}))
    assert guard.configuration() == simulation.defense.configuration()
    assert_same_verdicts(simulation, record, guard)


@pytest.mark.parametrize(
    "settings",
    [
        {"sketch_width": 64, "window": 20, "false_alarm_rate": 0.5, "rollback": False},
        {"profile": "paper", "score_update": "printed", "momentum": "printed", "min_clusters": 3},
    ],
    ids=["default", "paper"],
)
def test_a_replay_gives_the_verdicts_of_a_run_that_is_defended_later_with_other_settings(settings, tmp_path):
    simulation, record = recorded_run(
        tmp_path, attack="randomized(pgd)", rounds=6, defend_from=3, defense_settings=settings
    )
    assert_same_verdicts(simulation, record, G2uardFL(**with_recorded_settings(record, {})))


@pytest.mark.slow
def test_a_replay_gives_the_verdicts_of_a_run_across_a_renewal_of_the_secret(tmp_path):
    settings = {"window": 10, "false_alarm_rate": 0.5, "rollback": False}
    simulation, record = recorded_run(tmp_path, rounds=57, per_round=5, defense_settings=settings)
    assert [int(one["renewals"]) for one in record.rounds][-1] == 1
    assert_same_verdicts(simulation, record, G2uardFL(**with_recorded_settings(record, {})))


def test_a_replay_of_either_profile_is_repeatable_without_recorded_settings(tmp_path):
    _, record = recorded_run(tmp_path, defense="fedavg")
    for profile in ("default", "paper"):
        first, second = (create_for(record, "g2uardfl", {"profile": profile}) for _ in range(2))
        assert first.configuration()["seed"] == 0
        assert [first.judge(one) for one in record.rounds] == [second.judge(one) for one in record.rounds]


def test_a_record_says_who_attacked(tmp_path):
    simulation, record = recorded_run(tmp_path, attack="randomized(pgd)", rounds=6, defend_from=3)
    for observation, truth, one in zip(record.rounds, record.attacking, simulation.records[2:], strict=True):
        assert list(observation.clients) == one["selected"]
        assert {c for c, attacks in zip(observation.clients, truth, strict=True) if attacks} == set(one["attacking"])
    assert record.notes["malicious"] == sorted({c for one in simulation.records[2:] for c in one["malicious"]})


def test_a_run_with_another_rule_can_be_replayed_with_either_profile(tmp_path):
    _, record = recorded_run(tmp_path, defense="fedavg")
    assert with_recorded_settings(record, {}) == {}
    for profile in ("default", "paper"):
        assert replay(record, create_for(record, "g2uardfl", {"profile": profile})).rounds == 4


def test_settings_are_those_of_the_run_unless_another_profile_is_chosen(tmp_path):
    _, record = recorded_run(tmp_path, seed=7, defense_settings={"window": 40, "false_alarm_rate": 0.1})
    recorded = with_recorded_settings(record, {})
    assert (recorded["seed"], recorded["window"], recorded["false_alarm_rate"]) == (7, 40, 0.1)
    assert with_recorded_settings(record, {"window": 50}) == {**recorded, "window": 50}
    assert with_recorded_settings(record, {"profile": "paper"}) == {"seed": 7, "profile": "paper"}


@pytest.mark.parametrize("name", ["sketch_width", "rollback"])
def test_a_setting_without_effect_on_a_record_is_rejected(digits_record, name):
    changed = {"sketch_width": 16, "rollback": False}[name]
    with pytest.raises(ConfigError, match=f"{name} has no effect on recorded rounds"):
        create_for(Record.load(digits_record), "g2uardfl", {name: changed})


class EvenRejecting(aggregators.find("fedavg")):
    """Rejects clients with an even number."""

    def judge(self, observation):
        return {
            client: Verdict("malicious" if client % 2 == 0 else "accepted", "By its number.")
            for client in observation.clients
        }


@pytest.fixture
def attacked(digits_record) -> Record:
    return Record.load(digits_record)


@pytest.mark.slow
def test_figures_equal_a_count_by_hand(attacked):
    result = replay(attacked, EvenRejecting())
    pairs = [
        (client % 2 == 0, bool(attacks))
        for observation, truth in zip(attacked.rounds, attacked.attacking, strict=True)
        for client, attacks in zip(observation.clients, truth, strict=True)
    ]
    flagged_attackers = sum(flagged and attacks for flagged, attacks in pairs)
    assert result.detection is not None
    assert result.detection.precision == pytest.approx(flagged_attackers / sum(flagged for flagged, _ in pairs))
    assert result.detection.recall == pytest.approx(flagged_attackers / sum(attacks for _, attacks in pairs))
    assert result.refused == pytest.approx(sum(flagged for flagged, _ in pairs) / len(pairs))
    missed = [
        any(attacks and client % 2 for client, attacks in zip(observation.clients, truth, strict=True))
        for observation, truth in zip(attacked.rounds, attacked.attacking, strict=True)
    ]
    assert result.attacker_accepted == pytest.approx(sum(missed) / len(missed))


@pytest.mark.slow
def test_the_default_profile_detects_recorded_attackers_with_fewer_false_positives_than_the_papers(attacked):
    default, paper = (replay(attacked, create_for(attacked, "g2uardfl", {"profile": p})) for p in ("default", "paper"))
    assert default.detection.recall > 0.9
    assert default.detection.precision > 0.8
    assert default.rand_index > 0.7
    assert paper.detection.benign_refused > 3 * default.detection.benign_refused
    assert paper.rand_index < default.rand_index


def test_few_clients_are_rejected_where_nobody_attacks(attacked):
    attacked.rounds = [without(one, truth) for one, truth in zip(attacked.rounds, attacked.attacking, strict=True)]
    attacked.attacking = [np.zeros(len(one.clients), dtype=bool) for one in attacked.rounds]
    result = replay(attacked, G2uardFL(seed=0))
    assert result.refused < 0.06
    assert result.attacker_accepted == 0
    assert result.rand_index is None


def test_a_record_without_the_ground_truth_gives_only_the_share_of_rejected_clients(attacked):
    attacked.attacking = []
    result = replay(attacked, G2uardFL(seed=0))
    assert result.detection is None
    assert result.attacker_accepted is None
    assert 0 < result.refused < 0.5


def test_a_rule_that_cannot_decide_records_is_a_clear_error(attacked):
    with pytest.raises(ConfigError, match="krum cannot decide recorded rounds"):
        create_for(attacked, "krum", {})


class Longest(Aggregator):
    """Holds out the update with the largest norm; it decides from its own measurement."""

    name = "longest"
    summary = "holds out the update with the largest norm"

    def combine(self, round_):
        norms = {"norms": round_.updates.norm(dim=1).numpy()}
        observation = Observation(round_.clients, (), norms, {"norms": (0,)})
        verdicts = self.judge(observation)
        shares = np.array([not verdict.refused for verdict in verdicts.values()]) / max(1, len(verdicts) - 1)
        return Outcome(round_.weighted_sum(shares), shares, verdicts, observation=observation)

    def judge(self, observation):
        norms = observation["norms"]
        return {
            client: Verdict("held_out" if norm == norms.max() else "accepted", "By its norm.")
            for client, norm in zip(observation.clients, norms, strict=True)
        }


def test_any_rule_decides_the_record_of_its_run_again(tmp_path, call):
    simulation, record = recorded_run(tmp_path, defense=f"{__name__}:Longest")
    rule = create_for(record, None, {})
    assert type(rule).__name__ == "Longest"
    assert_same_verdicts(simulation, record, rule)
    status, output, errors = call(tmp_path)
    assert (status, errors) == (0, "")
    assert "longest on recorded rounds" in output


def test_a_directory_without_a_record_is_a_clear_error(call, tmp_path):
    status, _, errors = call(tmp_path)
    assert status == 2
    assert "run the experiment again with --record" in errors


def test_a_resumed_run_cannot_be_recorded(tmp_path):
    simulation, _ = recorded_run(tmp_path)
    with pytest.raises(ConfigError, match="--record needs the whole run"):
        Recorder(tmp_path).on_start(simulation)


@pytest.fixture
def call(monkeypatch, capsys):
    """Runs `g2uardfl replay` on a terminal of some width: exit status, output and error output."""

    def run(*arguments: object, columns: int = 200) -> tuple[int, str, str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "argv", ["g2uardfl", "replay", *map(str, arguments)])
        monkeypatch.setattr(sys, "path", [*sys.path])
        with pytest.raises(SystemExit) as ended:
            main()
        output, errors = capsys.readouterr()
        return int(ended.value.code or 0), output, errors

    return run


def figures(output: str) -> list[str]:
    """The cells of the only record, without its name and the seconds."""
    (line,) = (line for line in output.splitlines() if "digits-" in line)
    return [cell.strip() for cell in line.strip("│ ").split("│")][1:-1]


def shown(record: Record, settings) -> list[str]:
    """The cells that a replay with `settings` has to show."""
    result = replay(record, create_for(record, "g2uardfl", settings))
    found = result.detection
    rates = (found.precision, found.recall, found.f1, found.benign_refused, result.refused, result.attacker_accepted)
    return [str(result.rounds), f"{result.rand_index:.2f}", *(f"{100 * rate:.2f}" for rate in rates)]


@pytest.mark.slow
def test_the_command_replays_with_recorded_settings_and_changes_those_it_is_given(call, digits_record, attacked):
    status, output, _ = call(digits_record.parent)
    assert status == 0
    assert figures(output) == shown(attacked, {})
    changed = shown(attacked, {"profile": "paper"})
    assert figures(call(digits_record, "--set", "profile=paper")[1]) == changed != shown(attacked, {})


def test_the_command_switches_to_another_profile(call, digits_record, attacked):
    _, output, _ = call(digits_record, "--set", "profile=paper", "--set", "defense.score_percentile=10")
    assert figures(output) == shown(attacked, {"profile": "paper", "score_percentile": 10})


def test_the_command_prints_a_small_table_for_each_record_on_a_narrow_terminal(call, digits_record, tmp_path):
    other = tmp_path / "other.npz"
    other.write_bytes(digits_record.read_bytes())
    _, output, _ = call(digits_record, other, columns=80)
    assert all(text in output for text in (digits_record.parent.name, "other", "rounds with an attacker accepted %"))
    assert all(len(line) <= 80 for line in output.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "score_percentile=10"], "score_percentile is a setting of profile='paper'"),
        (["--set", "profile=paper", "--set", "window=50"], "window is a setting of profile='default'"),
        (["--set", "no_such_setting=1"], "no_such_setting"),
        (["--defense", "krum"], "krum cannot decide recorded rounds"),
    ],
)
def test_a_setting_or_rule_that_does_not_fit_is_a_one_line_error(call, digits_record, arguments, message):
    status, _, errors = call(digits_record, *arguments)
    assert status == 2
    assert len(errors.strip().splitlines()) == 1
    assert message in errors
