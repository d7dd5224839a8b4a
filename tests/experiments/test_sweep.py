"""Sweeps: the directories of runs, and what happens in each of them."""

from __future__ import annotations

import dataclasses
import json

import pytest

from g2uardfl.core.errors import ConfigError
from g2uardfl.experiments.job import EachRound, Job
from g2uardfl.experiments.sweep import Sweep, plan
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.run import Interrupted, Simulation
from helpers.runs import TINY, timeless_rounds


def names(configs, out):
    return [path.name for path, _ in plan(configs, out)]


def test_directories_are_named_by_what_differs_and_a_hash(tmp_path):
    paper = {"defense": "g2uardfl", "defense_settings": {"profile": "paper"}}
    configs = [RunConfig(seed=seed, **settings) for seed in (0, 1) for settings in ({"defense": "fedavg"}, paper)]
    found = names(configs, tmp_path)
    assert [name[:-9] for name in found] == [
        f"{rule}-seed={seed}" for seed in (0, 1) for rule in ("fedavg", "g2uardfl_paper")
    ]
    hashes = [name[-8:] for name in found]
    assert len(set(hashes)) == 4
    assert all(set(one) <= set("0123456789abcdef") for one in hashes)


def test_a_run_is_found_under_the_name_an_earlier_grid_gave_it(tmp_path):
    ((old, _),) = plan([RunConfig(**TINY)], tmp_path)
    old.mkdir()
    assert old.name.startswith("black_box-fedavg-")
    found = [path for path, _ in plan([RunConfig(**TINY, seed=1), RunConfig(**TINY)], tmp_path)]
    assert found[1] == old
    assert found[0].name.startswith("seed=1-")


def test_the_hash_depends_on_every_setting_but_not_on_the_machine(tmp_path):
    first, second, third = (
        plan([RunConfig(**TINY, **more)], tmp_path)[0][0] for more in ({}, {"pdr": 0.4}, {"checkpoint_every": 3})
    )
    assert first != second
    assert first == third


@pytest.mark.parametrize("own", [{}, {"seed": 1}])
def test_runs_that_differ_in_the_seed_have_the_hashes_they_have_alone(tmp_path, own):
    configs = [RunConfig(**TINY, defense="g2uardfl", defense_settings=own, seed=seed) for seed in (0, 1)]
    together = [path.name[-8:] for path, _ in plan(configs, tmp_path)]
    assert together == [path.name[-8:] for config in configs for path, _ in plan([config], tmp_path)]


def test_repeated_configs_are_one_run(tmp_path):
    sweep = Sweep([RunConfig(), RunConfig(), RunConfig(pmr=0.25)], tmp_path)
    assert len(sweep.runs) == 1
    assert sweep.paths == [sweep.runs[0].path] * 3


def test_a_config_that_cannot_be_run_is_rejected_before_anything_starts(tmp_path):
    with pytest.raises(ConfigError, match="krum against none: unknown setting 'malicious'"):
        plan([RunConfig(), RunConfig(defense="krum", defense_settings={"malicious": 1})], tmp_path)


def job_in(tmp_path, **options):
    config = Simulation(RunConfig(**TINY, checkpoint_every=1)).config
    return Job(config, tmp_path / "run", **options)


def test_a_stopped_run_continues_with_the_same_result(tmp_path):
    job = job_in(tmp_path)
    with pytest.raises(Interrupted):
        job.execute([EachRound(lambda record: record["round"] == 2)])
    seen = []
    job.execute([EachRound(lambda record: seen.append(record["round"]) or False)])
    assert seen == [3]
    whole = dataclasses.replace(job, path=tmp_path / "whole")
    whole.execute()
    assert timeless_rounds(job.path) == timeless_rounds(whole.path)


def test_a_run_without_a_readable_checkpoint_starts_again(tmp_path):
    job = job_in(tmp_path)
    with pytest.raises(Interrupted):
        job.execute([EachRound(lambda record: record["round"] == 2)])
    for path in (job.path / "checkpoint").iterdir():
        path.write_bytes(b"damaged")
    assert job.execute()["rounds"] == 3


def test_a_run_ends_after_its_time_limit_with_a_summary_that_says_so(tmp_path):
    job = job_in(tmp_path, time_limit=0.0)
    assert job.execute()["rounds"] == 1
    summary = json.loads((job.path / "summary.json").read_text())
    assert summary["ended_early"] == "the time limit has expired"
    assert len(timeless_rounds(job.path)) == 1


def test_the_last_round_of_a_run_that_ends_early_is_an_evaluated_one(tmp_path):
    job = job_in(tmp_path, time_limit=0.0)
    job = dataclasses.replace(job, config=dataclasses.replace(job.config, evaluate_every=2))
    summary = job.execute()
    assert summary["rounds"] == 2
    assert summary["acc"] is not None


def test_a_record_is_written_of_each_run_on_request(tmp_path):
    job_in(tmp_path, record=True).execute()
    assert (tmp_path / "run/record.npz").exists()


def test_the_converged_model_is_trained_before_the_runs_start(tmp_path, monkeypatch):
    monkeypatch.setenv("G2UARDFL_CACHE", str(tmp_path / "cache"))
    trained = []
    monkeypatch.setattr("g2uardfl.experiments.sweep.converged_start", lambda task, **_: trained.append(task.name))
    tiny = {**TINY, "start": "converged"}
    Sweep([RunConfig(**tiny), RunConfig(**tiny, seed=1), RunConfig(**TINY)], tmp_path).prepare()
    assert trained == ["digits"]
