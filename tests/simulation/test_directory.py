"""The run directory: its files, and what is overwritten."""

from __future__ import annotations

import json
import shutil

import pytest
from safetensors.torch import load_file

from g2uardfl.core.errors import StateError
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.directory import FinishedRun, RunDirectory
from g2uardfl.simulation.metrics import defense_score
from g2uardfl.simulation.run import Simulation
from g2uardfl.training.local import share_predicted


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A simulation of 12 rounds, its summary, and its files."""
    folder = tmp_path_factory.mktemp("run")
    config = RunConfig(task="digits", attack="black_box", defense="g2uardfl", rounds=12, start="scratch", seed=4)
    simulation = Simulation(config)
    summary = simulation.run([RunDirectory(folder)])
    return simulation, summary, FinishedRun(folder)


def test_the_files_hold_the_config_the_records_and_the_summary(finished):
    simulation, summary, run = finished
    assert run.config == simulation.config
    assert run.summary == json.loads(json.dumps(summary))
    assert [record["round"] for record in run.rounds] == list(range(1, 13))
    assert summary["acc_tail_mean"] == pytest.approx(run.rounds[-1]["acc"])
    assert summary["asr_max"] == max(record["asr"] for record in run.rounds)
    assert summary["ds"] == pytest.approx(defense_score(run.rounds[-1]["acc"], run.rounds[-1]["asr"]))


def test_a_record_has_the_documented_keys(finished):
    simulation, _, run = finished
    record = run.rounds[-1]
    assert set(record) == {
        *("round", "acc", "asr", "selected", "malicious", "attacking", "verdicts", "seconds"),
        *("note", "events", "stage_seconds", "edges"),
    }
    assert all({first, second} <= set(record["verdicts"]) for first, second, _ in record["edges"])
    assert set(record["seconds"]) == {"train", "defend", "evaluate"}
    assert set(record["verdicts"]) == {str(client) for client in record["selected"]}
    assert set(record["malicious"]) == set(record["selected"]) & simulation.schedule.malicious


def test_the_model_file_has_the_recorded_scores(finished):
    simulation, _, run = finished
    model = simulation.task.build_model()
    model.load_state_dict(load_file(run.path / "model.safetensors"))
    assert share_predicted(simulation.task, model, simulation.task.test) == run.rounds[-1]["acc"]
    assert share_predicted(simulation.task, model, simulation.task.backdoor_test) == run.rounds[-1]["asr"]


def test_a_folder_with_a_run_is_only_overwritten_on_request(tmp_path):
    (tmp_path / "rounds.jsonl").write_text("precious\n")
    with pytest.raises(StateError, match="--overwrite"):
        RunDirectory(tmp_path)
    assert (tmp_path / "rounds.jsonl").read_text() == "precious\n"


def test_overwriting_deletes_the_files_of_the_run_only(tmp_path):
    for name in ("rounds.jsonl", "notes.txt"):
        (tmp_path / name).write_text("text")
    (tmp_path / "checkpoint/round-00000001").mkdir(parents=True)
    RunDirectory(tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_unfinished_run_is_read_on_request_with_the_summary_of_its_rounds(finished, tmp_path):
    lines = (finished[2].path / "rounds.jsonl").read_text().splitlines(keepends=True)
    shutil.copy(finished[2].path / "config.toml", tmp_path)
    # The next round is in the middle of being written.
    (tmp_path / "rounds.jsonl").write_text("".join(lines[:5]) + lines[5][:40])
    with pytest.raises(StateError, match="is not finished"):
        FinishedRun(tmp_path)
    run = FinishedRun(tmp_path, unfinished_too=True)
    assert run.rounds == finished[2].rounds[:5]
    assert (run.summary["rounds"], run.summary["asr"]) == (5, run.rounds[-1]["asr"])
