"""The cost of every rule on the server, compared with the same rule in byzfl and in Flower, on the same arrays.

    python benchmarks/aggregators.py
    python benchmarks/aggregators.py --clients 10 --parameters 1200000 --only median --repeats 9

Columns:

- "rule" is our `combine` on a (clients x parameters) float32 matrix, next to byzfl on the same matrix (with NumPy or
  torch, whichever is faster).
- "whole" is our `aggregate` from one mapping of NumPy arrays for each client to a new mapping, with checks, differences
  and verdicts. "Flower" is its `aggregate_train` from messages with the same NumPy arrays to a new record, without the
  deserialisation of arrays. "bytes" is the same with deserialisation, as in a real federation, where Flower
  deserialises once or twice per round; ours does not, since it receives arrays.

All rules tolerate a fifth of the clients (Bulyan a fifth of n - 3), and RFA makes three iterations, as in byzfl. Rules
run in turn in one process; each call is made twice, the second one is timed, and the minimum over the repetitions is
shown. A ratio above 1 says how many times faster ours is. Rules that need more than the free memory, and libraries that
are not installed, are left out. On a busy machine use `--one-thread`, which measures the CPU time of a single thread.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import logging
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from g2uardfl import aggregators
from g2uardfl.aggregators.base import Aggregator, Round
from g2uardfl.core.errors import G2uardFLError
from g2uardfl.core.layout import ModelLayout

Peers = tuple[ModuleType | None, ModuleType | None]
"""The aggregators of byzfl and the strategies of Flower, where they are installed."""

HEADINGS = ["", "rule", "byzfl", "ratio", "whole", "Flower", "ratio", "bytes", "ratio"]

ARRAYS = 10
"""The number of arrays of a model."""

BYZFL: dict[str, tuple[Callable[[Any, int], Callable[[Any], Any]], float, float]] = {
    "fedavg": (lambda peer, f: peer.Average(), 0.1, 0.1),
    "krum": (lambda peer, f: peer.Krum(f), 4, 3),
    "multi_krum": (lambda peer, f: peer.MultiKrum(f), 5, 3),
    "median": (lambda peer, f: peer.Median(), 2, 4),
    "trimmed_mean": (lambda peer, f: peer.TrMean(f), 1, 3),
    "rfa": (lambda peer, f: peer.GeometricMedian(nu=1e-5, T=3), 3, 3),
    "ndc": (lambda peer, f: lambda vectors: peer.Average()(peer.Clipping(c=2.0)(vectors)), 2, 2),
}
"""The rule of byzfl, and the memory that it needs with NumPy and with torch, as a multiple of the matrix."""

FLOWER: dict[str, tuple[Callable[[Any, int, int], Any], float]] = {
    "fedavg": (lambda peer, n, f: peer.FedAvg(), 0.1),
    "krum": (lambda peer, n, f: peer.Krum(num_malicious_nodes=f), 3),
    "multi_krum": (lambda peer, n, f: peer.MultiKrum(num_malicious_nodes=f, num_nodes_to_select=n - f), 3),
    "bulyan": (lambda peer, n, f: peer.Bulyan(num_malicious_nodes=f), 3),
    "median": (lambda peer, n, f: peer.FedMedian(), 0.5),
    "trimmed_mean": (lambda peer, n, f: peer.FedTrimmedAvg(beta=0.2), 0.5),
}
"""Flower's strategy, and the memory that it needs, as a multiple of the matrix."""


MAX_REPETITIONS, MAX_SECONDS = 40, 8.0
"""Short calls vary much: they are repeated this often, or until all repetitions have taken this many seconds."""


@dataclass
class Contestant:
    """A call to time. `prepare` returns it and is not timed itself."""

    prepare: Callable[[], Callable[[], Any]]
    matrices: float
    """The memory that it needs, as a multiple of the (clients x parameters) matrix."""
    best: float = math.inf
    missing: str = "-"
    """What is printed in place of a time."""

    def turn(self, matrix_bytes: int, clock: Callable[[], float]) -> None:
        """One repetition, if there is enough memory."""
        if self.missing != "-":
            return
        if self.matrices * matrix_bytes > free_memory():
            self.missing = "memory"
            return
        try:
            # The first call is not timed: it allocates the memory that the previous contestant has freed.
            self.prepare()()
            call = self.prepare()
            began = clock()
            call()
        except RuntimeError:
            self.missing = "rejected"
            return
        self.best = min(self.best, clock() - began)

    def __str__(self) -> str:
        return f"{self.best:.4f}" if math.isfinite(self.best) else self.missing


