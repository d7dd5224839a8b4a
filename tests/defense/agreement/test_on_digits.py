"""Runs on `digits` in which an earlier default profile let attackers in, or rejected honest clients."""

from __future__ import annotations

import statistics

import pytest

from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.run import Simulation

pytestmark = pytest.mark.slow


def finished(**settings) -> Simulation:
    simulation = Simulation(RunConfig(**{"task": "digits", "defense": "g2uardfl", "engine": "loop", **settings}))
    simulation.run()
    return simulation


@pytest.mark.parametrize("pmr", [0.1, 0.2])
def test_one_or_two_attackers_of_ten_in_every_round_plant_no_backdoor(pmr):
    """All ten clients take part in each round under the same ids."""
    simulation = finished(attack="black_box", clients=10, per_round=10, pmr=pmr, rounds=60, evaluate_every=5)
    assert {len(record["attacking"]) for record in simulation.records} == {round(10 * pmr)}
    # Measured: 0 %.
    assert max(record["asr"] for record in simulation.records if record["asr"] is not None) < 0.1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_attackers_who_first_send_tiny_updates_cause_no_false_positives(seed):
    """An earlier profile learnt the usual norm from the tiny updates of the first round."""
    simulation = finished(attack="adaptive_attackers:TinyFirst(black_box)", rounds=30, evaluate_every=30, seed=seed)
    rejected = [
        verdict["decision"] != "accepted"
        for record in simulation.records
        for client, verdict in record["verdicts"].items()
        if int(client) not in record["attacking"]
    ]
    # Measured: none.
    assert statistics.fmean(rejected) <= 0.02


@pytest.mark.parametrize("seed", [51, 52])
def test_honest_heterogeneous_clients_train_from_scratch_as_well_as_with_fedavg_in_the_end(seed):
    """After 60 rounds they are up to 12 points behind, after 100 rounds at most one."""
    accuracies = {}
    for defense in ("fedavg", "g2uardfl"):
        simulation = finished(defense=defense, start="scratch", alpha=0.5, rounds=100, seed=seed)
        accuracies[defense] = statistics.fmean(record["acc"] for record in simulation.records[-10:])
    assert accuracies["g2uardfl"] >= accuracies["fedavg"] - 0.02
