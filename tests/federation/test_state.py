"""The saved state of a federation, without any framework."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace

import numpy as np
import pytest

import g2uardfl
from g2uardfl.aggregators.base import Outcome
from g2uardfl.aggregators.fedavg import FedAvg
from g2uardfl.core.errors import StateError
from g2uardfl.core.state_files import SavedState, read_state, write_state
from g2uardfl.federation.state import FederationState, StateFile


class Counting(FedAvg):
    """FedAvg with a memory and settings of its own."""

    name = "counting"

    def __init__(self, **settings) -> None:
        super().__init__()
        self.given, self.rounds = {"step": 0.5, "names": ("a", "b"), **settings}, np.zeros(3)

    def configuration(self):
        return self.given

    def combine(self, round_) -> Outcome:
        self.rounds += 1
        return super().combine(round_)

    def state(self) -> SavedState:
        return SavedState({"rounds": 2}, {"rounds": self.rounds})

    def restore(self, state) -> None:
        self.rounds = state.arrays["rounds"].copy()


MODEL = SavedState({"names": ["w", "b"]}, {"0": np.arange(6.0).reshape(2, 3), "1": np.arange(3, dtype=np.uint8)})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "federation.state"


def saved(path, rule=None) -> FederationState:
    rule = rule or Counting()
    rule.aggregate({"w": np.zeros(2)}, {1: {"w": np.ones(2)}})
    state = FederationState.of(rule, MODEL, rounds_done=7, rounds_kept=2)
    state.save(path)
    return state


def test_rounds_memory_and_model_survive(path):
    saved(path)
    loaded, rule = FederationState.load(path), Counting()
    assert (loaded.rounds_done, loaded.rounds_kept, loaded.rule) == (7, 2, "counting")
    assert loaded.model.values == MODEL.values
    assert all(np.array_equal(loaded.model.arrays[name], array) for name, array in MODEL.arrays.items())
    assert loaded.restore(rule, path) == []
    assert rule.rounds.tolist() == [1, 1, 1]


def test_a_state_behind_a_link_is_replaced_and_the_link_stays(path):
    (path.parent / "folder").mkdir()
    link = path.parent / "folder" / "link"
    link.symlink_to(path)
    file = StateFile(link)
    for rounds in (1, 2):
        file.save(FederationState.of(FedAvg(), MODEL, rounds, 0))
        assert link.is_symlink()
        assert FederationState.load(path).rounds_done == rounds
    assert os.listdir(link.parent) == ["link"], "the temporary file is in the folder of the file, not of the link"


def test_a_rule_without_memory_can_be_saved(path):
    FederationState.of(FedAvg(), MODEL, 1, 0).save(path)
    assert FederationState.load(path).restore(FedAvg(), path) == []


def test_changed_settings_are_named_and_stay_as_the_operator_chose_them(path):
    saved(path)
    rule = Counting(step=0.25, names=("a",), new=3)
    changed = FederationState.load(path).restore(rule, path)
    assert changed == ["step 0.5 -> 0.25", "names ['a', 'b'] -> ['a']", "new None -> 3"]
    assert rule.given["step"] == 0.25


def test_the_settings_are_saved_with_the_memory_and_not_in_it(path):
    saved(path)
    values = read_state(path, "federation").values
    assert values["configuration"] == {"step": 0.5, "names": ["a", "b"]}
    assert values["memory"] == {"rounds": 2}


def test_without_a_file_there_is_no_state(path):
    assert FederationState.load(path) is None


def test_the_memory_of_another_rule_is_rejected(path):
    saved(path)
    with pytest.raises(StateError, match="written by 'counting', not by 'fedavg': choose another state_path or rule"):
        FederationState.load(path).restore(FedAvg(), path)


def test_a_missing_folder_is_named_before_any_round(tmp_path):
    with pytest.raises(StateError, match=r"folder of state_path=.* does not exist: create it first"):
        StateFile(tmp_path / "no" / "state")


@pytest.mark.parametrize("missing", ["rounds_done", "configuration", "audit", "memory", "model"])
def test_an_incomplete_file_is_rejected_and_names_what_is_missing(path, missing):
    saved(path)
    state = read_state(path, "federation")
    write_state(path, "federation", SavedState({k: v for k, v in state.values.items() if k != missing}, state.arrays))
    with pytest.raises(StateError, match=f"incomplete .*{missing}"):
        FederationState.load(path)


def test_a_damaged_file_is_rejected(path):
    path.write_bytes(b"not a state")
    with pytest.raises(StateError, match="damaged"):
        FederationState.load(path)


def test_unfinished_files_of_a_killed_server_are_deleted_by_the_next_one_and_by_no_reader(path):
    saved(path)
    unfinished = path.with_name(f".{path.name}.{'0f' * 16}.part")
    unfinished.write_bytes(b"half")
    assert FederationState.load(path).rounds_done == 7
    assert unfinished.exists()
    assert StateFile(path).load().rounds_done == 7
    assert not unfinished.exists()


def test_the_hash_of_the_last_audit_line_survives(path):
    state = saved(path)
    assert FederationState.load(path).audit is None
    replace(state, audit="0f" * 32).save(path)
    assert FederationState.load(path).audit == "0f" * 32


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
def test_only_the_owner_may_read_the_state_because_it_holds_a_secret(path):
    saved(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["rounds_done", "rounds_kept", "configuration"])
@pytest.mark.parametrize("value", [None, "x", [1], float("inf"), float("nan")], ids=str)
def test_a_value_of_a_wrong_type_is_a_clear_error(path, name, value):
    saved(path)
    state = read_state(path, "federation")
    write_state(path, "federation", SavedState({**state.values, name: value}, state.arrays))
    with pytest.raises(StateError, match="incomplete"):
        FederationState.load(path)


def test_a_state_that_cannot_be_written_leaves_the_old_one(path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    state = saved(path)
    monkeypatch.setattr("g2uardfl.core.files.os.replace", full)
    with pytest.raises(StateError, match="No space left"):
        FederationState(8, 2, state.rule, {}, state.memory, state.model).save(path)
    assert FederationState.load(path).rounds_done == 7
    assert list(path.parent.iterdir()) == [path]


def test_the_configuration_of_every_rule_can_be_saved():
    for name in g2uardfl.aggregators.names():
        rule = g2uardfl.aggregators.create(name)
        configuration = FederationState.of(rule, MODEL, 0, 0).configuration
        assert json.loads(json.dumps(configuration)) == configuration
        assert set(configuration) == set(rule.configuration())
