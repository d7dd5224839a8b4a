"""State files: what is written is read again, damaged files are detected, and a failed write changes nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest

from g2uardfl.core.errors import StateError
from g2uardfl.core.files import atomic_write
from g2uardfl.core.state_files import SavedState, read_state, write_state

STATE = SavedState({"round": 3, "names": ["a", 7]}, {"norms": np.array([0.1, 2.0]), "flags": np.array([True])})


def assert_equal(state: SavedState, expected: SavedState) -> None:
    assert state.values == expected.values
    assert state.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        assert state.arrays[name].dtype == array.dtype
        assert np.array_equal(state.arrays[name], array)


def test_a_written_state_is_read_again(tmp_path):
    write_state(tmp_path / "state", "example", STATE)
    assert_equal(read_state(tmp_path / "state", "example"), STATE)


def test_a_joined_state_contains_its_parts():
    joined = SavedState.joined({"first": STATE, "first.second": SavedState({"x": 1})}, {"version": 2})
    assert joined.values["version"] == 2
    assert_equal(joined.part("first"), STATE)
    assert_equal(joined.part("first.second"), SavedState({"x": 1}))


def test_a_missing_part_raises_a_key_error():
    with pytest.raises(KeyError, match="second"):
        SavedState.joined({"first": STATE}).part("second")


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(StateError, match="does not exist"):
        read_state(tmp_path / "state", "example")


def test_a_state_of_another_kind_is_rejected_with_its_kind(tmp_path):
    write_state(tmp_path / "state", "other", STATE)
    with pytest.raises(StateError, match="holds other, not a example"):
        read_state(tmp_path / "state", "example")


def test_a_file_of_another_format_version_is_rejected(tmp_path):
    document = json.dumps({"kind": "example", "version": 2, "values": {}}).encode()
    with (tmp_path / "state").open("wb") as file:
        np.savez(file, **{"state.json": np.frombuffer(document, np.uint8)})
    with pytest.raises(StateError, match=r"another version of g2uardfl \(format 2\)"):
        read_state(tmp_path / "state", "example")


def test_a_damaged_byte_is_detected_or_does_not_affect_the_content(tmp_path):
    path = tmp_path / "state"
    write_state(path, "example", STATE)
    content = path.read_bytes()
    unaffected = 0
    for position in range(len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :])
        try:
            assert_equal(read_state(path, "example"), STATE)
        except StateError:
            continue
        unaffected += 1
    # Such as time stamps and attributes of the archive's members.
    assert unaffected < len(content) / 2


@pytest.mark.parametrize("kept", [0, 0.5, 0.99])
def test_a_truncated_state_file_is_rejected(tmp_path, kept):
    path = tmp_path / "state"
    write_state(path, "example", STATE)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(StateError, match="damaged"):
        read_state(path, "example")


def test_a_pickle_is_rejected_and_not_loaded(tmp_path):
    np.savez(tmp_path / "state.npz", objects=np.array([{}], dtype=object))
    with pytest.raises(StateError, match="damaged"):
        read_state(tmp_path / "state.npz", "example")


def test_a_state_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(StateError, match="choose a writable folder"):
        write_state(tmp_path / "missing" / "state", "example", STATE)


def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), atomic_write(path) as file:
        file.write(b"new", "and an invalid argument")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_file_is_complete_until_the_write_ends(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
