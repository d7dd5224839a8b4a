"""The cost of a busy machine: the time of a command with and without a process that keeps one core busy.

    python benchmarks/shared_machine.py --repeats 3
    python benchmarks/shared_machine.py -- python -m pytest -q tests/core

Runs with and without the other process alternate; each ratio is of two runs that follow each other. Both are pinned to
`--cores` cores (Linux). With one of two cores taken, a fair scheduler leaves a command that uses both three quarters to
half of the machine, so that a ratio above 2.2 means that threads wait for each other.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

BUSY = "while True: pass"


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep `count` cores busy with processes that never wait."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def seconds(command: Sequence[str], limit: float) -> float:
    """The wall time of a command in an empty folder; infinity if it takes longer than `limit`."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        try:
            subprocess.run(command, cwd=folder, check=True, timeout=limit, stdout=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return float("inf")
        return time.perf_counter() - began


def default_command(rounds: int) -> list[str]:
    entry = "from g2uardfl.cli import main; main()"
    options = ["--task", "digits", "--attack", "black_box", "--defense", "g2uardfl", "--rounds", str(rounds)]
    return [sys.executable, "-c", entry, "run", *options, "--out", "run"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2, help="how many cores both share (default: 2)")
    parser.add_argument("--busy", type=int, default=1, help="how many other processes are busy (default: 1)")
    parser.add_argument("--rounds", type=int, default=40, help="of the default command (default: 40)")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a run ends (default: 300)")
    parser.add_argument("command", nargs="*", help="default: a run of task digits with the guard")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    command = arguments.command or default_command(arguments.rounds)
    ratios = []
    for _ in range(arguments.repeats):
        alone = seconds(command, arguments.limit)
        with busy_processes(arguments.busy):
            beside = seconds(command, arguments.limit)
        ratios.append(beside / alone)
        print(f"alone {alone:7.1f} s   beside a busy process {beside:7.1f} s   ratio {ratios[-1]:5.2f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
