"""The initial model of a run: converged, untrained, or from a file."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from g2uardfl import tasks
from g2uardfl.core.errors import ConfigError
from g2uardfl.simulation.central import CentralTraining
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.run import Simulation
from g2uardfl.simulation.start import converged_start, fresh_weights, start_key, start_scores, write_model
from g2uardfl.tasks.base import Samples

DIGITS = tasks.create("digits")


def equal(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_a_converged_model_is_trained_once_and_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("G2UARDFL_CACHE", str(tmp_path))
    steps = []
    first = converged_start(DIGITS, progress=lambda done, total: steps.append((done, total)))
    total = 30 * (len(DIGITS.train) // DIGITS.defaults.pretrain_batch_size)
    assert steps == [(number, total) for number in range(1, total + 1)]
    assert start_scores(DIGITS, first.weights)[0] > 0.97
    again = converged_start(DIGITS, progress=lambda done, total: pytest.fail("trained again"))
    assert again.was_cached
    assert equal(first.weights, again.weights)


def test_the_cache_key_depends_on_seed_and_data():
    other = tasks.create("digits")
    other.train = Samples(other.train.x + 1, other.train.y)
    assert start_key(DIGITS, 0) != start_key(DIGITS, 1)
    assert start_key(DIGITS, 0) != start_key(other, 0)


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_not_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("a file instead of a folder")
    monkeypatch.setenv("G2UARDFL_CACHE", str(tmp_path / "file"))
    assert converged_start(DIGITS).path is None


def test_a_run_can_start_from_a_model_file(tmp_path):
    weights = fresh_weights(DIGITS, 9)
    write_model(tmp_path / "m.safetensors", weights)
    simulation = Simulation(RunConfig(start=str(tmp_path / "m.safetensors")))
    simulation.prepare()
    assert equal(weights, simulation.weights)


def test_a_model_file_of_another_model_is_rejected(tmp_path):
    write_model(tmp_path / "m.safetensors", {"w": torch.ones(3)})
    with pytest.raises(ConfigError, match="another model"):
        Simulation(RunConfig(start=str(tmp_path / "m.safetensors"))).prepare()
    with pytest.raises(ConfigError, match="no model file"):
        Simulation(RunConfig(start=str(tmp_path / "none.safetensors"))).prepare()


def short_task(optimizer):
    """Digits with a converged model of three epochs."""
    task = tasks.create("digits")
    task.defaults = dataclasses.replace(task.defaults, pretrain_epochs=3, pretrain_optimizer=optimizer)
    return task


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_interrupted_central_training_continues_with_the_same_result(tmp_path, monkeypatch, optimizer):
    monkeypatch.setenv("G2UARDFL_CACHE", str(tmp_path / "whole"))
    whole = converged_start(short_task(optimizer))
    monkeypatch.setenv("G2UARDFL_CACHE", str(tmp_path / "interrupted"))
    monkeypatch.setattr("g2uardfl.simulation.central._SAVE_SECONDS", 0.0)

    def interrupt(done, total):
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        converged_start(short_task(optimizer), progress=interrupt)
    steps = []
    continued = converged_start(short_task(optimizer), progress=lambda done, total: steps.append(done / total))
    assert 1 / 3 < steps[0] < 1 / 3 + 0.05
    assert not continued.was_cached
    assert equal(whole.weights, continued.weights)
    assert [path.suffix for path in (tmp_path / "interrupted/starts").iterdir()] == [".safetensors"]


def test_a_damaged_state_of_central_training_is_ignored(tmp_path):
    task = short_task("sgd")
    first, second = (CentralTraining(task, fresh_weights(task, 0), seed=0, device="cpu") for _ in range(2))
    (tmp_path / "state").write_bytes(b"damaged")
    assert equal(first.run(), second.run(saved=tmp_path / "state"))
