"""The loading time of each task's data: the first time, and again from the cache of prepared data.

G2UARDFL_DATA=FOLDER python benchmarks/loading.py
"""

from __future__ import annotations

import os
import tempfile
import time

from g2uardfl import tasks


def seconds(name: str) -> float:
    """Load all data that a run of a task needs."""
    began = time.perf_counter()
    task = tasks.create(name)
    sizes = [len(part) for part in (task.train, task.test, task.backdoor_train, task.backdoor_test)]
    took = time.perf_counter() - began
    print(f"{name:14} {took:6.2f} s   {sizes}")
    return took


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        os.environ["G2UARDFL_CACHE"] = cache
        for heading in ("first", "from the cache"):
            print(heading)
            for name in tasks.names():
                seconds(name)


if __name__ == "__main__":
    main()
