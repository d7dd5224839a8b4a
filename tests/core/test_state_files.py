"""State files: what is written is read again, damaged files are detected, and a failed write changes nothing."""

from __future__ import annotations

import hashlib
import os
import random
import stat
from collections.abc import Iterator

import numpy as np
import pytest

from g2uardfl.core.errors import StateError
from g2uardfl.core.files import atomic_write, delete_unfinished
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


def test_a_file_of_another_format_version_is_rejected(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("g2uardfl.core.state_files._VERSION", 3)
        write_state(tmp_path / "state", "example", STATE)
    with pytest.raises(StateError, match=r"another version of g2uardfl \(format 3\)"):
        read_state(tmp_path / "state", "example")


def damaged_copies(content: bytes, number: int) -> Iterator[bytes]:
    """Copies with some flipped bits, cut off at random, or both."""
    generator = random.Random(22)
    for _ in range(number):
        copy = bytearray(content)
        for _ in range(generator.choice((0, 1, 1, 2, 8))):
            copy[generator.randrange(len(copy))] ^= 1 << generator.randrange(8)
        yield bytes(copy[: generator.choice((None, None, generator.randrange(len(copy) + 1)))])


def replace_content(path, content: bytes) -> None:
    """As `write_bytes`, but file systems flush a file to the disk when it is truncated and written again."""
    path.unlink()
    path.write_bytes(content)


def test_ten_thousand_damaged_copies_are_errors_unless_nothing_changed(tmp_path):
    path = tmp_path / "state"
    write_state(path, "example", STATE)
    content, unchanged = path.read_bytes(), 0
    for copy in damaged_copies(content, 10_000):
        replace_content(path, copy)
        if copy == content:
            assert_equal(read_state(path, "example"), STATE)
            unchanged += 1
        else:
            with pytest.raises(StateError, match="damaged"):
                read_state(path, "example")
    assert 0 < unchanged < 2_000


def test_a_flip_of_any_byte_is_detected(tmp_path):
    path = tmp_path / "state"
    write_state(path, "example", STATE)
    content = path.read_bytes()
    for position in range(len(content)):
        replace_content(path, content[:position] + bytes([content[position] ^ 0x20]) + content[position + 1 :])
        with pytest.raises(StateError, match="damaged"):
            read_state(path, "example")


def test_the_last_line_is_the_checksum_of_everything_before_it(tmp_path):
    write_state(tmp_path / "state", "example", STATE)
    content = (tmp_path / "state").read_bytes()
    archive, _, last = content.removesuffix(b"\n").rpartition(b"\n")
    assert last.decode() == f"g2uardfl sha256 {hashlib.sha256(archive).hexdigest()}"


def test_nothing_is_parsed_before_the_checksum_is_verified(tmp_path, monkeypatch):
    write_state(tmp_path / "state", "example", STATE)
    content = (tmp_path / "state").read_bytes()
    (tmp_path / "state").write_bytes(content[:100] + b"?" + content[101:])
    monkeypatch.setattr(np, "load", None)
    with pytest.raises(StateError, match="damaged"):
        read_state(tmp_path / "state", "example")


def test_a_state_file_can_be_read_with_numpy(tmp_path):
    write_state(tmp_path / "state", "example", STATE)
    with np.load(tmp_path / "state", allow_pickle=False) as archive:
        assert archive["norms"].tolist() == [0.1, 2.0]


def test_a_file_without_checksum_is_rejected_with_what_to_do(tmp_path):
    with (tmp_path / "state").open("wb") as file:
        np.savez(file, **STATE.arrays)
    with pytest.raises(StateError, match=r"an earlier version.* restore it from a copy or start over"):
        read_state(tmp_path / "state", "example")


def test_an_intact_file_of_somebody_else_is_rejected(tmp_path):
    for content in (b"", b"text", b"PK\x05\x06" + bytes(18)):
        checksum = f"\ng2uardfl sha256 {hashlib.sha256(content).hexdigest()}\n"
        (tmp_path / "state").write_bytes(content + checksum.encode())
        with pytest.raises(StateError, match="not a example file"):
            read_state(tmp_path / "state", "example")


def test_a_folder_in_place_of_a_state_file_is_an_error(tmp_path):
    with pytest.raises(StateError, match="cannot read"):
        read_state(tmp_path, "example")


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
def test_only_the_owner_may_read_a_state_file(tmp_path):
    path = tmp_path / "state"
    path.write_bytes(b"old")
    path.chmod(0o666)
    before = os.umask(0o022)
    try:
        write_state(path, "example", STATE)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
def test_a_private_file_is_private_from_its_first_byte(tmp_path):
    with atomic_write(tmp_path / "file", private=True) as file:
        (unfinished,) = tmp_path.iterdir()
        assert stat.S_IMODE(unfinished.stat().st_mode) == 0o600
        file.write(b"secret")


def test_unfinished_files_of_a_killed_writer_are_deleted_and_others_are_not(tmp_path):
    path, number = tmp_path / "state", "0f" * 16
    unfinished = tmp_path / f".state.{number}.part"
    others = [path, tmp_path / f".other.{number}.part", tmp_path / f".state.new.{number}.part"]
    for file in (unfinished, *others):
        file.write_bytes(b"half")
    delete_unfinished(path)
    assert sorted(tmp_path.iterdir()) == sorted(others)


@pytest.mark.parametrize("kept", [0, 0.5, 0.99])
def test_a_truncated_state_file_is_rejected(tmp_path, kept):
    path = tmp_path / "state"
    write_state(path, "example", STATE)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(StateError, match="damaged"):
        read_state(path, "example")


def test_objects_are_rejected_before_they_are_pickled(tmp_path):
    with pytest.raises(StateError, match="cannot be saved"):
        write_state(tmp_path / "state", "example", SavedState({}, {"objects": np.array([{}], dtype=object)}))


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
