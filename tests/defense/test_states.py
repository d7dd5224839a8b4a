"""Saved states: complete or rejected, restored into new stages, continued bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from g2uardfl import G2uardFL
from g2uardfl.core.errors import StateError
from g2uardfl.core.state_files import SavedState, read_state, write_state
from g2uardfl.defense.profiles import PARTS, build_parts, names
from helpers.federations import (
    PRECISIONS,
    Federation,
    converted,
    first_model,
    message,
    run_late_detection,
    trained,
)
from helpers.models import batch_norm_model, odd_mlp, perturbed, same

QUICK = {"default": {"sketch_width": 64}, "paper": {"pretrain_epochs": 3, "cluster_epochs": 3}}
each_profile = pytest.mark.parametrize("profile", names())


@cache
def guard_after_rounds(profile: str) -> G2uardFL:
    """A guard whose memory holds something of every kind: also snapshots with buffers."""
    guard = G2uardFL(profile, seed=5, **QUICK[profile])
    model = run_late_detection(guard, 6)[-1].weights
    for number in range(7, 10):
        sent = {client: trained(model, 100 * number + i) for i, client in enumerate((1, 2, 3, "a", "b"))}
        guard.aggregate(model, sent)
    return guard


def equal(first: SavedState, second: SavedState) -> bool:
    """Whether two states are equal, arrays bit for bit."""
    return (
        first.values == second.values
        and first.arrays.keys() == second.arrays.keys()
        and all(
            np.array_equal(first.arrays[name], second.arrays[name])
            and first.arrays[name].dtype == second.arrays[name].dtype
            for name in first.arrays
        )
    )


def without_each_value(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Copies of nested mappings, each of which lacks one key, and that key's path."""
    if not isinstance(values, dict):
        return
    for name, value in values.items():
        yield (*path, name), {key: other for key, other in values.items() if key != name}
        for inner, changed in without_each_value(value, (*path, name)):
            yield inner, {**values, name: changed}


def incomplete_states(state: SavedState) -> Iterator[tuple[str, SavedState]]:
    """The state without any one value or array, with the name of what it lacks.

    A guard keeps its own settings, so that only profile and seed of the saved ones are needed.
    """
    for path, values in without_each_value(dict(state.values)):
        if path[0] != "settings" or path[1:] in ((), ("profile",), ("seed",)):
            yield ".".join(path), SavedState(values, state.arrays)
    for name in state.arrays:
        yield name, SavedState(state.values, {key: value for key, value in state.arrays.items() if key != name})


@each_profile
def test_the_memory_under_test_holds_something_of_every_kind(profile):
    state = guard_after_rounds(profile).state()
    assert set(state.values) == {"settings", "secret", "round", "signature", *PARTS}
    empty = G2uardFL(profile, seed=0, **QUICK[profile]).state()
    assert len(state.arrays) >= 3
    assert all(state.values[part] != empty.values[part] for part in PARTS if empty.values[part] and part != "observer")
    if profile == "default":
        assert any(".buffer." in name for name in state.arrays)


@each_profile
@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_restores_a_state_has_that_state(profile, part):
    guard = guard_after_rounds(profile)
    saved = getattr(guard, part).state()
    other = build_parts(profile, guard.seed, QUICK[profile])[part]
    other.restore(saved)
    assert equal(other.state(), saved)


@each_profile
def test_a_guard_that_restores_a_state_has_that_state(profile, tmp_path):
    guard = guard_after_rounds(profile)
    guard.save(tmp_path / "guard")
    restored = G2uardFL(profile, seed=0, **QUICK[profile])
    restored.restore(guard.state())
    for other in (restored, G2uardFL.load(tmp_path / "guard")):
        assert equal(other.state(), guard.state())
        assert other.configuration() == guard.configuration()
        assert other.round == guard.round == 9


@each_profile
def test_a_state_is_plain_json_and_arrays_without_pickle(profile, tmp_path):
    state = guard_after_rounds(profile).state()
    write_state(tmp_path / "state", "guard", state)
    assert equal(read_state(tmp_path / "state", "guard"), state)


def error_of(profile: str, state: SavedState) -> str | None:
    """Why a guard cannot restore the state; None if it can."""
    try:
        G2uardFL(profile, seed=0, **QUICK[profile]).restore(state)
    except StateError as error:
        return str(error)
    return None


@each_profile
def test_a_state_that_lacks_any_value_or_array_is_a_clear_error(profile):
    errors = {name: error_of(profile, state) for name, state in incomplete_states(guard_after_rounds(profile).state())}
    assert len(errors) > 15
    assert [name for name, error in errors.items() if error is None] == []
    for error in errors.values():
        assert error.startswith("this guard state is incomplete")
        assert "\n" not in error


@each_profile
@pytest.mark.parametrize("value", [None, "x", [], {}, float("inf"), float("nan")], ids=str)
def test_a_round_of_a_wrong_type_is_a_clear_error(profile, value):
    state = guard_after_rounds(profile).state()
    error = error_of(profile, SavedState({**state.values, "round": value}, state.arrays))
    assert error.startswith("this guard state is incomplete")


@each_profile
@pytest.mark.parametrize("lacking", ["settings", "profile", "seed"])
def test_a_file_that_lacks_the_settings_is_a_clear_error(profile, lacking, tmp_path):
    state = guard_after_rounds(profile).state()
    values = {name: value for name, value in state.values.items() if name != lacking}
    if lacking != "settings":
        values["settings"] = {name: value for name, value in values["settings"].items() if name != lacking}
    write_state(tmp_path / "guard", "guard", SavedState(values, state.arrays))
    with pytest.raises(StateError, match="incomplete"):
        G2uardFL.load(tmp_path / "guard")


