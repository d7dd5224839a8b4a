"""The simulator: repeatable from its seed, honest in what it writes."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from g2uardfl import attacks, tasks
from g2uardfl.attacks.base import mix_backdoor
from g2uardfl.core.errors import ConfigError, StateError
from g2uardfl.core.settings import build
from g2uardfl.simulation.config import RunConfig, read_values, with_assignments
from g2uardfl.simulation.directory import FinishedRun, RunDirectory
from g2uardfl.simulation.metrics import defense_score, detection_of
from g2uardfl.simulation.run import Simulation
from g2uardfl.simulation.schedule import Schedule
from g2uardfl.simulation.start import converged_start, fresh_weights, start_key, write_model
from g2uardfl.training.engine import make_engine
from g2uardfl.training.local import Job, Recipe, batches, share_predicted, train_locally
from helpers.runs import without_times

SMALL = RunConfig(task="digits", attack="black_box", defense="g2uardfl", rounds=3, start="scratch", seed=4)


@pytest.fixture(scope="module")
def digits():
    return tasks.create("digits")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("G2UARDFL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def test_digits_are_split_without_overlap_and_their_backdoor_is_a_lit_corner(digits):
    assert (len(digits.train), len(digits.test)) == (1437, 360)
    assert sum(parameter.numel() for parameter in digits.build_model().parameters()) == 38_282
    for backdoored, clean in ((digits.backdoor_train, digits.train), (digits.backdoor_test, digits.test)):
        others = clean.x[clean.y != 0]
        assert len(backdoored) == len(others)
        assert (backdoored.y == 0).all()
        changed = backdoored.x != others
        assert not changed[:, :, :6, :].any()
        assert not changed[:, :, :, :6].any()
        assert (backdoored.x[:, :, 6:, 6:] == 16).all()


def test_batches_use_every_sample_once_an_epoch():
    got = list(batches(10, 4, epochs=2, steps=0, generator=torch.Generator().manual_seed(0)))
    assert [len(batch) for batch in got] == [4, 4, 2, 4, 4, 2]
    assert sorted(torch.cat(got[:3]).tolist()) == sorted(torch.cat(got[3:]).tolist()) == list(range(10))
    assert torch.cat(got[:3]).tolist() != torch.cat(got[3:]).tolist()


def test_local_steps_cut_or_repeat_epochs():
    assert len(list(batches(10, 4, epochs=1, steps=2, generator=torch.Generator()))) == 2
    assert len(list(batches(10, 4, epochs=1, steps=8, generator=torch.Generator()))) == 8


def test_local_training_is_plain_sgd_with_momentum_and_weight_decay(digits):
    weights = fresh_weights(digits, 0)
    samples = digits.train.take(torch.arange(40))
    recipe = Recipe(lr=0.1, batch_size=16, epochs=2, steps=0, momentum=0.9, weight_decay=1e-2)
    trained = train_locally(digits, digits.build_model(), weights, Job(0, samples, recipe, seed=3))

    model = digits.build_model()
    model.load_state_dict(weights)
    velocity = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    for batch in batches(40, 16, 2, 0, torch.Generator().manual_seed(3)):
        loss = torch.nn.functional.cross_entropy(model(samples.x[batch].float() / 16), samples.y[batch])
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                velocity[name] = 0.9 * velocity[name] + parameter.grad + 1e-2 * parameter
                parameter -= 0.1 * velocity[name]
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trained[name], value)


@pytest.mark.parametrize("pdr", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_pdr_is_the_share_of_backdoored_samples(digits, pdr):
    clean = digits.train.take(torch.arange(40))
    mixed = mix_backdoor(digits, clean, pdr, torch.Generator().manual_seed(0))
    lit = (mixed.x[:, :, 6:, 6:] == 16).flatten(1).all(dim=1) & (mixed.y == 0)
    assert len(mixed) == 40
    assert int(lit.sum()) == round(pdr * 40)


def test_a_client_with_two_samples_still_mixes(digits):
    mixed = mix_backdoor(digits, digits.train.take(torch.arange(2)), 0.1, torch.Generator())
    assert len(mixed) == 2
    assert int((mixed.x[:, :, 6:, 6:] == 16).flatten(1).all(dim=1).sum()) == 1


def test_backdoored_samples_repeat_only_when_the_pool_is_used_up(digits):
    pool = len(digits.backdoor_train)
    clean = digits.train.take(torch.arange(pool + 10) % len(digits.train))
    mixed = mix_backdoor(digits, clean, 1.0, torch.Generator().manual_seed(0))
    counts = torch.unique(mixed.x.flatten(1), dim=0, return_counts=True)[1]
    most_in_pool = torch.unique(digits.backdoor_train.x.flatten(1), dim=0, return_counts=True)[1].max()
    assert counts.max() <= 2 * most_in_pool


def test_the_schedule_depends_on_the_seed_alone_and_selects_without_repetition():
    first, again, other = (Schedule.draw(seed, 50, 40, 10, 0.25) for seed in (1, 1, 2))
    assert first.malicious == again.malicious
    assert all((one == two).all() for one, two in zip(first.selected, again.selected, strict=True))
    assert first.malicious != other.malicious
    assert len(first.malicious) == 10
    assert all(len(set(row)) == 10 for row in first.selected)
    shorter = Schedule.draw(1, 20, 40, 10, 0.25).selected
    assert all((one == two).all() for one, two in zip(shorter, first.selected, strict=False))


def test_two_runs_of_one_config_are_identical_and_the_defence_does_not_move_the_schedule(tmp_path):
    records = {}
    for name, config in {
        "first": SMALL, "again": SMALL, "undefended": dataclasses.replace(SMALL, defense="fedavg")
    }.items():  # fmt: skip
        Simulation(config).run([RunDirectory(tmp_path / name)])
        records[name] = FinishedRun(tmp_path / name)
    assert [without_times(r) for r in records["first"].rounds] == [without_times(r) for r in records["again"].rounds]
    assert (tmp_path / "first/model.safetensors").read_bytes() == (tmp_path / "again/model.safetensors").read_bytes()
    for key in ("selected", "malicious"):
        assert [r[key] for r in records["first"].rounds] == [r[key] for r in records["undefended"].rounds]


def test_a_run_directory_holds_what_the_contract_names(tmp_path):
    simulation = Simulation(dataclasses.replace(SMALL, rounds=12))
    summary = simulation.run([RunDirectory(tmp_path / "run")])
    run = FinishedRun(tmp_path / "run")
    assert run.config == simulation.config
    assert json.loads((tmp_path / "run/summary.json").read_text()) == json.loads(json.dumps(summary))
    assert [record["round"] for record in run.rounds] == list(range(1, 13))
    record = run.rounds[-1]
    assert set(record) == {
        *("round", "acc", "asr", "selected", "malicious", "attacking", "verdicts", "seconds"),
        *("note", "events", "stage_seconds"),
    }
    assert set(record["seconds"]) == {"train", "defend", "evaluate"}
    assert set(record["verdicts"]) == {str(client) for client in record["selected"]}
    assert set(record["malicious"]) == set(record["selected"]) & simulation.schedule.malicious
    assert summary["acc_tail_mean"] == pytest.approx(run.rounds[-1]["acc"])
    assert summary["asr_max"] == max(r["asr"] for r in run.rounds)
    assert summary["ds"] == pytest.approx(defense_score(record["acc"], record["asr"]))
    model = simulation.task.build_model()
    model.load_state_dict(load_file(tmp_path / "run/model.safetensors"))
    assert share_predicted(simulation.task, model, simulation.task.test) == record["acc"]
    assert share_predicted(simulation.task, model, simulation.task.backdoor_test) == record["asr"]


def test_a_config_file_is_enough_to_run_again(tmp_path):
    config = dataclasses.replace(SMALL, alpha=math.inf, defense_settings={"recovery_step": 0.25})
    first = Simulation(config)
    (tmp_path / "config.toml").write_text(first.config.to_toml())
    assert RunConfig.from_file(tmp_path / "config.toml") == first.config


def test_nobody_is_malicious_when_nobody_attacks():
    simulation = Simulation(dataclasses.replace(SMALL, attack="none", rounds=1))
    simulation.run()
    assert simulation.malicious(1) == frozenset()
    assert simulation.records[0]["malicious"] == []


def test_evaluation_can_be_rarer_but_the_last_round_is_always_evaluated():
    class Keep:
        def __init__(self):
            self.accuracies = []

        def on_start(self, simulation): ...

        def on_round(self, simulation, record):
            self.accuracies.append(record["acc"])

        def on_end(self, simulation, summary): ...

    keep = Keep()
    Simulation(dataclasses.replace(SMALL, rounds=5, evaluate_every=2, defense="fedavg")).run([keep])
    assert [accuracy is not None for accuracy in keep.accuracies] == [False, True, False, True, True]


def test_an_undefended_federation_learns_the_backdoor_from_black_box_attackers():
    config = RunConfig(task="digits", attack="black_box", defense="fedavg", rounds=30)
    summary = Simulation(config).run()
    assert summary["start"]["asr"] < 0.05
    assert summary["asr"] > 0.5
    assert summary["acc"] > 0.95


@pytest.mark.slow
def test_a_converged_start_is_trained_once_and_found_again(digits, tmp_path, monkeypatch):
    monkeypatch.setenv("G2UARDFL_CACHE", str(tmp_path))
    epochs = []
    first = converged_start(digits, progress=lambda done, total: epochs.append((done, total)))
    assert epochs[-1] == (30, 30)
    assert first.acc > 0.97
    again = converged_start(digits, progress=lambda done, total: pytest.fail("trained again"))
    assert again.was_cached
    assert (again.acc, again.asr) == (first.acc, first.asr)
    assert all(torch.equal(again.weights[name], first.weights[name]) for name in first.weights)


def test_the_start_is_kept_under_a_hash_of_what_it_depends_on(digits):
    other = tasks.create("digits")
    other.train.x[0, 0, 0, 0] += 1
    assert start_key(digits, 0) != start_key(digits, 1)
    assert start_key(digits, 0) != start_key(other, 0)


@pytest.mark.slow
def test_a_read_only_cache_does_not_stop_a_run(digits, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("G2UARDFL_CACHE", str(tmp_path / "file"))
    assert converged_start(digits).path is None


def test_a_run_can_start_from_any_model_file(digits, tmp_path):
    write_model(tmp_path / "m.safetensors", fresh_weights(digits, 9))
    simulation = Simulation(dataclasses.replace(SMALL, start=str(tmp_path / "m.safetensors")))
    simulation.prepare()
    assert all(torch.equal(value, simulation.weights[name]) for name, value in fresh_weights(digits, 9).items())


def test_a_start_model_that_does_not_fit_is_refused(tmp_path):
    write_model(tmp_path / "m.safetensors", {"w": torch.ones(3)})
    with pytest.raises(ConfigError, match="another model"):
        Simulation(dataclasses.replace(SMALL, start=str(tmp_path / "m.safetensors"))).prepare()
    with pytest.raises(ConfigError, match="no model file"):
        Simulation(dataclasses.replace(SMALL, start=str(tmp_path / "none.safetensors"))).prepare()


def test_a_folder_with_a_run_is_not_overwritten_unasked(tmp_path):
    (tmp_path / "rounds.jsonl").write_text("precious\n")
    with pytest.raises(StateError, match="--overwrite"):
        RunDirectory(tmp_path)
    assert (tmp_path / "rounds.jsonl").read_text() == "precious\n"
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "checkpoint/round-00000001").mkdir(parents=True)
    RunDirectory(tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_detection_counts_against_a_hand_worked_round():
    decisions = {"1": "malicious", "2": "held_out", "3": "accepted", "4": "accepted", "5": "invalid", "6": "held_out"}
    verdicts = {client: {"decision": decision} for client, decision in decisions.items()}
    result = detection_of([{"malicious": [1, 2, 3, 5], "verdicts": verdicts}])
    assert result["precision"] == pytest.approx(2 / 3)
    assert result["recall"] == pytest.approx(2 / 3)
    assert result["benign_flagged"] == pytest.approx(1 / 2)
    assert result["malicious_only"]["precision"] == 1.0
    assert result["malicious_only"]["recall"] == pytest.approx(1 / 3)
    assert result["malicious_only"]["f1"] == pytest.approx(0.5)


def test_the_defence_score_is_a_harmonic_mean():
    assert defense_score(0.9784, 0.0998) == pytest.approx(0.9377, abs=1e-4)
    assert defense_score(0.0, 1.0) == 0.0
    assert defense_score(1.0, 0.0) == 1.0


@pytest.mark.parametrize(
    ("assignment", "message"),
    [("rounds", "key=value"), ("server.x=1", "before the dot"), ("rounds=0", "rounds=0"), ("pmr=1.5", "pmr=1.5")],
)
def test_a_wrong_assignment_is_refused(assignment, message):
    with pytest.raises(ConfigError, match=message):
        build(RunConfig, with_assignments({}, [assignment]))


def test_a_broken_config_file_is_one_clear_error(tmp_path):
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_values(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match="cannot read"):
        read_values(tmp_path / "none.toml")
    (tmp_path / "typo.toml").write_text("round = 3")
    with pytest.raises(ConfigError, match="did you mean rounds"):
        RunConfig.from_file(tmp_path / "typo.toml")


def test_more_clients_a_round_than_there_are_is_refused():
    with pytest.raises(ConfigError, match="select fewer"):
        Simulation(dataclasses.replace(SMALL, clients=5, per_round=6))


def test_a_device_that_is_not_here_is_refused():
    with pytest.raises(ConfigError, match="try cpu"):
        Simulation(dataclasses.replace(SMALL, device="cuda:99"))


def test_very_different_clients_can_be_simulated():
    summary = Simulation(dataclasses.replace(SMALL, alpha=0.05)).run()
    assert np.isfinite(summary["acc"])


def test_an_attack_takes_no_settings_it_does_not_know():
    with pytest.raises(ConfigError, match="strength"):
        attacks.create("black_box", strength=2)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["workers", "batched"])
def test_every_engine_runs_the_same_rounds(engine):
    config = dataclasses.replace(SMALL, defense="fedavg", alpha=0.5, workers=2)
    plain, other = (
        Simulation(dataclasses.replace(config, engine="loop")),
        Simulation(dataclasses.replace(config, engine=engine)),
    )
    plain.run()
    other.run()
    for name, value in plain.weights.items():
        torch.testing.assert_close(other.weights[name], value, rtol=1e-4, atol=1e-5)


def test_processes_are_started_only_for_enough_work(digits):
    model = digits.build_model()
    assert type(make_engine("auto", digits, model, samples=1e4)).__name__ == "LoopEngine"
    large = make_engine("auto", digits, model, samples=1e9, workers=1)
    try:
        assert type(large).__name__ == "WorkerEngine"
    finally:
        large.close()


def test_a_run_reports_its_work_to_the_choice_of_engine():
    for rounds, expected in ((10, "LoopEngine"), (100_000, "WorkerEngine")):
        engine = Simulation(dataclasses.replace(SMALL, rounds=rounds, workers=1)).engine
        try:
            assert type(engine).__name__ == expected
        finally:
            engine.close()
