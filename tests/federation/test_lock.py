"""One server for each file: other processes are rejected, and a killed one leaves no lock."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys

import pytest

from g2uardfl.core.errors import StateError
from g2uardfl.federation.lock import WriterLock
from helpers.processes import PATIENCE, running

pytestmark = pytest.mark.skipif(os.name != "posix", reason="flock is POSIX")

HOLD = """
import sys
from g2uardfl.federation.lock import WriterLock

lock = WriterLock(sys.argv[1], "state_path")
print("locked", flush=True)
sys.stdin.read()
"""
HOLD_AND_FORK = """
import os, sys, time
from g2uardfl.federation.lock import WriterLock

lock = WriterLock(sys.argv[1], "state_path")
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, b"1")
else:
    os.read(reader, 1)
    print("locked", flush=True)
time.sleep(600)
"""
TAKE = """
import sys
from g2uardfl.federation.lock import WriterLock

WriterLock(sys.argv[1], "state_path")
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "guard.state"


def holder(path, program=HOLD):
    return running([sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def taken_by_another_process(path) -> bool:
    """Whether another process can take the lock now."""
    command = [sys.executable, "-c", TAKE, path]
    return subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False).returncode == 0


def test_a_second_process_is_rejected_and_the_error_names_the_first(path):
    with holder(path) as first:
        assert first.stdout.readline() == "locked\n"
        expected = (
            rf"guard.state is used by another server \(process {first.pid}\): stop it, or choose another state_path"
        )
        with pytest.raises(StateError, match=expected):
            WriterLock(path, "state_path")


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_of_a_process_that_ended_is_free(path, end):
    with holder(path) as first:
        assert first.stdout.readline() == "locked\n"
        first.send_signal(end)
        first.wait(PATIENCE)
        WriterLock(path, "state_path").require()


def test_a_forked_process_does_not_keep_the_lock_of_a_server_that_was_killed(path):
    with holder(path, HOLD_AND_FORK) as first:
        assert first.stdout.readline() == "locked\n"
        first.kill()
        first.wait(PATIENCE)
        WriterLock(path, "state_path").require()


def test_a_file_has_one_lock_even_through_links(path):
    (path.parent / "folder").mkdir()
    (path.parent / "folder" / "link").symlink_to(path)
    (path.parent / "other").symlink_to(path.parent / "folder")
    names = [path, path.parent / "folder" / "link", path.parent / "other" / "link"]
    for held in names:
        lock = WriterLock(held, "state_path")
        assert not any(taken_by_another_process(name) for name in names)
        del lock
        gc.collect()
        assert all(taken_by_another_process(name) for name in names)


def test_a_link_to_a_file_that_does_not_exist_yet_has_the_lock_of_that_file(path):
    (path.parent / "link").symlink_to(path)
    lock = WriterLock(path.parent / "link", "state_path")
    assert not taken_by_another_process(path)
    lock.require()


def test_within_a_process_the_latest_object_may_write_and_an_earlier_one_may_not(path):
    first = WriterLock(path, "state_path")
    first.require()
    second = WriterLock(path, "state_path")
    second.require()
    with pytest.raises(StateError, match="now written by a later strategy"):
        first.require()


def test_a_lock_is_released_when_its_object_is_deleted(path):
    lock = WriterLock(path, "state_path")
    assert not taken_by_another_process(path)
    del lock
    gc.collect()
    assert taken_by_another_process(path)


def test_the_end_of_an_earlier_object_does_not_release_the_lock_of_the_latest(path):
    earlier = WriterLock(path, "state_path")
    latest = WriterLock(path, "state_path")
    del earlier
    gc.collect()
    latest.require()
    assert not taken_by_another_process(path)


def test_files_in_one_folder_are_locked_independently(path):
    locks = WriterLock(path, "state_path"), WriterLock(path.with_name("audit.jsonl"), "audit_path")
    for lock in locks:
        lock.require()


def test_another_name_of_the_folder_is_the_same_lock(path):
    (path.parent / "link").symlink_to(path.parent)
    with holder(path) as first:
        assert first.stdout.readline() == "locked\n"
        with pytest.raises(StateError, match="used by another server"):
            WriterLock(path.parent / "link" / path.name, "state_path")


def test_replacing_the_file_does_not_release_its_lock(path):
    path.write_bytes(b"old")
    lock = WriterLock(path, "state_path")
    path.with_name("new").write_bytes(b"new")
    os.replace(path.with_name("new"), path)
    lock.require()
    assert not taken_by_another_process(path)


def test_a_file_system_without_locks_is_a_warning(path, monkeypatch, caplog):
    def unsupported(*arguments):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("g2uardfl.federation.lock.fcntl.flock", unsupported)
    WriterLock(path, "state_path").require()
    assert "make sure that only one server uses it" in caplog.text


def test_nonsense_in_the_lock_file_is_not_shown(path):
    with holder(path) as first:
        assert first.stdout.readline() == "locked\n"
        (path.parent / ".guard.state.lock").write_bytes(b"\x1b[2J" * 100)
        with pytest.raises(StateError, match=r"another server \(another process\)"):
            WriterLock(path, "state_path")
