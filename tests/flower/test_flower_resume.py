"""A server that is killed goes on as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.models import numpy_model, odd_mlp

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")

from g2uardfl.core.errors import StateError
from g2uardfl.flower import AggregatorStrategy, Audit, G2uardFLStrategy, array_record
from g2uardfl.flower.memory import Memory
from helpers.flower import LocalGrid, arrays_of, honest, log_lines, play, sends
from helpers.flower_server import MOMENTS

SERVER = str(Path(__file__).parents[1] / "helpers" / "flower_server.py")


def kill_at(folder: Path, rounds: int, moment: str, at: int) -> None:
    """Start a server, wait until it says it has come to the moment, and send it SIGKILL."""
    command = [sys.executable, SERVER, str(folder), str(rounds), moment, str(at)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline().strip() == moment
        finally:
            os.kill(server.pid, signal.SIGKILL)
        assert server.wait(30) == -signal.SIGKILL


def everything(folder: Path) -> tuple[dict, dict, dict]:
    """The guard's whole memory, the model, and the audit without times and sessions."""
    memory = Memory.load(folder / "guard.state")
    assert memory is not None
    rule = dict(memory.rule_state.values), {name: a.tobytes() for name, a in memory.rule_state.arrays.items()}
    audit = [
        (record["round"], {c: (v["decision"], v["reason"], v["benign_score"]) for c, v in record["verdicts"].items()})
        for record in Audit(folder / "audit.jsonl").rounds
    ]
    model = {name: array.tobytes() for name, array in arrays_of(memory.model).items()}
    return rule, model, {"audit": audit, "done": memory.rounds_done}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    done = subprocess.run([sys.executable, SERVER, str(folder), "6"], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return everything(folder)


def test_a_server_killed_again_and_again_at_every_kind_of_moment_ends_where_one_does_that_was_let_be(
    tmp_path, uninterrupted
):
    for at, moment in enumerate(MOMENTS, start=2):
        kill_at(tmp_path, 6, moment, at)
        done = Memory.load(tmp_path / "guard.state").rounds_done
        assert done == (at if moment == "between rounds" else at - 1)
    finished = subprocess.run([sys.executable, SERVER, str(tmp_path), "6"], capture_output=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert everything(tmp_path) == uninterrupted
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.jsonl", "guard.state"]


def test_rounds_are_numbered_on_where_flower_counts_from_one_again(tmp_path):
    told, evaluated = [], []

    def listening(node):
        def client(message):
            told.append(message.content["config"]["server-round"])
            return node(message)

        return client

    nodes = {c: listening(sends(w)) for c, w in honest(odd_mlp()).items()}
    for rounds in (2, 3):
        strategy = G2uardFLStrategy(fraction_evaluate=0.0, state_path=tmp_path / "guard.state")
        result = strategy.start(
            LocalGrid(nodes),
            array_record(odd_mlp()),
            num_rounds=rounds,
            evaluate_fn=lambda number, arrays: evaluated.append(number),
        )
    assert told == [number for number in (1, 2, 3, 4, 5) for _ in nodes]
    assert evaluated == [0, 1, 2, 2, 3, 4, 5]
    assert strategy.rounds_done == strategy.guard.round == 5
    assert [record["g2uardfl-round"] for record in result.train_metrics_clientapp.values()] == [3, 4, 5]


def test_a_second_start_of_the_same_strategy_counts_on_too():
    strategy = G2uardFLStrategy(fraction_evaluate=0.0)
    nodes = {c: sends(w) for c, w in honest(odd_mlp()).items()}
    for _ in range(2):
        strategy.start(LocalGrid(nodes), array_record(odd_mlp()), num_rounds=2)
    assert strategy.rounds_done == strategy.guard.round == 4


def test_the_saved_model_takes_the_place_of_the_initial_one_and_the_log_says_so(tmp_path):
    nodes = {c: sends(w) for c, w in honest(odd_mlp()).items()}
    first = G2uardFLStrategy(fraction_evaluate=0.0, state_path=tmp_path / "guard.state")
    result = first.start(LocalGrid(nodes), array_record(odd_mlp()), num_rounds=1)
    second = G2uardFLStrategy(fraction_evaluate=0.0, state_path=tmp_path / "guard.state")
    grid = LocalGrid(nodes)
    with log_lines() as lines:
        second.start(grid, array_record(odd_mlp(seed=5)), num_rounds=1)
    assert all(message.content["arrays"] == result.arrays for message in grid.sent)
    assert any("saved after round 1 takes the place" in line for line in lines)


def test_with_no_round_left_the_result_is_the_saved_model(tmp_path):
    nodes = {c: sends(w) for c, w in honest(odd_mlp()).items()}
    first = G2uardFLStrategy(fraction_evaluate=0.0, state_path=tmp_path / "guard.state")
    result = first.start(LocalGrid(nodes), array_record(odd_mlp()), num_rounds=1)
    second = G2uardFLStrategy(fraction_evaluate=0.0, state_path=tmp_path / "guard.state")
    assert second.start(LocalGrid(nodes), array_record(odd_mlp()), num_rounds=0).arrays == result.arrays


def test_rounds_that_were_kept_are_counted_over_restarts(tmp_path):
    for expected in (1, 2):
        strategy = G2uardFLStrategy(min_replies=100, state_path=tmp_path / "guard.state")
        play(strategy, array_record(odd_mlp()), {c: sends(w) for c, w in honest(odd_mlp()).items()})
        assert (strategy.rounds_done, strategy.rounds_kept) == (expected, expected)


def test_settings_are_the_operators_and_memory_is_the_files(tmp_path):
    nodes = {c: sends(w) for c, w in honest(odd_mlp()).items()}
    before = G2uardFLStrategy(state_path=tmp_path / "guard.state")
    play(before, array_record(odd_mlp()), nodes)
    with log_lines() as lines:
        after = G2uardFLStrategy(state_path=tmp_path / "guard.state", score_percentile=1.0)
    assert after.guard.config.score_percentile == 1.0
    assert after.guard.scores.scores == before.guard.scores.scores
    assert any("score_percentile 25.0 -> 1.0" in line for line in lines if line.startswith("WARNING"))


def test_bfloat16_models_outlive_a_restart(tmp_path):
    model = {name: value.bfloat16() for name, value in odd_mlp().items()}
    nodes = {i: sends({name: value + 0.01 * i for name, value in model.items()}) for i in range(1, 6)}
    first = G2uardFLStrategy(state_path=tmp_path / "guard.state")
    arrays, _ = play(first, array_record(model), nodes)
    assert G2uardFLStrategy(state_path=tmp_path / "guard.state").current_arrays == arrays


def test_another_rules_state_is_refused(tmp_path):
    play(
        G2uardFLStrategy(state_path=tmp_path / "s"),
        array_record(odd_mlp()),
        {c: sends(w) for c, w in honest(odd_mlp()).items()},
    )
    with pytest.raises(StateError, match="written by 'g2uardfl', not by 'fedavg'"):
        AggregatorStrategy("fedavg", state_path=tmp_path / "s")


def test_another_models_state_is_refused(tmp_path):
    nodes = {c: sends(w) for c, w in honest(odd_mlp()).items()}
    play(G2uardFLStrategy(state_path=tmp_path / "s"), array_record(odd_mlp()), nodes)
    with pytest.raises(StateError, match="another model"):
        G2uardFLStrategy(state_path=tmp_path / "s").start(LocalGrid(nodes), array_record(numpy_model()), num_rounds=1)


def test_a_damaged_state_is_refused(tmp_path):
    (tmp_path / "s").write_bytes(b"not a state")
    with pytest.raises(StateError, match="damaged"):
        G2uardFLStrategy(state_path=tmp_path / "s")


def test_a_state_in_a_folder_that_is_not_there_is_refused_at_once(tmp_path):
    with pytest.raises(StateError, match="folder that does not exist"):
        G2uardFLStrategy(state_path=tmp_path / "no" / "s")


def test_a_disk_that_fills_up_is_shouted_about_and_does_not_end_the_round(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    strategy = G2uardFLStrategy(state_path=tmp_path / "s")
    monkeypatch.setattr("g2uardfl.core.files.os.replace", full)
    with log_lines() as lines:
        arrays, _ = play(strategy, array_record(odd_mlp()), {c: sends(w) for c, w in honest(odd_mlp()).items()})
    assert arrays is not None
    assert any("UNSAVED" in line and "No space left" in line for line in lines if line.startswith("ERROR"))


def test_rules_without_memory_resume_by_their_round_and_model(tmp_path):
    nodes = {c: sends(w) for c, w in honest(odd_mlp()).items()}
    arrays, _ = play(AggregatorStrategy("fedavg", state_path=tmp_path / "s"), array_record(odd_mlp()), nodes)
    again = AggregatorStrategy("fedavg", state_path=tmp_path / "s")
    assert again.rounds_done == 1
    assert again.current_arrays == arrays
