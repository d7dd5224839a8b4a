"""Parallel loops over threads, each of which runs its tensor operations on a single core."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAX_POOL_THREADS = 64
"""The maximum number of threads in the shared pool. Threads start on demand, so the value only bounds their number on
machines with very many cores."""
_BATCHES_PER_THREAD = 8
"""The number of batches that `in_parallel` makes for each thread. More batches balance the load better, so that threads
finish at nearly the same time; fewer batches cost less overhead."""


def in_parallel(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Map `function` over `items`, in order, on as many threads as torch may use.

    Within a call, tensor operations use one thread. Threads that work independently are faster than threads that
    synchronise after every operation, in particular on a busy machine.
    """
    threads = min(torch.get_num_threads(), len(items))
    with one_thread():
        if threads <= 1:
            yield from map(function, items)
            return
        # Each submission has overhead, so a thread receives several items at once.
        size = math.ceil(len(items) / (_BATCHES_PER_THREAD * threads))
        batches = [items[start : start + size] for start in range(0, len(items), size)]
        with ThreadPoolExecutor(threads) as pool:
            for results in pool.map(lambda batch: [function(item) for item in batch], batches):
                yield from results


def for_each(function: Callable[[Item], object], items: Sequence[Item]) -> None:
    """Call `function` with each item, in any order, on as many threads as torch may use, including the current one.

    Use it for functions that write their results in place. It starts five times faster than `in_parallel`, because it
    reuses threads and returns nothing.
    """
    threads = min(torch.get_num_threads(), len(items))
    remaining = deque(items)

    def work() -> None:
        try:
            while remaining:
                try:
                    item = remaining.popleft()
                except IndexError:
                    return  # Another thread took the last item.
                function(item)
        finally:
            # After an error the other threads stop, too.
            remaining.clear()

    with one_thread():
        others = [_pool().submit(work) for _ in range(threads - 1)]
        try:
            work()
        finally:
            # No items remain for threads that have not started. Waiting for one could deadlock if this call runs inside
            # another `for_each`, whose threads fill the pool.
            started = [other for other in others if not other.cancel()]
            wait(started)
        for other in started:
            other.result()


@cache
def _pool() -> ThreadPoolExecutor:
    """Threads that live as long as the process: starting a thread takes as long as averaging a million numbers."""
    return ThreadPoolExecutor(_MAX_POOL_THREADS, "g2uardfl")


# A forked child process inherits the pool object without its threads.
os.register_at_fork(after_in_child=_pool.cache_clear)


@contextmanager
def one_thread() -> Iterator[None]:
    """Restrict torch and BLAS to one thread, in the calling thread and in threads that start inside the block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _blas_controller().limit(limits=1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(threads)


@cache
def _blas_controller() -> ThreadpoolController:
    return ThreadpoolController()
