"""Parallel loops: every item is processed once, errors reach the caller, and nested or forked loops terminate."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import threadpoolctl
import torch

from g2uardfl.core import threads
from g2uardfl.core.threads import for_each, in_parallel, one_thread


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def test_one_thread_restores_the_number_of_threads_after_an_error():
    with torch_threads(2):
        with pytest.raises(ZeroDivisionError), one_thread():
            raise ZeroDivisionError
        assert torch.get_num_threads() == 2


def test_one_thread_restricts_torch_inside_the_block():
    with torch_threads(2):
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("items", [0, 1, 3, 1000])
@pytest.mark.parametrize("batch", [1, 3])
def test_for_each_processes_every_item_once_with_one_torch_thread(count, items, batch):
    done = []
    with torch_threads(count):
        for_each(lambda item: done.append((item, torch.get_num_threads())), range(items), batch)
    assert sorted(done) == [(item, 1) for item in range(items)]


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("items", [0, 1, 3, 1000])
def test_in_parallel_returns_results_in_order(count, items):
    with torch_threads(count):
        found = list(in_parallel(lambda item: (2 * item, torch.get_num_threads()), range(items)))
    assert found == [(2 * item, 1) for item in range(items)]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("wrong", [0, 500, 999])
@pytest.mark.parametrize("loop", [for_each, lambda function, items: list(in_parallel(function, items))])
def test_an_error_for_any_item_reaches_the_caller(loop, count, wrong):
    def work(item):
        if item == wrong:
            raise IndexError(item)

    with torch_threads(count), pytest.raises(IndexError, match=str(wrong)):
        loop(work, range(1000))


def test_nested_loops_terminate_with_more_threads_than_cores():
    done = []

    def outer(item):
        # Inside a loop torch has one thread, unless the function requests more.
        torch.set_num_threads(8)
        for_each(lambda inner: done.append((item, inner)), range(20))

    with torch_threads(8):
        for_each(outer, range(100))
    assert sorted(done) == [(item, inner) for item in range(100) for inner in range(20)]


def test_loops_inside_one_thread_use_the_threads_that_it_found(monkeypatch):
    monkeypatch.setattr(threads, "usable_cores", lambda: 3)
    meeting = threading.Barrier(3)
    with torch_threads(3), one_thread():
        for_each(lambda _: meeting.wait(10), range(3))
        assert list(in_parallel(lambda _: meeting.wait(10), range(3))).count(0) == 1


@pytest.mark.parametrize("first_to_leave", [0, 1])
def test_callers_in_several_threads_leave_the_settings_as_they_were(first_to_leave):
    """Each block ends while the other is open or before it."""
    entered, leave = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]

    def call(number):
        with one_thread():
            entered[number].set()
            leave[number].wait(10)

    before = [(pool["filepath"], pool["num_threads"]) for pool in threadpoolctl.threadpool_info()]
    with torch_threads(2), ThreadPoolExecutor(2) as pool:
        calls = []
        for number in (0, 1):
            calls.append(pool.submit(call, number))
            entered[number].wait(10)
        for number in (first_to_leave, 1 - first_to_leave):
            leave[number].set()
            calls[number].result()
        assert torch.get_num_threads() == 2
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == 2
    assert [(pool["filepath"], pool["num_threads"]) for pool in threadpoolctl.threadpool_info()] == before


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a system on which processes can be pinned")
def test_the_usable_cores_are_those_that_the_process_is_pinned_to():
    program = """
import os
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
from g2uardfl.core.threads import usable_cores
assert usable_cores() == 1
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)


def test_a_forked_process_starts_its_own_threads():
    program = """
import os, signal, torch
from g2uardfl.core.threads import for_each
torch.set_num_threads(3)
done = []
for_each(done.append, range(100))
child = os.fork()
if child == 0:
    signal.alarm(50)
    for_each(done.append, range(100))
    os._exit(0 if len(done) == 200 else 1)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
