"""A killed server resumes, and ends with the same results as an uninterrupted one."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.models import numpy_model, odd_mlp
from helpers.processes import PATIENCE, running

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")

from g2uardfl.core.errors import StateError
from g2uardfl.federation.state import FederationState
from g2uardfl.flower import AggregatorStrategy, Audit, G2uardFLStrategy, array_record
from helpers.flower import LocalGrid, client_weights, log_lines, sending, sends, train_round
from helpers.flower_server import MOMENTS
from helpers.flower_server import serve as serve_here

SERVER = [sys.executable, str(Path(__file__).parents[1] / "helpers" / "flower_server.py")]
ROUNDS = 6
NODES = sending(client_weights(odd_mlp()))


@pytest.fixture
def state_path(tmp_path):
    return tmp_path / "guard.state"


def serve(folder: Path) -> None:
    """Run a server in this process until all rounds are done."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "replace"):  # which the server changes
            patch.setattr(os, name, getattr(os, name))
        serve_here(folder, ROUNDS)


def kill_at(folder: Path, moment: str, at: int) -> None:
    """Start a server, wait until it reports the moment, and kill it."""
    command = [*SERVER, str(folder), str(ROUNDS), moment, str(at)]
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        readable, _, _ = select.select([server.stdout], [], [], 10 * PATIENCE)
        assert readable, f"the server did not arrive at {moment!r}"
        assert server.stdout.readline().strip() == moment
        server.kill()
        assert server.wait(PATIENCE) == -signal.SIGKILL


def rounds_done(folder: Path) -> int:
    state = FederationState.load(folder / "guard.state")
    assert state is not None
    return state.rounds_done