def free_memory() -> float:
    """Bytes that can be allocated; infinity where the system does not say."""
    table = Path("/proc/meminfo")
    if not table.exists():
        return math.inf
    line = next(line for line in table.read_text().splitlines() if line.startswith("MemAvailable"))
    return 0.8 * 1024 * int(line.split()[1])


def byzfl() -> ModuleType | None:
    """The aggregators of byzfl, without the rest of the package, which needs torchvision."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None:
        return None
    sys.modules.setdefault("byzfl", importlib.util.module_from_spec(spec))
    return importlib.import_module("byzfl.aggregators")


def flower() -> ModuleType | None:
    """Flower's strategies."""
    try:
        strategies = importlib.import_module("flwr.serverapp.strategy")
    except ImportError:
        return None
    logging.getLogger("flwr").setLevel(logging.ERROR)
    return strategies


def create(address: str, malicious: int) -> Aggregator:
    """Our rule, with the settings of the other libraries."""
    settings: dict[str, dict[str, Any]] = {
        **{name: {"malicious_clients": malicious} for name in ("krum", "multi_krum", "bulyan")},
        "rfa": {"iterations": 3, "tolerance": 0.0},
    }
    return aggregators.create(address, **settings.get(aggregators.find(address).name, {}))


def cut(vector: np.ndarray) -> dict[str, np.ndarray]:
    """A model whose arrays are views of parts of `vector`."""
    edges = np.linspace(0, len(vector), ARRAYS + 1).astype(int)
    return {f"{i}.weight": vector[edges[i] : edges[i + 1]] for i in range(ARRAYS)}


def ours(address: str, malicious: int, matrix: np.ndarray) -> tuple[Contestant, Contestant]:
    """The rule alone, and the whole call. The global model is zero, so that weights equal updates."""
    start = np.zeros(matrix.shape[1], np.float32)
    model, sent = cut(start), {i: cut(row) for i, row in enumerate(matrix)}
    examples = dict.fromkeys(sent, 1)
    rule = create(address, malicious)
    round_ = Round(
        ModelLayout.of(model), torch.from_numpy(start), tuple(sent), torch.from_numpy(matrix), np.ones(len(matrix))
    )
    rule.accept_layout(round_.layout)
    keeps = 1.0 if rule.name == "g2uardfl" else 0.0
    return (
        Contestant(lambda: partial(rule.combine, round_), 0.5 + keeps),
        Contestant(lambda: partial(rule.aggregate, model, sent, examples), 1.5 + keeps),
    )


def theirs_byzfl(peer: ModuleType, name: str, malicious: int, matrix: np.ndarray) -> list[Contestant]:
    """The rule of byzfl with NumPy and with torch."""
    make, with_numpy, with_torch = BYZFL[name]
    rule = make(peer, malicious)

    def given() -> np.ndarray:
        # byzfl's clipping works in place.
        return matrix.copy() if name == "ndc" else matrix

    return [
        Contestant(lambda: partial(rule, given()), with_numpy),
        Contestant(lambda: partial(rule, torch.from_numpy(given())), with_torch),
    ]


def theirs_flower(peer: ModuleType, name: str, malicious: int, matrix: np.ndarray) -> list[Contestant]:
    """Flower's strategy on messages of arrays that need no deserialisation, and on messages of bytes."""
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

    class Ready(Array):
        def __init__(self, array: np.ndarray) -> None:
            super().__init__(str(array.dtype), array.shape, "numpy.ndarray", b"")
            self.__dict__["array"] = array

        def numpy(self) -> np.ndarray:
            array: np.ndarray = self.__dict__["array"]
            return array

    make, matrices = FLOWER[name]
    strategy = make(peer, len(matrix), malicious)

    def prepare(kind: type[Array]) -> Callable[[], Any]:
        # Flower removes the arrays from its messages, so that each call needs new ones.
        replies = []
        for row in matrix:
            arrays = ArrayRecord()
            for key, array in cut(row).items():
                arrays[key] = kind(array)
            content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
            replies.append(SimpleNamespace(content=content, has_error=lambda: False))
        return partial(strategy.aggregate_train, 1, replies)

    return [Contestant(partial(prepare, Ready), matrices), Contestant(partial(prepare, Array), 2 + matrices)]


