"""The initial model of a run: converged, untrained, or from a file."""

from __future__ import annotations

import pytest
import torch

from g2uardfl import tasks
from g2uardfl.core.errors import ConfigError
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.run import Simulation
from g2uardfl.simulation.start import converged_start, fresh_weights, start_key, start_scores, write_model

DIGITS = tasks.create("digits")


def equal(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_a_converged_model_is_trained_once_and_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("G2UARDFL_CACHE", str(tmp_path))
    epochs = []
    first = converged_start(DIGITS, progress=lambda done, total: epochs.append((done, total)))
    assert epochs[-1] == (30, 30)
    assert start_scores(DIGITS, first.weights)[0] > 0.97
    again = converged_start(DIGITS, progress=lambda done, total: pytest.fail("trained again"))
    assert again.was_cached
    assert equal(first.weights, again.weights)


def test_the_cache_key_depends_on_seed_and_data():
    other = tasks.create("digits")
    other.train.x[0, 0, 0, 0] += 1
    assert start_key(DIGITS, 0) != start_key(DIGITS, 1)
    assert start_key(DIGITS, 0) != start_key(other, 0)


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("a file instead of a folder")
    monkeypatch.setenv("G2UARDFL_CACHE", str(tmp_path / "file"))
    assert converged_start(DIGITS).path is None


def test_a_run_can_start_from_a_model_file(tmp_path):
    weights = fresh_weights(DIGITS, 9)
    write_model(tmp_path / "m.safetensors", weights)
    simulation = Simulation(RunConfig(start=str(tmp_path / "m.safetensors")))
    simulation.prepare()
    assert equal(weights, simulation.weights)


def test_a_model_file_of_another_model_is_refused(tmp_path):
    write_model(tmp_path / "m.safetensors", {"w": torch.ones(3)})
    with pytest.raises(ConfigError, match="another model"):
        Simulation(RunConfig(start=str(tmp_path / "m.safetensors"))).prepare()
    with pytest.raises(ConfigError, match="no model file"):
        Simulation(RunConfig(start=str(tmp_path / "none.safetensors"))).prepare()
