"""The ablation of the default profile (`benchmarks/ablation.py`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import ablation
from g2uardfl import G2uardFL
from g2uardfl.defense.recording import Record
from g2uardfl.defense.stages import Stage
from helpers.federations import first_model, messages
from helpers.models import flat

pytestmark = pytest.mark.slow

RECALL, _, FALSE_ALARMS = ablation.COLUMNS


@pytest.fixture(scope="module")
def path(digits_record, tmp_path_factory) -> Path:
    """Five recorded rounds under attack."""
    record, path = Record.load(digits_record), tmp_path_factory.mktemp("ablation") / "digits.npz"
    Record(record.rounds[:5], record.numbers[:5], record.attacking[:5]).save(path)
    return path


@pytest.fixture(scope="module")
def figures(path):
    """The figures of each row."""
    return {row: ablation.figures_of(path, settings) for row, settings in ablation.ROWS.items()}


def groups_of(row: str, record: Record) -> list[set[int]]:
    """The labels of the groups in each round."""
    guard = G2uardFL(seed=0, **ablation.ROWS[row])
    return [{verdict.cluster for verdict in guard.judge(one).values()} - {0} for one in record.rounds]


def test_the_first_row_is_the_default_profile(path, figures):
    record, guard, rejected = Record.load(path), G2uardFL(seed=0), []
    for observation, truth in zip(record.rounds, record.attacking, strict=True):
        verdicts = guard.judge(observation)
        rejected += [verdicts[observation.clients[row]].refused for row in np.flatnonzero(truth)]
    assert figures["all"][RECALL] == pytest.approx(np.mean(rejected))


def test_groups_are_found_by_default_and_with_spectral_clustering_but_not_without_them(path, figures):
    record = Record.load(path)
    assert any(groups_of("all", record))
    assert not any(groups_of("without groups", record))
    assert any(groups_of("with spectral clustering", record))
    assert figures["with spectral clustering"][FALSE_ALARMS] > figures["all"][FALSE_ALARMS]


@pytest.mark.parametrize("row", ablation.ROWS)
def test_a_row_changes_only_settings_and_stages_of_its_own(row, figures):
    assert all(0 <= share <= 1 for share in figures[row].values())
    default, changed = G2uardFL(), G2uardFL(**ablation.ROWS[row])
    names = changed.configuration().keys() - {"profile"}
    assert names == default.configuration().keys() - {"profile"}
    different = {name for name in names if changed.configuration()[name] != default.configuration()[name]}
    assert different == ablation.ROWS[row].keys() - {"profile"}
    for part in ("observer", "construction", "clustering", "filtering", "elimination"):
        stage: Stage = getattr(changed, part)
        assert isinstance(stage, type(getattr(default, part)))
    assert bool(different) or row == "all" or changed.profile.startswith("ablation:")


def test_a_forgetful_graph_has_the_submissions_of_one_round(path):
    guard = G2uardFL(profile="ablation:Forgetful")
    for observation in Record.load(path).rounds[:3]:
        guard.judge(observation)
        assert guard.construction.window.clients == list(observation.clients)


def test_without_consensus_the_model_moves_by_the_weighted_mean():
    guard, model = G2uardFL(profile="ablation:PlainMean", seed=0), first_model()
    for number in range(1, 4):
        sent = messages(model, 0, number, range(20, 30))
        result = guard.aggregate(model, sent)
        mean = sum(verdict.weight * (flat(sent[client]) - flat(model)) for client, verdict in result.verdicts.items())
        torch.testing.assert_close(flat(result.weights) - flat(model), mean, rtol=0, atol=1e-6)
        assert mean.norm() > 0.05
        model = result.weights


def test_the_defences_of_the_real_runs_exist():
    command = ablation.__doc__.split("--defense ")[1].replace("\\", "").split()
    assert len(command) == 4
    for defense in command:
        _, *settings = defense.split(",")
        values = dict(one.split("=") for one in settings)
        typed = {name: value if name == "profile" else json.loads(value) for name, value in values.items()}
        assert G2uardFL(**typed).configuration().items() >= typed.items()


def test_the_command_prints_one_row_for_each_variant(path, monkeypatch, capsys):
    rows = ["all", "without groups"]
    monkeypatch.setattr(sys, "argv", ["ablation.py", str(path), "--rows", *rows])
    ablation.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 records"
    assert [line.split("|")[1].strip() for line in lines[4:]] == rows
    assert {line.count("|") for line in lines[2:]} == {8}
