"""Parallel loops over threads, each of which runs its tensor operations on a single core.

Threads of OpenMP and BLAS meet at a barrier after every operation. If another process occupies one of the cores, all
other threads wait there, most of them spinning. Threads that take tasks from a common queue only wait for the last
task.
"""

from __future__ import annotations

import math
import os
import sys
import threading
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


class _ThisThread(threading.local):
    """The limits of each thread."""

    allowed: int | None = None
    """Inside `one_thread`: the number of threads that parallel loops may use; 1 in the threads of such a loop."""


class _Process:
    """The limits that all threads of the process share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.blocks = 0
        """How many threads are inside `one_thread`."""
        self.torch_threads = 1
        """The number of torch's threads when the first of them entered."""
        self.undo: Callable[[], object] = int
        """Restores the numbers of threads of BLAS and OpenMP libraries."""


_this_thread = _ThisThread()
_process = _Process()


@cache
def usable_cores() -> int:
    """The number of cores that this process may use: those it is pinned to, and those its container allows it."""
    import joblib

    return int(joblib.cpu_count())


def in_parallel(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Map `function` over `items`, in order, on as many threads as torch and the machine allow.

    Within a call, tensor operations use one thread, so that results do not depend on the number of threads.
    """
    threads = _threads_for(len(items))
    with one_thread():
        if threads == 1:
            yield from map(function, items)
            return
        # Each submission has overhead, so a thread receives several items at once.
        size = math.ceil(len(items) / (_BATCHES_PER_THREAD * threads))
        batches = [items[start : start + size] for start in range(0, len(items), size)]

        def work(batch: Sequence[Item]) -> list[Result]:
            with _inside_loop():
                return [function(item) for item in batch]

        with ThreadPoolExecutor(threads) as pool:
            for results in pool.map(work, batches):
                yield from results


def for_each(function: Callable[[Item], object], items: Sequence[Item], batch: int = 1) -> None:
    """Call `function` with each item, in any order, on as many threads as `in_parallel`, including the current one.

    Use it for functions that write their results in place. It starts five times faster than `in_parallel`, because it
    reuses threads and returns nothing.

    Parameters
    ----------
    function, items
        The function and its arguments, one item for each call.
    batch
        How many items a thread takes at once (default: 1). A thread pays off only if it has about a millisecond of
        work.
    """
    remaining = deque(items[start : start + batch] for start in range(0, len(items), batch))
    threads = _threads_for(len(remaining))

    def work() -> None:
        try:
            with _inside_loop():
                while remaining:
                    try:
                        taken = remaining.popleft()
                    except IndexError:
                        return  # Another thread took the last items.
                    for item in taken:
                        function(item)
        finally:
            # After an error the other threads stop, too.
            remaining.clear()

    with one_thread():
        others = [_pool().submit(work) for _ in range(threads - 1)]
        try:
            work()
        finally:
            # No items remain for threads that have not started, because the pool is busy with other loops.
            started = [other for other in others if not other.cancel()]
            wait(started)
        for other in started:
            other.result()


def _threads_for(tasks: int) -> int:
    allowed = torch.get_num_threads() if _this_thread.allowed is None else _this_thread.allowed
    if allowed <= 1 or tasks <= 1:
        return 1
    return min(allowed, tasks, usable_cores())


@contextmanager
def _inside_loop() -> Iterator[None]:
    """Restrict torch in a thread of a parallel loop; loops inside the loop use this thread alone."""
    before, _this_thread.allowed = _this_thread.allowed, 1
    if before is None:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        _this_thread.allowed = before


@cache
def _pool() -> ThreadPoolExecutor:
    """Threads that live as long as the process: starting a thread takes as long as averaging a million numbers."""
    return ThreadPoolExecutor(_MAX_POOL_THREADS, "g2uardfl")


@contextmanager
def one_thread() -> Iterator[None]:
    """Restrict torch and BLAS to one thread in the calling thread; the loops of this module may still use others.

    Afterwards the limits are restored, even if several threads of the caller are inside at the same time.
    """
    if _this_thread.allowed is not None:
        yield
        return
    with _process.lock:
        before = torch.get_num_threads()
        if _process.blocks == 0:
            _process.torch_threads = before
            _process.undo = _libraries("sklearn" in sys.modules).limit(limits=1).restore_original_limits
        elif before == 1:
            # A thread that has not used torch yet starts with the limit of the other blocks.
            before = _process.torch_threads
        _process.blocks += 1
        torch.set_num_threads(1)
    _this_thread.allowed = before
    try:
        yield
    finally:
        _this_thread.allowed = None
        with _process.lock:
            _process.blocks -= 1
            if _process.blocks == 0:
                _process.undo()
            torch.set_num_threads(before)


@cache
def _libraries(with_sklearn: bool) -> ThreadpoolController:
    """The BLAS and OpenMP libraries in the process; importing scikit-learn adds some."""
    return ThreadpoolController()


def _after_fork() -> None:
    """A forked child has this thread only, and the pool object without its threads."""
    _pool.cache_clear()
    _process.lock = threading.Lock()
    _process.blocks = 0 if _this_thread.allowed is None else 1


os.register_at_fork(after_in_child=_after_fork)
