"""The cost of a round on the server: seconds per stage of the guard, beside FedAvg and one read of the same bytes.

    python benchmarks/server_step.py --profile paper

Everything is timed in one process on the same arrays; each figure is the median over the repetitions. If Flower is
installed, its Multi-Krum is timed on the same arrays.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import g2uardfl
from g2uardfl import aggregators

HIDDEN = {"0.1M": 300, "1.2M": 1090, "10M": 3150}
"""Number of parameters, roughly -> width of the model's layers."""


def model(width: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Three layers, of which the middle one has nearly all parameters."""
    shapes = {"1.weight": (width, 20), "1.bias": (width,), "2.weight": (width, width), "2.bias": (width,),
              "3.weight": (10, width), "3.bias": (10,)}  # fmt: skip
    return {name: generator.normal(size=shape, scale=0.05).astype(np.float32) for name, shape in shapes.items()}


def clients(weights: dict[str, np.ndarray], count: int, generator: np.random.Generator) -> dict[int, dict[str, Any]]:
    """The global model plus noise of standard deviation 0.002, for each client."""
    return {
        i: {
            name: array + 0.002 * generator.standard_normal(array.shape, dtype=np.float32)
            for name, array in weights.items()
        }
        for i in range(count)
    }


def median_seconds(function: Callable[[], Any], repetitions: int) -> float:
    """The median over the calls after the first."""
    function()
    times = []
    for _ in range(repetitions):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def flower_multi_krum(sent: dict[int, dict[str, np.ndarray]]) -> Callable[[], Any] | None:
    """Flower's Multi-Krum on the same arrays; None where Flower is not installed."""
    try:
        from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict  # noqa: F401
        from flwr.serverapp.strategy.multikrum import select_multikrum
    except ImportError:
        return None
    contents = [
        RecordDict(
            {
                "arrays": ArrayRecord({name: Array(array) for name, array in weights.items()}),
                "metrics": MetricRecord({"num-examples": 1}),
            }
        )
        for weights in sent.values()
    ]
    return lambda: select_multikrum(contents, num_malicious_nodes=2, num_nodes_to_select=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--sizes", nargs="+", default=list(HIDDEN), choices=list(HIDDEN))
    parser.add_argument("--profile", default="default")
    parser.add_argument("--repetitions", type=int, default=7)
    arguments = parser.parse_args()
    for size in arguments.sizes:
        generator = np.random.default_rng(0)
        weights = model(HIDDEN[size], generator)
        sent = clients(weights, arguments.clients, generator)
        rounds = itertools.cycle([sent, clients(weights, arguments.clients, generator)])
        parameters = sum(array.size for array in weights.values())
        guard = g2uardfl.G2uardFL(profile=arguments.profile, seed=0)
        stages: dict[str, list[float]] = {}

        def step(guard: Any = guard, weights: Any = weights, rounds: Any = rounds, stages: Any = stages) -> None:
            result = guard.aggregate(weights, next(rounds))
            for stage, seconds in result.report.seconds.items():
                stages.setdefault(stage, []).append(seconds)

        fedavg = aggregators.create("fedavg")
        read = median_seconds(lambda s=sent: [a.sum() for w in s.values() for a in w.values()], arguments.repetitions)
        plain = median_seconds(lambda f=fedavg, w=weights, s=sent: f.aggregate(w, s), arguments.repetitions)
        whole = median_seconds(step, arguments.repetitions)
        print(f"\n{arguments.clients} clients x {parameters:,} parameters")
        print(f"  {'one read of the same bytes':36}{read:9.4f} s")
        print(f"  {'fedavg':36}{plain:9.4f} s")
        krum = flower_multi_krum(sent)
        if krum is not None:
            seconds = median_seconds(krum, arguments.repetitions)
            print(f"  {'Flower Multi-Krum (selection)':36}{seconds:9.4f} s")
        print(f"  {'g2uardfl':36}{whole:9.4f} s   {whole / plain:.1f} x fedavg, {whole / read:.0f} x one read")
        for stage, times in stages.items():
            print(f"    {stage:34}{statistics.median(times[1:]):9.4f} s")


if __name__ == "__main__":
    main()