@each_profile
def test_a_rejected_state_leaves_the_guard_as_it_was(profile):
    guard = G2uardFL(profile, seed=1, **QUICK[profile])
    Federation().run(guard, 2)
    before = guard.state()
    for _, state in incomplete_states(guard_after_rounds(profile).state()):
        with pytest.raises(StateError):
            guard.restore(state)
    assert equal(guard.state(), before)
    assert guard.seed == 1


@each_profile
def test_a_restored_guard_keeps_its_settings_and_takes_the_saved_seed(profile):
    changed = {"default": {"false_alarm_rate": 0.1, "window": 50}, "paper": {"score_step": 0.25, "min_clusters": 3}}
    guard = G2uardFL(profile, seed=1, **QUICK[profile], **changed[profile])
    before = guard.configuration()
    guard.restore(guard_after_rounds(profile).state())
    assert guard.configuration() == {**before, "seed": 5}
    stages = [guard.observer, guard.construction, guard.clustering, guard.filtering, guard.elimination]
    assert {stage.seed for stage in stages} == {5}


def test_a_state_of_another_profile_is_a_clear_error():
    for one, other in (("default", "paper"), ("paper", "default")):
        with pytest.raises(StateError, match=f"belongs to profile='{one}', not to profile='{other}'"):
            G2uardFL(other).restore(guard_after_rounds(one).state())


def test_a_state_with_sketches_of_another_width_is_a_clear_error():
    with pytest.raises(StateError, match=r"sketch_width=64.*sketch_width=512"):
        G2uardFL(seed=0, sketch_width=512).restore(guard_after_rounds("default").state())


@each_profile
def test_a_restored_guard_rejects_another_model(profile):
    guard = G2uardFL(profile, seed=0, **QUICK[profile])
    guard.restore(guard_after_rounds(profile).state())
    with pytest.raises(ValueError, match="other parameters"):
        guard.aggregate(first_model(), Federation().messages(first_model(), 1))


@each_profile
def test_a_state_is_not_changed_by_later_rounds(profile):
    guard = G2uardFL(profile, seed=0, **QUICK[profile])
    model = Federation().run(guard, 4)[-1].weights
    state = guard.state()
    later = Federation().run(guard, 3, model, first=5)
    restored = G2uardFL(profile, seed=0, **QUICK[profile])
    restored.restore(state)
    for first, second in zip(later, Federation().run(restored, 3, model, first=5), strict=True):
        assert first.verdicts == second.verdicts
        assert same(first.weights, second.weights)


@each_profile
@pytest.mark.parametrize(
    ("precision", "when"), [*((one, 4) for one in PRECISIONS), (torch.float16, 0), (torch.float32, 1)], ids=str
)
def test_a_saved_guard_continues_bit_for_bit(profile, precision, when, tmp_path):
    """In the middle of a run with rollback, running statistics and counters; also before and after the first round."""
    guard = G2uardFL(profile, seed=3, **QUICK[profile])
    model = converted(batch_norm_model(), precision)
    if when:
        model = run_late_detection(guard, when, model)[-1].weights
    guard.save(tmp_path / "guard")
    results = run_late_detection(guard, 6 - when, model, first=when + 1)
    loaded = run_late_detection(G2uardFL.load(tmp_path / "guard"), 6 - when, model, first=when + 1)
    for first, second in zip(results, loaded, strict=True):
        assert first.verdicts == second.verdicts
        assert first.report.events == second.report.events
        for name, value in first.weights.items():
            assert value.dtype == second.weights[name].dtype
            equal_bits = np.array_equal if precision == "numpy" else torch.equal
            assert equal_bits(value, second.weights[name])


@each_profile
def test_a_guard_saved_after_every_round_continues_bit_for_bit(profile, tmp_path):
    expected = Federation(seed=2).run(G2uardFL(profile, seed=9, **QUICK[profile]), 14)
    guard, model = G2uardFL(profile, seed=9, **QUICK[profile]), first_model()
    for number, result in enumerate(expected, start=1):
        guard.save(tmp_path / "guard")
        guard = G2uardFL.load(tmp_path / "guard")
        [again] = Federation(seed=2).run(guard, 1, model, first=number)
        assert again.verdicts == result.verdicts
        assert again.report.events == result.report.events
        assert same(again.weights, result.weights)
        model = again.weights
    assert any(one.report.events for one in expected)


@each_profile
def test_numpy_integers_and_strings_are_client_ids_that_can_be_saved(profile, tmp_path):
    guard, model = G2uardFL(profile, seed=0, **QUICK[profile]), first_model()
    for number in (1, 2):
        ids = [np.int64(1), np.int32(2), 3, "3", "four", -5, 2**63]
        guard.aggregate(model, {client: message(model, 0, number, i) for i, client in enumerate(ids)})
    guard.save(tmp_path / "guard")
    loaded = G2uardFL.load(tmp_path / "guard")
    sent = {client: message(model, 0, 3, i) for i, client in enumerate([1, 2, 3, "3", "four", -5, 2**63])}
    first, second = guard.aggregate(model, sent), loaded.aggregate(model, sent)
    assert first.verdicts == second.verdicts
    assert same(first.weights, second.weights)


@each_profile
def test_a_fresh_guard_restores_a_fresh_state(profile, tmp_path):
    guard = G2uardFL(profile, seed=4)
    guard.save(tmp_path / "guard")
    loaded = G2uardFL.load(tmp_path / "guard")
    assert equal(loaded.state(), guard.state())
    loaded.aggregate(odd_mlp(), {client: perturbed(odd_mlp(), client) for client in range(4)})
    assert loaded.round == 1
