"""Work on several threads, each with one core to itself."""

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

_MOST_THREADS = 64
_RUNS = 8
"""Into how many runs for each thread work is cut, so that no thread waits long for another at the end."""


def in_parallel(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """`function` of each item, in order, as many at a time as torch may use threads; each call has one to itself.

    Threads that each finish a piece of work beat threads that meet after every operation, above all on a busy machine.
    """
    threads = min(torch.get_num_threads(), len(items))
    with one_thread():
        if threads <= 1:
            yield from map(function, items)
            return
        # Runs of several items, since handing work over has a price of its own.
        length = math.ceil(len(items) / (_RUNS * threads))
        runs = [items[start : start + length] for start in range(0, len(items), length)]
        with ThreadPoolExecutor(threads) as pool:
            for results in pool.map(lambda run: [function(item) for item in run], runs):
                yield from results


def for_each(function: Callable[[Item], object], items: Sequence[Item]) -> None:
    """Call `function` with each item, in any order, on as many threads as torch may use, this one among them.

    For work that leaves its results in place: without results to hand over it starts in a fifth of the time that
    `in_parallel` takes.
    """
    threads = min(torch.get_num_threads(), len(items))
    left = deque(items)

    def work() -> None:
        try:
            while left:
                try:
                    item = left.popleft()
                except IndexError:
                    return  # Another thread was faster.
                function(item)
        finally:
            # After an error nobody goes on.
            left.clear()

    with one_thread():
        others = [_helpers().submit(work) for _ in range(threads - 1)]
        try:
            work()
        finally:
            # Whoever has not begun by now is not needed; waiting for it, inside another `for_each`, could take forever.
            begun = [other for other in others if not other.cancel()]
            wait(begun)
        for other in begun:
            other.result()


@cache
def _helpers() -> ThreadPoolExecutor:
    """Threads that are kept, since starting one takes as long as averaging a million numbers."""
    return ThreadPoolExecutor(_MOST_THREADS, "g2uardfl")


# A process that is forked off has none of the threads.
os.register_at_fork(after_in_child=_helpers.cache_clear)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep tensor and matrix work on the calling thread and on threads that start meanwhile."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _libraries().limit(limits=1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(threads)


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()
