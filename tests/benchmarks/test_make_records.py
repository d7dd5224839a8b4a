"""Records for the benchmarks (`benchmarks/make_records.py`)."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from g2uardfl.defense.profiles import find, names
from g2uardfl.defense.recording import Record
from helpers.rounds import decisions, send, vector
from make_records import Oracle, record


def oracle_that_knows(*attacking: int) -> Oracle:
    oracle = Oracle()
    oracle.simulation = SimpleNamespace(attacking=attacking)
    return oracle


def test_the_oracle_averages_the_clients_that_do_not_attack():
    updates = np.random.default_rng(0).normal(size=(5, 7))
    result = send(oracle_that_knows(1, 4), updates)
    np.testing.assert_allclose(vector(result), updates[[0, 2, 3]].mean(axis=0))
    assert decisions(result) == "amaam"


def test_the_oracle_keeps_the_model_if_everybody_attacks():
    start = np.arange(4.0)
    result = send(oracle_that_knows(0, 1), np.ones((2, 4)), start=start)
    np.testing.assert_array_equal(vector(result), start)


@pytest.mark.parametrize("clean", [True, False])
def test_a_record_holds_all_rounds_with_attackers_and_the_measurements_of_all_profiles(tmp_path, clean):
    settings = {"task": "digits", "attack": "black_box", "rounds": 3, "clients": 12, "per_round": 6, "pmr": 0.4}
    settings |= {"start": "scratch", "engine": "loop", "local_steps": 1, "evaluate_every": 3}
    record(settings, clean, str(tmp_path / "record.npz"))
    found = Record.load(tmp_path / "record.npz")
    assert found.numbers == [1, 2, 3]
    assert found.notes["clean"] is clean
    assert sum(map(np.sum, found.attacking)) > 0
    for observation, truth in zip(found.rounds, found.attacking, strict=True):
        assert len(observation.clients) == len(truth) == 6
        assert set(observation.measured) == set().union(*(find(name).observer.client_axes for name in names()))
