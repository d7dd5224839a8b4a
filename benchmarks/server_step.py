"""The cost of a round on the server: the guard beside FedAvg, a plain mean and one read of the same bytes.

    python benchmarks/server_step.py --out results
    python benchmarks/server_step.py --device cuda --out results

All contenders of a cell (clients x parameters) are timed in turns on the same arrays in one process: NumPy arrays on a
CPU, tensors on a GPU. Figures are medians over the repetitions, after as many rounds as fill the guard's memory, so
that ratios hold on a machine that is busy with something else, too. `--out` gets a table (CSV) and all details, the
seconds of each stage included (JSON).
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import g2uardfl
from g2uardfl import aggregators

HIDDEN = {"0.1M": 300, "1.2M": 1090, "10M": 3150}
"""Number of parameters, roughly -> width of the model's layers."""
CELLS = {
    "cpu": ["10x0.1M", "10x1.2M", "10x10M", "100x0.1M", "500x0.1M", "1000x0.1M", "10xLoRA"],
    "cuda": ["10x0.1M", "10x1.2M", "10x10M", "100x0.1M", "100x1.2M", "500x0.1M", "10xLoRA"],
}
MOST_FOR_PAPER = 100
"""More clients than this are not measured with the paper's profile, whose memory is a graph of all pairs."""
FULL_WINDOW = 300
"""Submissions after which the memory of the default profile is full."""

Model = dict[str, Any]


