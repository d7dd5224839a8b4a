"""Simulations: reproducible from their seed, with attack and defence in the configured rounds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from g2uardfl import aggregators, tasks
from g2uardfl.core.errors import ConfigError
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.run import Simulation
from helpers.runs import without_times

SMALL = RunConfig(
    task="digits", attack="black_box", defense="g2uardfl", rounds=3, start="scratch", seed=4, engine="loop"
)


def finished(config=SMALL, **changes):
    """A finished simulation of `config` with changes."""
    simulation = Simulation(dataclasses.replace(config, **changes))
    simulation.run()
    return simulation


def test_two_runs_of_one_config_are_equal_bit_for_bit():
    first, again = finished(), finished()
    assert [without_times(one) for one in first.records] == [without_times(one) for one in again.records]
    assert all(torch.equal(value, again.weights[name]) for name, value in first.weights.items())


def test_every_defence_faces_the_same_rounds():
    defended, undefended = finished(), finished(defense="fedavg")
    for key in ("selected", "malicious"):
        assert [one[key] for one in defended.records] == [one[key] for one in undefended.records]


def test_without_an_attack_no_client_is_malicious():
    simulation = finished(attack="none", rounds=1)
    assert simulation.malicious(1) == frozenset()
    assert simulation.records[0]["malicious"] == []


def test_malicious_clients_are_honest_outside_the_rounds_of_the_attack():
    attacked = finished(rounds=6, attack_from=3, attack_until=4, pmr=0.5, defense="fedavg")
    honest = finished(rounds=6, attack="none", pmr=0.5, defense="fedavg")
    assert [bool(record["malicious"]) for record in attacked.records] == [False, False, True, True, False, False]
    for first, second in list(zip(attacked.records, honest.records, strict=True))[:2]:
        assert (first["acc"], first["asr"]) == (second["acc"], second["asr"])


def test_the_server_averages_until_the_first_round_of_the_defence():
    simulation = finished(rounds=4, defend_from=3)
    averaged = ["FedAvg" in next(iter(record["verdicts"].values()))["reason"] for record in simulation.records]
    assert averaged == [True, True, False, False]
    assert simulation.defense.round == 2


def test_the_last_round_is_evaluated_also_if_evaluation_is_rarer():
    simulation = finished(rounds=5, evaluate_every=2, defense="fedavg")
    assert [record["acc"] is not None for record in simulation.records] == [False, True, False, True, True]


def test_an_aggregator_object_replaces_the_configured_rule():
    rule = aggregators.create("median")
    replaced = Simulation(dataclasses.replace(SMALL, defense="fedavg"), defense=rule)
    assert replaced.defense is rule
    replaced.run()
    by_name = finished(defense="median")
    assert [without_times(one) for one in replaced.records] == [without_times(one) for one in by_name.records]


def test_strongly_heterogeneous_clients_can_be_simulated():
    assert np.isfinite(finished(alpha=0.05).records[-1]["acc"])


def test_an_unavailable_device_is_rejected():
    with pytest.raises(ConfigError, match="try cpu"):
        Simulation(dataclasses.replace(SMALL, device="cuda:99"))


def test_an_undefended_federation_learns_the_backdoor_of_black_box_attackers():
    simulation = finished(RunConfig(task="digits", attack="black_box", defense="fedavg", rounds=30))
    assert simulation.start_scores["asr"] < 0.05
    assert simulation.records[-1]["asr"] > 0.5
    assert simulation.records[-1]["acc"] > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["workers", "batched"])
def test_every_engine_has_the_result_of_the_loop(engine):
    plain, other = (finished(defense="fedavg", alpha=0.5, workers=2, engine=name) for name in ("loop", engine))
    for name, value in plain.weights.items():
        torch.testing.assert_close(other.weights[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rounds", "expected"), [(10, "LoopEngine"), (100_000, "WorkerEngine")])
def test_the_engine_is_chosen_by_the_work_of_the_whole_run(rounds, expected):
    engine = Simulation(dataclasses.replace(SMALL, rounds=rounds, workers=2, engine="auto")).engine
    try:
        assert type(engine).__name__ == expected
    finally:
        engine.close()


def test_a_limit_of_samples_holds_for_every_set_and_does_not_depend_on_the_seed():
    runs = [
        Simulation(RunConfig(sample_limit=100, clients=5, per_round=2, start="scratch", seed=seed)) for seed in (0, 1)
    ]
    for run in runs:
        run.prepare()
    first, second = (run.task for run in runs)
    for part in ("train", "test", "backdoor_train", "backdoor_test"):
        assert len(getattr(first, part)) == 100
        assert torch.equal(getattr(first, part).x, getattr(second, part).x)
    assert sum(runs[0].samples.clients.count(client) for client in range(5)) == 100
    whole = {image.numpy().tobytes() for image in tasks.create("digits").train.x}
    assert {image.numpy().tobytes() for image in first.train.x} <= whole
