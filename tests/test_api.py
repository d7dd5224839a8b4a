"""`g2uardfl.simulate`: a run from Python."""

from __future__ import annotations

import dataclasses
import inspect
import math

import pytest

import g2uardfl
from g2uardfl.core.errors import ConfigError
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.run import Simulation
from helpers.runs import TINY, without_times


def test_every_setting_of_a_run_is_a_keyword_with_the_same_default():
    keywords = inspect.signature(g2uardfl.simulate).parameters
    machine = {"checkpoint_every"}  # without a run directory there are no checkpoints
    for item in dataclasses.fields(RunConfig):
        if item.name in machine:
            continue
        default = None if item.default is dataclasses.MISSING else item.default
        assert keywords[item.name].default == default, item.name


def test_a_run_has_the_records_summary_and_weights_of_its_simulation():
    run = g2uardfl.simulate(**TINY, pmr=0.5)
    simulation = Simulation(RunConfig(**TINY, pmr=0.5))
    summary = simulation.run()
    assert [without_times(record) for record in run.records] == [without_times(one) for one in simulation.records]
    assert without_times(run.summary) == without_times(summary)
    assert all((run.weights[name] == value).all() for name, value in simulation.weights.items())


def test_tables_have_a_row_for_each_round_and_submission():
    run = g2uardfl.simulate(**TINY)
    assert list(run.rounds["round"]) == [1, 2, 3]
    assert len(run.verdicts) == sum(len(record["verdicts"]) for record in run.records) == 12
    assert run.figures["ACC %"] == 100 * run.summary["acc"]


def test_a_figure_shows_both_rates():
    drawn = g2uardfl.simulate(**TINY).plot()._repr_svg_()
    assert "ACC (%)" in drawn
    assert "ASR (%)" in drawn


def test_a_run_ends_early_after_an_evaluated_round():
    run = g2uardfl.simulate(**{**TINY, "rounds": 9}, evaluate_every=4, stop_when=lambda record: record["round"] == 2)
    assert len(run.records) == run.summary["rounds"] == 4
    assert not math.isnan(run.summary["acc"])
    assert run.summary["ended_early"] == "stop_when is met"


def test_callbacks_are_called_in_the_order_of_the_run():
    calls = []

    class Notes(g2uardfl.Callback):
        def on_start(self, simulation):
            calls.append("start")

        def on_round(self, simulation, record):
            calls.append(record["round"])

        def on_end(self, simulation, summary):
            calls.append("end")

    g2uardfl.simulate(**TINY, callbacks=[Notes()])
    assert calls == ["start", 1, 2, 3, "end"]


def test_with_a_run_directory_the_run_can_be_loaded_again(tmp_path):
    run = g2uardfl.simulate(**TINY, out=tmp_path / "run", log=["csv"])
    tables = g2uardfl.load_runs(tmp_path)
    assert tables.runs.acc[0] == run.summary["acc"]
    assert (run.path / "rounds.csv").exists()
    assert list(tables.verdicts.reason) == list(run.verdicts.reason)


def test_a_setting_that_is_not_allowed_is_a_clear_error():
    with pytest.raises(ConfigError, match="lr=0"):
        g2uardfl.simulate(lr=0)
    with pytest.raises(ConfigError, match="did you mean profile"):
        g2uardfl.simulate(defense="g2uardfl", defense_settings={"profil": "paper"})
