"""The memory of a run on the CPU: its peak, its parts, and whether it stays constant over the rounds (Linux).

    G2UARDFL_DATA=FOLDER python benchmarks/memory.py --task cifar10 --model vgg9 --engine workers --rounds 3

A thread reads `smaps_rollup` of this process and of all below it, twenty times a second. PSS counts a page that several
processes share in equal parts to each, so the sum is the memory of the run; of the files (program code) that other
processes use, too, it counts only the run's part. The run writes a run directory and checkpoints like any other.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.directory import RunDirectory
from g2uardfl.simulation.run import Callback, Record, Simulation

MEGABYTE = 1e6


@dataclass(frozen=True)
class Size:
    """The memory of one process or the sum over several, in bytes; the last three make up `pss`."""

    rss: int = 0
    pss: int = 0
    pss_anon: int = 0
    pss_shmem: int = 0
    pss_file: int = 0

    @staticmethod
    def of(process: int) -> Size:
        """The size of a process; nothing of one that has ended."""
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
        except OSError:
            return Size()
        kilobytes = {name.lower(): int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return Size(*[1024 * kilobytes[field.name] for field in fields(Size)])

    @staticmethod
    def total(sizes: Iterable[Size]) -> Size:
        """The sum over processes."""
        table = [[getattr(size, field.name) for field in fields(Size)] for size in sizes]
        return Size(*map(sum, zip(*table, strict=True)))

    def __str__(self) -> str:
        parts = ", ".join(
            f"{name} {size / MEGABYTE:,.0f}"
            for name, size in (("private", self.pss_anon), ("shared", self.pss_shmem), ("files", self.pss_file))
        )
        return f"{self.pss / MEGABYTE:7,.0f} MB PSS ({parts})   {self.rss / MEGABYTE:7,.0f} MB RSS"


class Watch(Callback):
    """Samples the tree of processes in the background, and exactly after the rounds `points`."""

    def __init__(self, points: Iterable[int], seconds: float) -> None:
        self.points = set(points)
        self.seconds = seconds
        self.peak: list[tuple[int, Size]] = []
        """The processes and their sizes when the sum of PSS was largest."""
        self.peaks_of_rounds: list[int] = []
        """The largest sum of PSS before and in each round."""
        self._done = threading.Event()
        self._highest = 0
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def on_start(self, simulation: Simulation) -> None:
        """The data is loaded."""
        self._next_phase()
        print(f"data loaded   {tree_size()}", flush=True)

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """One more round is done."""
        self._next_phase()
        if record["round"] in self.points:
            print(f"round {record['round']:<7} {tree_size()}", flush=True)

    def _next_phase(self) -> None:
        self.peaks_of_rounds.append(self._highest)
        self._highest = 0

    def _sample(self) -> None:
        while not self._done.wait(self.seconds):
            sizes = [(process, Size.of(process)) for process in tree(os.getpid())]
            pss = sum(size.pss for _, size in sizes)
            self._highest = max(self._highest, pss)
            if pss > sum(size.pss for _, size in self.peak):
                self.peak = sizes


def tree(process: int) -> list[int]:
    """The ids of `process` and all processes below it."""
    children: list[int] = []
    for listing in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += [int(child) for child in listing.read_text().split()]
    return [process, *(lower for child in children for lower in tree(child))]


def tree_size() -> Size:
    return Size.total(Size.of(process) for process in tree(os.getpid()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="cifar10")
    parser.add_argument("--model", default="", help="one of the task's models; its first if not given")
    parser.add_argument("--engine", default="workers", choices=["loop", "workers", "batched"])
    parser.add_argument("--workers", type=int, default=0, help="as many as there are cores if not given")
    parser.add_argument("--attack", default="black_box")
    parser.add_argument("--defense", default="g2uardfl")
    parser.add_argument("--per-round", type=int, default=10)
    parser.add_argument("--local-steps", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--evaluate-every", type=int, default=1)
    parser.add_argument("--at", type=int, nargs="+", help="rounds after which to print the size; a few if not given")
    parser.add_argument("--interval", type=float, default=0.05, help="seconds between two measurements")
    options = parser.parse_args()
    config = RunConfig(
        task=options.task,
        model=options.model,
        attack=options.attack,
        defense=options.defense,
        rounds=options.rounds,
        per_round=options.per_round,
        local_steps=options.local_steps,
        evaluate_every=options.evaluate_every,
        engine=options.engine,
        workers=options.workers,
        start="scratch",
    )
    points = options.at or {max(1, options.rounds * part // 12) for part in (1, 3, 6, 9, 12)}
    with tempfile.TemporaryDirectory() as folder, Watch(points, options.interval) as watch:
        summary = Simulation(config).run([RunDirectory(folder), watch])
    print(f"peak          {Size.total(size for _, size in watch.peak)}")
    for number, (_, size) in enumerate(watch.peak):
        print(f"  {f'process {number}' if number else 'main':11} {size}")
    print(f"largest RSS of main, by the system's own count: {summary['peak_memory_mb']:,.0f} MB")
    phases = " ".join(f"{peak / MEGABYTE:,.0f}" for peak in watch.peaks_of_rounds[:13])
    print(f"peak PSS in MB while loading and in the first rounds: {phases}")


if __name__ == "__main__":
    main()
