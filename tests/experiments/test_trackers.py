"""Trackers: the files of each library contain the values of the rounds."""

from __future__ import annotations

import csv
import json

import pytest

from g2uardfl.experiments.trackers import create
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.directory import RunDirectory, resumed
from g2uardfl.simulation.metrics import detection_of
from g2uardfl.simulation.run import Callback, Interrupted, Simulation
from helpers.command_line import PROGRAM, run_process
from helpers.runs import TINY

TRACKERS = ("tensorboard", "wandb", "mlflow", "csv")


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """A run that four trackers have logged, in a process of its own, and what they should have logged."""
    folder = tmp_path_factory.mktemp("logged")
    settings = (
        "--attack",
        "black_box",
        "--defense",
        "g2uardfl",
        "--rounds",
        "3",
        "--clients",
        "12",
        "--per-round",
        "6",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        result = run_process([*PROGRAM, "run", *settings, "--out", "run", "--log", *TRACKERS], folder)
    assert result.status == 0, result.stderr
    records = [json.loads(line) for line in (folder / "run/rounds.jsonl").read_text().splitlines()]
    rates = [detection_of(records[: count + 1]) for count in range(len(records))]
    assert rates[-1]["recall"] > 0
    return folder / "run", records, rates


def expected(logged, name):
    """The points of a curve, by round; without rounds in which the value is not defined."""
    _, records, rates = logged
    section, _, key = name.partition("/")
    values = [
        rate[key] if section == "detection" else record["seconds"][key] if section == "seconds" else record[section]
        for record, rate in zip(records, rates, strict=True)
    ]
    return {number: value for number, value in enumerate(values, start=1) if value is not None}


CURVES = ("acc", "asr", "detection/recall", "detection/benign_refused", "seconds/defend")


@pytest.mark.slow
def test_tensorboard_events_contain_the_values(logged):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(logged[0] / "tensorboard"))
    events.Reload()
    for name in CURVES:
        found = {point.step: point.value for point in events.Scalars(name)}
        assert found == pytest.approx(expected(logged, name), rel=1e-6)


def records_of_wandb(path):
    """The protocol buffers in a file of wandb: a log of LevelDB, in blocks of 32 KiB, after seven bytes."""
    from wandb.proto import wandb_internal_pb2

    data, place, part = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # too little for a header: the rest of the block is empty
            place += 32768 - place % 32768
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        part += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield wandb_internal_pb2.Record.FromString(part)
            part = b""


@pytest.mark.slow
def test_the_offline_run_of_wandb_contains_the_values(logged):
    (path,) = logged[0].glob("wandb/offline-run-*/run-*.wandb")
    steps, summary = {}, {}
    for record in records_of_wandb(path):
        values = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        if values:
            steps[values["_step"]] = values
        for item in record.summary.update:
            summary[item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
    for name in CURVES:
        assert {number: values[name] for number, values in steps.items() if name in values} == expected(logged, name)
    assert summary["asr_max"] == max(record["asr"] for record in logged[1])


@pytest.mark.slow
def test_the_folder_of_mlflow_contains_the_values_and_settings(logged, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(logged[0].parent / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("g2uardfl").experiment_id
    (run,) = client.search_runs([experiment])
    for name in CURVES:
        found = {point.step: point.value for point in client.get_metric_history(run.info.run_id, name)}
        assert found == expected(logged, name)
    assert run.data.params["defense"] == "g2uardfl"
    assert run.data.params["defense.profile"] == "default"
    assert run.info.status == "FINISHED"


@pytest.mark.slow
def test_the_csv_file_contains_the_values(logged):
    with (logged[0] / "rounds.csv").open() as file:
        rows = {int(row["round"]): row for row in csv.DictReader(file)}
    for name in CURVES:
        found = {number: float(row[name]) for number, row in rows.items() if row[name]}
        assert found == expected(logged, name)


def test_the_csv_file_of_a_resumed_run_has_each_round_once(tmp_path):
    class Stop(Callback):
        def on_round(self, simulation, record):
            simulation.stop_asked = record["round"] == 2

    simulation = Simulation(RunConfig(**TINY))
    with pytest.raises(Interrupted):
        simulation.run([RunDirectory(tmp_path), create("csv"), Stop()])
    resumed(tmp_path).run([RunDirectory(tmp_path, resume=True), create("csv")])
    rows = (tmp_path / "rounds.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["round", "1", "2", "3"]


OWN = '''
from g2uardfl import Callback


class Mine(Callback):
    """Writes what it sees."""

    def on_end(self, simulation, summary):
        (simulation.path / "mine.txt").write_text(f"{len(simulation.records)} rounds")
'''


@pytest.mark.parametrize("name", ["tracker_of_mine:Mine", "./other_tracker.py:Mine"])
def test_a_custom_callback_is_used_by_its_address(cli, tmp_path, name):
    module = name.partition(":")[0].removesuffix(".py")
    (tmp_path / f"{module}.py").write_text(OWN)
    result = cli("run", "--rounds", "2", "--local-steps", "1", "--set", "start=scratch", "--out", "run", "--log", name)
    assert result.status == 0, result.stderr
    assert (tmp_path / "run/mine.txt").read_text() == "2 rounds"


@pytest.mark.parametrize("extra", ["tensorboard", "wandb", "mlflow"])
def test_without_its_library_a_tracker_names_the_extra(cli, monkeypatch, extra):
    monkeypatch.setitem(__import__("sys").modules, {"tensorboard": "torch.utils.tensorboard"}.get(extra, extra), None)
    result = cli("run", "--rounds", "1", "--set", "start=scratch", "--log", extra)
    assert result.status == 2
    assert f"pip install 'g2uardfl[{extra}]'" in result.stderr
