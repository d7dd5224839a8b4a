"""The cost of a strategy on a Flower server: seconds of `aggregate_train` on the same replies.

    python benchmarks/flower.py

Compares Flower's FedAvg and MultiKrum with the guard: in Flower, in Flower with its state saved after every round, and
without Flower. Each figure is the median over the repetitions; `adds` is the difference from FedAvg.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, MultiKrum

import g2uardfl
from g2uardfl.flower import AggregatorStrategy, G2uardFLStrategy
from server_step import HIDDEN, clients, model

try:
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:
    pass
else:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


BASE = "Flower's FedAvg"
Round = Callable[[], Any]


def reply(node: int, weights: dict[str, np.ndarray]) -> Message:
    record = ArrayRecord({name: Array(array) for name, array in weights.items()})
    content = RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 10, "loss": 0.1})})
    return Message(content, reply_to=Message(RecordDict(), node, "train"))


def strategies(count: int, folder: Path) -> dict[str, Any]:
    hostile = count // 5
    return {
        BASE: FedAvg(),
        "Flower's MultiKrum": MultiKrum(num_malicious_nodes=hostile, num_nodes_to_select=count - hostile),
        "fedavg, ours": AggregatorStrategy("fedavg"),
        "g2uardfl": G2uardFLStrategy(seed=0),
        "g2uardfl, saved every round": G2uardFLStrategy(
            seed=0, state_path=folder / "state", audit_path=folder / "audit"
        ),
    }


def rounds(count: int, weights: dict[str, np.ndarray], sent: dict[int, Any], folder: Path) -> dict[str, Round]:
    """A round of each strategy, and one of the guard without Flower; the windows of the guards are full."""
    start = ArrayRecord({name: Array(array) for name, array in weights.items()})
    replies = [reply(node + 1, arrays) for node, arrays in sent.items()]
    guard = g2uardfl.G2uardFL(seed=0)

    def one(strategy: Any) -> Round:
        def round_() -> None:
            strategy.current_arrays = start
            strategy.aggregate_train(1, replies)

        return round_

    found = {name: one(strategy) for name, strategy in strategies(count, folder).items()}
    found["G2uardFL.aggregate alone"] = lambda: guard.aggregate(weights, sent)
    for name in [name for name in found if "g2uardfl" in name.lower()]:
        for _ in range(-(-guard.configuration()["window"] // count)):
            found[name]()
    return found


def timed(functions: dict[str, Round], repetitions: int) -> dict[str, tuple[float, float]]:
    """The median wall-clock and CPU seconds of each, measured in turn, so that a busy moment affects all of them."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in functions}
    for repetition in range(repetitions + 1):
        for name, function in functions.items():
            began, worked = time.perf_counter(), time.process_time()
            function()
            if repetition:
                seconds[name].append((time.perf_counter() - began, time.process_time() - worked))
    return {name: tuple(map(statistics.median, zip(*times, strict=True))) for name, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replies", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--size", default="1.2M", choices=list(HIDDEN))
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    generator = np.random.default_rng(0)
    weights = model(HIDDEN[arguments.size], generator)
    for count in arguments.replies:
        with tempfile.TemporaryDirectory() as folder:
            sent = clients(weights, count, generator)
            found = timed(rounds(count, weights, sent, Path(folder)), arguments.repetitions)
        print(f"\n{count} replies of {sum(array.size for array in weights.values()):,} parameters")
        for name, (clock, cores) in found.items():
            added = f"adds {clock - found[BASE][0]:7.3f} s, {cores - found[BASE][1]:7.3f} s of CPU time"
            print(f"  {name:<30}{clock:>8.3f} s   {added}")


if __name__ == "__main__":
    main()
