"""The search for the auto-encoder's settings (`benchmarks/autoencoder_settings.py`)."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import autoencoder_settings
from detectors import Decision
from g2uardfl.core.errors import ConfigError
from g2uardfl.defense.recording import Record


def test_the_ground_truth_itself_has_the_index_1_and_one_cluster_0(digits_record):
    record = Record.load(digits_record)
    attacking = {observation.clients: truth for observation, truth in zip(record.rounds, record.attacking, strict=True)}

    def truth(observation):
        return Decision(attacking[observation.clients].astype(int), attacking[observation.clients])

    def one_cluster(observation):
        return Decision(np.zeros(len(observation.clients)), attacking[observation.clients])

    assert autoencoder_settings.score([record], lambda: truth) == (1.0, 2.0)
    assert autoencoder_settings.score([record], lambda: one_cluster) == (0.0, 1.0)


def test_the_command_prints_a_row_for_each_combination(digits_record, tmp_path, monkeypatch, capsys):
    record, path = Record.load(digits_record), tmp_path / "digits-black_box.npz"
    Record(record.rounds[:4], record.numbers[:4], record.attacking[:4], notes=record.notes).save(path)
    grid = ["hidden_dim=8,16", "pretrain_epochs=2", "cluster_epochs=2", "learning_rate=0.01", "clustering_weight=0.1"]
    monkeypatch.setattr(sys, "argv", ["autoencoder_settings.py", str(path), "--grid", *grid])
    autoencoder_settings.main()
    heading, _, baseline, *rows = capsys.readouterr().out.splitlines()
    assert "digits, clean, iid" in heading
    assert "2-means" in baseline
    assert {row.split(",")[0] for row in rows} == {"| hidden_dim 8", "| hidden_dim 16"}


def test_an_unknown_setting_is_rejected(digits_record, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["autoencoder_settings.py", str(digits_record), "--grid", "no_such_setting=1"])
    with pytest.raises(ConfigError, match="no_such_setting"):
        autoencoder_settings.main()
