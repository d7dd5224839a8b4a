"""Parallel loops: every item is processed once, errors reach the caller, and nested or forked loops terminate."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

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


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("items", [0, 1, 3, 1000])
def test_for_each_processes_every_item_once_with_one_torch_thread(threads, items):
    done = []
    with torch_threads(threads):
        for_each(lambda item: done.append((item, torch.get_num_threads())), range(items))
    assert sorted(done) == [(item, 1) for item in range(items)]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("items", [0, 1, 3, 1000])
def test_in_parallel_returns_results_in_order(threads, items):
    with torch_threads(threads):
        found = list(in_parallel(lambda item: (2 * item, torch.get_num_threads()), range(items)))
    assert found == [(2 * item, 1) for item in range(items)]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("wrong", [0, 500, 999])
@pytest.mark.parametrize("loop", [for_each, lambda function, items: list(in_parallel(function, items))])
def test_an_error_for_any_item_reaches_the_caller(loop, threads, wrong):
    def work(item):
        if item == wrong:
            raise IndexError(item)

    with torch_threads(threads), pytest.raises(IndexError, match=str(wrong)):
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