def compare(address: str, matrix: np.ndarray, peers: Peers, repeats: int, clock: Callable[[], float]) -> str:
    """One line of the table, after at least `repeats` repetitions, or more if they are short."""
    name = aggregators.find(address).name
    malicious = (len(matrix) - 3) // 5 if name == "bulyan" else len(matrix) // 5
    rule, whole = ours(address, malicious, matrix)
    from_byzfl = theirs_byzfl(peers[0], name, malicious, matrix) if peers[0] and name in BYZFL else []
    from_flower = theirs_flower(peers[1], name, malicious, matrix) if peers[1] and name in FLOWER else [None, None]
    contestants = [one for one in (rule, *from_byzfl, whole, *from_flower) if one is not None]
    began = time.perf_counter()
    for number in range(max(repeats, MAX_REPETITIONS)):
        if number >= repeats and time.perf_counter() - began > MAX_SECONDS:
            break
        # In a new order each time, because a call after a large one has cold caches.
        first = number % len(contestants)
        order = contestants[first:] + contestants[:first]
        for contestant in order if number % 2 else reversed(order):
            contestant.turn(matrix.nbytes, clock)
    cells = [name, str(rule), *_beside(rule, min(from_byzfl, key=lambda c: c.best, default=None))]
    cells += [str(whole), *_beside(whole, from_flower[0]), *_beside(whole, from_flower[1])]
    return row(cells)


def _beside(mine: Contestant, other: Contestant | None) -> tuple[str, str]:
    if other is None:
        return "-", "-"
    ratio = other.best / mine.best
    return str(other), f"{ratio:.2f} x" if math.isfinite(ratio) else "-"


def row(cells: list[str]) -> str:
    """The cells in columns of fixed width."""
    return f"{cells[0]:14}" + "".join(f"{cell:>10}" for cell in cells[1:])


def timeable(name: str) -> bool:
    """Whether a rule needs nothing but updates; prints why not."""
    try:
        create(name, 0).aggregate({"weight": np.zeros((2, 2))}, {0: {"weight": np.ones((2, 2))}})
    except G2uardFLError as error:
        print(f"{name} is left out: {error}")
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--parameters", type=int, nargs="+", default=[1_200_000, 10_000_000])
    parser.add_argument("--only", metavar="NAME", nargs="+", default=aggregators.names())
    parser.add_argument("--repeats", type=int, default=3, help="the minimum; short calls are repeated more often")
    parser.add_argument("--one-thread", action="store_true", help="measure the CPU time of a single thread")
    arguments = parser.parse_args()
    peers = byzfl(), flower()
    for peer, title in zip(peers, ("byzfl", "Flower"), strict=True):
        if peer is None:
            print(f"{title} is not installed: its columns are empty")
    names = [name for name in arguments.only if timeable(name)]
    clock = time.perf_counter
    if arguments.one_thread:
        clock = time.process_time
        torch.set_num_threads(1)
        threadpool_limits(1)
    unit = "CPU seconds" if arguments.one_thread else "seconds"
    print(f"{torch.get_num_threads()} threads, {unit}, minimum of at least {arguments.repeats}")
    for parameters in arguments.parameters:
        for clients in arguments.clients:
            title = f"{clients} clients x {parameters:,} parameters"
            if 4 * clients * parameters * 2.5 > free_memory():
                print(f"\n{title}: left out, not enough memory")
                continue
            print(f"\n{title}\n{row(HEADINGS)}", flush=True)
            matrix = np.random.default_rng(0).standard_normal((clients, parameters), dtype=np.float32)
            matrix *= 0.002
            for name in names:
                print(compare(name, matrix, peers, arguments.repeats, clock), flush=True)
            del matrix


if __name__ == "__main__":
    main()