def everything(folder: Path) -> dict:
    """The whole state, and the audit without times and sessions."""
    state = FederationState.load(folder / "guard.state")
    assert state is not None
    parts = {"memory": state.memory, "model": state.model}
    return {
        "values": {name: part.values for name, part in parts.items()},
        "arrays": {name: {key: a.tobytes() for key, a in part.arrays.items()} for name, part in parts.items()},
        "rounds": (state.rounds_done, state.rounds_kept),
        "audit": [
            (
                record["round"],
                record["note"],
                {c: (v["decision"], v["reason"], v["benign_score"]) for c, v in record["verdicts"].items()},
            )
            for record in Audit(folder / "audit.jsonl").rounds
        ],
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    serve(folder)
    return everything(folder)


@pytest.mark.slow
def test_a_server_killed_at_every_kind_of_moment_ends_with_the_results_of_an_uninterrupted_one(tmp_path, uninterrupted):
    for at, moment in enumerate(MOMENTS, start=2):
        kill_at(tmp_path, moment, at)
        assert rounds_done(tmp_path) == (at if moment == "between rounds" else at - 1)
    serve(tmp_path)
    assert everything(tmp_path) == uninterrupted
    locks = [".audit.jsonl.lock", ".guard.state.lock"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*locks, "audit.jsonl", "guard.state"]
    assert Audit(tmp_path / "audit.jsonl").broken_at is None


@pytest.mark.slow
def test_a_second_server_on_the_same_state_ends_with_one_error_and_changes_nothing(tmp_path):
    with running([*SERVER, str(tmp_path), str(ROUNDS), "between rounds", "2"], stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == "between rounds\n"
        before = everything(tmp_path)
        with pytest.raises(
            StateError, match=rf"guard.state is used by another server \(process {first.pid}\): stop it"
        ):
            serve(tmp_path)
        assert everything(tmp_path) == before


def run(strategy, rounds=1, model=None, nodes=NODES, **options):
    """Run a strategy in one process; returns the result and the messages that clients received."""
    grid = LocalGrid(nodes)
    initial = array_record(odd_mlp() if model is None else model)
    return strategy.start(grid, initial, num_rounds=rounds, **options), grid.sent


def test_round_numbers_continue_where_flower_counts_from_one_again(state_path):
    evaluated, trained = [], []

    def client(message):
        trained.append(message.content["config"]["server-round"])
        return NODES[message.metadata.dst_node_id](message)

    for rounds in (2, 3):
        strategy = G2uardFLStrategy(fraction_evaluate=0.0, state_path=state_path)
        nodes = dict.fromkeys(NODES, client)
        result, _ = run(strategy, rounds, nodes=nodes, evaluate_fn=lambda number, arrays: evaluated.append(number))
    assert trained == [number for number in (1, 2, 3, 4, 5) for _ in NODES]
    assert evaluated == [0, 1, 2, 2, 3, 4, 5]
    assert strategy.rounds_done == strategy.guard.round == 5
    assert [record["g2uardfl-round"] for record in result.train_metrics_clientapp.values()] == [3, 4, 5]


def test_round_numbers_continue_in_a_second_start_of_the_same_strategy():
    strategy = G2uardFLStrategy(fraction_evaluate=0.0)
    for _ in range(2):
        run(strategy, 2)
    assert strategy.rounds_done == strategy.guard.round == 4


def test_the_saved_model_replaces_the_initial_one_and_the_log_says_so(state_path):
    result, _ = run(G2uardFLStrategy(fraction_evaluate=0.0, state_path=state_path))
    with log_lines() as lines:
        strategy = G2uardFLStrategy(fraction_evaluate=0.0, state_path=state_path)
        _, sent = run(strategy, model=odd_mlp(seed=5))
    assert all(message.content["arrays"] == result.arrays for message in sent)
    assert any("resumed after round 1 from" in line for line in lines)
    assert any("saved after round 1 replaces the initial model" in line for line in lines)


def test_with_no_round_left_the_result_is_the_saved_model(state_path):
    result, _ = run(G2uardFLStrategy(fraction_evaluate=0.0, state_path=state_path))
    again, _ = run(G2uardFLStrategy(fraction_evaluate=0.0, state_path=state_path), rounds=0)
    assert again.arrays == result.arrays


def test_kept_rounds_are_counted_across_restarts(state_path):
    for expected in (1, 2):
        strategy = G2uardFLStrategy(min_replies=100, state_path=state_path)
        train_round(strategy, array_record(odd_mlp()), NODES)
        assert (strategy.rounds_done, strategy.rounds_kept) == (expected, expected)


@pytest.mark.parametrize(
    ("profile", "setting", "value", "change"),
    [
        ("default", "window", 50, "window 300 -> 50"),
        ("paper", "score_percentile", 1, "score_percentile 25.0 -> 1"),
    ],
)
def test_settings_come_from_the_code_and_memory_from_the_file(state_path, profile, setting, value, change):
    before = G2uardFLStrategy(profile=profile, state_path=state_path)
    train_round(before, array_record(odd_mlp()), NODES)
    with log_lines() as lines:
        after = G2uardFLStrategy(profile=profile, state_path=state_path, **{setting: value})
    assert after.guard.configuration() == {**before.guard.configuration(), setting: value}
    assert after.guard.round == 1
    assert [line for line in lines if line.startswith("WARNING")] == [
        f"WARNING g2uardfl: settings changed since the last session: {change}"
    ]


def test_with_the_same_settings_nothing_is_reported_as_changed(state_path):
    train_round(G2uardFLStrategy(state_path=state_path), array_record(odd_mlp()), NODES)
    with log_lines() as lines:
        G2uardFLStrategy(state_path=state_path)
    assert [line.split()[0] for line in lines] == ["INFO"]


def test_the_memory_of_another_profile_is_rejected(state_path):
    train_round(G2uardFLStrategy(state_path=state_path), array_record(odd_mlp()), NODES)
    with pytest.raises(StateError, match="profile='default'"):
        G2uardFLStrategy(profile="paper", state_path=state_path)


def test_bfloat16_models_survive_a_restart(state_path):
    model = {name: value.bfloat16() for name, value in odd_mlp().items()}
    nodes = {i: sends({name: value + 0.01 * i for name, value in model.items()}) for i in range(1, 6)}
    arrays, _ = train_round(G2uardFLStrategy(state_path=state_path), array_record(model), nodes)
    assert G2uardFLStrategy(state_path=state_path).current_arrays == arrays


def test_the_memory_of_another_rule_is_rejected(state_path):
    train_round(G2uardFLStrategy(state_path=state_path), array_record(odd_mlp()), NODES)
    with pytest.raises(StateError, match="written by 'g2uardfl', not by 'fedavg'"):
        AggregatorStrategy("fedavg", state_path=state_path)


def test_the_state_of_another_model_is_rejected(state_path):
    train_round(G2uardFLStrategy(state_path=state_path), array_record(odd_mlp()), NODES)
    with pytest.raises(StateError, match="another model"):
        run(G2uardFLStrategy(state_path=state_path), model=numpy_model())


def test_a_change_of_the_declared_buffers_is_rejected_at_the_start(state_path):
    train_round(G2uardFLStrategy(state_path=state_path), array_record(odd_mlp()), NODES)
    with pytest.raises(ValueError, match="other arrays declared as buffers"):
        G2uardFLStrategy(state_path=state_path, buffers=["0.bias"]).start(LocalGrid(NODES), array_record(odd_mlp()), 1)


def test_a_full_disk_is_an_error_in_the_log_and_does_not_end_the_round(state_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    strategy = G2uardFLStrategy(state_path=state_path)
    monkeypatch.setattr("g2uardfl.core.files.os.replace", full)
    with log_lines() as lines:
        arrays, _ = train_round(strategy, array_record(odd_mlp()), NODES)
    assert arrays is not None
    assert any("NOT SAVED" in line and "No space left" in line for line in lines if line.startswith("ERROR"))


def rounds_of(path):
    return [(record["round"], sorted(record["verdicts"])) for record in Audit(path).rounds]


def test_rounds_during_which_the_disk_was_full_are_in_the_audit_once_there_is_space(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    state_path, path = tmp_path / "guard.state", tmp_path / "audit.jsonl"
    strategy, arrays = G2uardFLStrategy(state_path=state_path, audit_path=path), array_record(odd_mlp())
    for number in range(1, 6):
        with monkeypatch.context() as patch:
            if number in (2, 3):
                patch.setattr("os.fsync", full)
            changed, _ = train_round(strategy, arrays, NODES, number)
        arrays = changed or arrays
        saved = FederationState.load(state_path)
        assert saved.rounds_done == (1 if number in (2, 3) else number)
    assert rounds_of(path) == [(number, sorted(map(str, NODES))) for number in range(1, 6)]
    assert (Audit(path).broken_at, Audit(path).head) == (None, saved.audit)


@pytest.mark.parametrize("removed", [0, 1, None], ids=["nothing", "the last line", "all"])
def test_lines_that_were_removed_from_the_end_of_the_audit_are_noticed_at_the_next_start(tmp_path, removed):
    paths = {"state_path": tmp_path / "guard.state", "audit_path": tmp_path / "audit.jsonl"}
    train_round(G2uardFLStrategy(**paths), array_record(odd_mlp()), NODES)
    lines = paths["audit_path"].read_bytes().splitlines(keepends=True)
    paths["audit_path"].write_bytes(b"".join(lines[: 0 if removed is None else len(lines) - removed]))
    with log_lines() as logged:
        strategy = G2uardFLStrategy(**paths)
    warnings = [line for line in logged if line.startswith("WARNING")]
    assert len(warnings) == (0 if removed == 0 else 1)
    assert all("audit.jsonl lacks lines that" in line for line in warnings)
    train_round(strategy, strategy.current_arrays, NODES)
    assert (Audit(paths["audit_path"]).broken_at is None) == (removed == 0)


def test_the_earlier_of_two_strategies_with_the_same_state_does_not_start_and_saves_nothing(state_path):
    earlier = G2uardFLStrategy(fraction_evaluate=0.0, state_path=state_path)
    run(G2uardFLStrategy(fraction_evaluate=0.0, state_path=state_path), 2)
    later = G2uardFLStrategy(fraction_evaluate=0.0, state_path=state_path)
    with pytest.raises(StateError, match="now written by a later strategy"):
        run(earlier)
    with log_lines() as lines:
        train_round(earlier, array_record(odd_mlp()), NODES)
    assert any("NOT SAVED" in line and "later strategy" in line for line in lines)
    assert FederationState.load(state_path).rounds_done == 2
    run(later)
    assert FederationState.load(state_path).rounds_done == 3


def test_an_audit_is_rotated_at_the_size_that_the_setting_says(tmp_path):
    path = tmp_path / "audit.jsonl"
    run(G2uardFLStrategy(fraction_evaluate=0.0, audit_path=path, audit_max_bytes=1), 3)
    assert sorted(file.name for file in tmp_path.glob("audit*")) == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert rounds_of(path) == [(number, sorted(map(str, NODES))) for number in (1, 2, 3)]


def test_rules_without_memory_resume_with_round_and_model(state_path):
    arrays, _ = train_round(AggregatorStrategy("fedavg", state_path=state_path), array_record(odd_mlp()), NODES)
    again = AggregatorStrategy("fedavg", state_path=state_path)
    assert again.rounds_done == 1
    assert again.current_arrays == arrays