def model(width: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Three layers, of which the middle one has nearly all parameters."""
    shapes = {"1.weight": (width, 20), "1.bias": (width,), "2.weight": (width, width), "2.bias": (width,),
              "3.weight": (10, width), "3.bias": (10,)}  # fmt: skip
    return {name: generator.normal(size=shape, scale=0.05).astype(np.float32) for name, shape in shapes.items()}


def adapter(generator: np.random.Generator, rank: int = 8, width: int = 768) -> dict[str, np.ndarray]:
    """A LoRA adapter of 1.6 million parameters: the matrices A and B of 128 modules, 256 arrays."""
    shapes = {"lora_A": (rank, width), "lora_B": (width, rank)}
    return {
        f"blocks.{block}.{module}.{matrix}.weight": generator.normal(size=shape, scale=0.02).astype(np.float32)
        for block in range(32)
        for module in ("query", "key", "value", "output")
        for matrix, shape in shapes.items()
    }


def clients(weights: dict[str, np.ndarray], count: int, generator: np.random.Generator) -> dict[int, dict[str, Any]]:
    """The global model plus noise of standard deviation 0.002, for each client."""
    return {
        i: {
            name: array + 0.002 * generator.standard_normal(array.shape, dtype=np.float32)
            for name, array in weights.items()
        }
        for i in range(count)
    }


def on(device: str, weights: Mapping[str, np.ndarray]) -> Model:
    """The arrays as they are on a CPU, as tensors on a GPU."""
    return dict(weights) if device == "cpu" else {name: torch.from_numpy(a).to(device) for name, a in weights.items()}


def one_read(sent: Mapping[int, Model]) -> list[Any]:
    return [array.sum() for weights in sent.values() for array in weights.values()]


def plain_mean(sent: Mapping[int, Model]) -> Model:
    models = list(sent.values())
    if isinstance(next(iter(models[0].values())), np.ndarray):
        return {name: np.mean([one[name] for one in models], axis=0) for name in models[0]}
    return {name: torch.stack([one[name] for one in models]).mean(dim=0) for name in models[0]}


def stacked_mean(sent: Mapping[int, Model]) -> Model:
    """With torch on the same memory."""
    models = list(sent.values())
    return {name: torch.stack([torch.as_tensor(one[name]) for one in models]).mean(dim=0) for name in models[0]}


def timed(device: str, function: Callable[[], Any]) -> float:
    """Wall seconds, with the work that a GPU has not finished yet."""
    if device != "cpu":
        torch.cuda.synchronize()
    began = time.perf_counter()
    function()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - began


class Guard:
    """A guard in its steady state: rounds with new updates follow each other."""

    def __init__(self, profile: str, weights: Model, rounds: Iterator[Mapping[int, Model]]) -> None:
        self.guard = g2uardfl.G2uardFL(profile=profile, seed=0)
        self.weights, self.rounds = weights, rounds
        self.stages: dict[str, list[float]] = {}

    def __call__(self) -> None:
        """Decide the next round."""
        result = self.guard.aggregate(self.weights, next(self.rounds))
        for stage, seconds in result.report.seconds.items():
            self.stages.setdefault(stage, []).append(seconds)

    def state_megabytes(self) -> float:
        """The size of the saved state."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state"
            self.guard.save(path)
            files = path.rglob("*") if path.is_dir() else [path]
            return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def measure(cell: str, device: str, profiles: list[str], repetitions: int) -> dict[str, Any]:
    """Milliseconds of each contender in one cell."""
    count, _, size = cell.partition("x")
    generator = np.random.default_rng(0)
    plain_weights = adapter(generator) if size == "LoRA" else model(HIDDEN[size], generator)
    weights = on(device, plain_weights)
    parts = [clients(plain_weights, int(count), generator) for _ in range(3)]
    rounds = [{client: on(device, sent) for client, sent in part.items()} for part in parts]
    del parts
    fedavg, (sent, *_) = aggregators.create("fedavg"), rounds
    guards = {
        profile: Guard(profile, weights, itertools.cycle(rounds))
        for profile in profiles
        if profile != "paper" or int(count) <= MOST_FOR_PAPER
    }
    contenders: dict[str, Callable[[], Any]] = {
        "one read": lambda: one_read(sent),
        "plain mean": lambda: plain_mean(sent),
        **({"stacked mean": lambda: stacked_mean(sent)} if device == "cpu" else {}),
        "fedavg": lambda: fedavg.aggregate(weights, sent),
        **guards,
    }
    for name, contender in contenders.items():
        warm_up = -(-FULL_WINDOW // int(count)) + 1 if name == "default" else 2
        for _ in range(warm_up):
            contender()
    for guard in guards.values():
        guard.stages.clear()
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repetitions):
        for name, contender in contenders.items():
            taken[name].append(1000 * timed(device, contender))
    return {
        "cell": cell,
        "parameters": sum(array.size for array in plain_weights.values()),
        "arrays": len(plain_weights),
        "ms": {name: statistics.median(times) for name, times in taken.items()},
        "ms_all": taken,
        "stages_ms": {
            name: {stage: 1000 * statistics.median(seconds) for stage, seconds in guard.stages.items()}
            for name, guard in guards.items()
        },
        "state_mb": {name: guard.state_megabytes() for name, guard in guards.items()},
        "model_mb": sum(array.nbytes for array in plain_weights.values()) / 1e6,
        "peak_rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def row_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """What the table shows of a cell."""
    ms = found["ms"]
    row = {"cell": found["cell"], **{f"{name} ms": round(value, 2) for name, value in ms.items()}}
    row["fedavg / plain mean"] = round(ms["fedavg"] / ms["plain mean"], 2)
    for profile in found["stages_ms"]:
        row[f"{profile} / fedavg"] = round(ms[profile] / ms["fedavg"], 2)
        row[f"{profile} / read"] = round(ms[profile] / ms["one read"], 1)
        row[f"{profile} state / model"] = round(found["state_mb"][profile] / found["model_mb"], 1)
    return row


def print_cell(found: Mapping[str, Any]) -> None:
    print(f"\n{found['cell']}: {found['parameters']:,} parameters in {found['arrays']} arrays", flush=True)
    for name, value in row_of(found).items():
        if name != "cell":
            print(f"  {name:26}{value:12,.2f}")
    for profile, stages in found["stages_ms"].items():
        print(f"  {profile}: " + ", ".join(f"{stage} {value:.1f}" for stage, value in stages.items()), flush=True)


def machine(device: str) -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name() if device != "cpu" else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--cells", nargs="+", help="such as 10x1.2M or 10xLoRA (default: those of the device)")
    parser.add_argument("--profiles", nargs="*", default=["default", "paper"])
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--out", type=Path, help="folder for the table and the details (default: only print)")
    arguments = parser.parse_args()
    about = machine(arguments.device)
    print(about, flush=True)
    results = []
    for cell in arguments.cells or CELLS[arguments.device]:
        results.append(measure(cell, arguments.device, arguments.profiles, arguments.repetitions))
        print_cell(results[-1])
        if arguments.out:
            write(arguments.out, arguments.device, about, results)


def write(folder: Path, device: str, about: dict[str, Any], results: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"server_step-{device}.json").write_text(json.dumps({"machine": about, "cells": results}, indent=1))
    rows = [row_of(found) for found in results]
    names = list(dict.fromkeys(name for row in rows for name in row))
    with (folder / f"server_step-{device}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
