"""The cost of a round on the server: the guard compared with FedAvg, a plain mean and one read of the same bytes.

    python benchmarks/server_step.py --out docs/results
    python benchmarks/server_step.py --device cuda --out docs/results
    python benchmarks/server_step.py --growth --profiles default --out docs/results

All contenders of a cell (clients x parameters) are timed in turns on the same arrays in one process: NumPy arrays on a
CPU, tensors on a GPU. Figures are medians over the repetitions, after as many rounds as fill the guard's memory, so
that ratios hold on a machine that is busy with something else, too; "cpu" figures are processor time. Updates differ
from round to round. `--out` gets the raw data (`data/server-step-DEVICE.csv`), a plot of the growth with clients and
parameters, and the table in `server-step.md`, between the marks of the device. A cell that was measured before is
replaced, all others are kept.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import multiprocessing
import os
import platform
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import g2uardfl
from g2uardfl import aggregators

HIDDEN = {"0.1M": 300, "1.2M": 1090, "10M": 3150, "30M": 5460, "100M": 9980}
"""Number of parameters, roughly -> width of the model's layers."""
CELLS = {
    "cpu": ["10x0.1M", "10x1.2M", "10x10M", "100x0.1M", "500x0.1M", "1000x0.1M", "10xLoRA"],
    "cuda": ["10x0.1M", "10x1.2M", "10x10M", "100x0.1M", "100x1.2M", "500x0.1M", "1000x0.1M", "10xLoRA"],
}
GROWTH = ["10x0.1M", "30x0.1M", "100x0.1M", "300x0.1M", "1000x0.1M", "10x1.2M", "10x10M", "10x30M", "10x100M"]
MOST_FOR_PAPER = 1.1e8
"""Larger rounds (clients times parameters) are not measured with the paper's profile."""
WINDOW, LARGE_WINDOW = 300, {"1000x0.1M": 10_000}
"""How many submissions are remembered: the default, and ten rounds of the largest cell."""

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


def renew(weights: Model, sent: Mapping[int, Model], shift: int) -> None:
    """The next round's updates, in place: those of the round before with permuted entries."""
    for client, arrays in sent.items():
        for name, array in arrays.items():
            update = (array - weights[name]).reshape(-1)
            moved = torch.roll if isinstance(update, torch.Tensor) else np.roll
            array[...] = weights[name] + moved(update, 7 + shift + client).reshape(array.shape)


def timed(device: str, function: Callable[[], Any]) -> tuple[float, float]:
    """Milliseconds by the clock and of processor time, with the work that a GPU has not finished yet."""
    if device != "cpu":
        torch.cuda.synchronize()
    began, worked = time.perf_counter(), time.process_time()
    function()
    if device != "cpu":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - began), 1000 * (time.process_time() - worked)


class Guard:
    """A guard in its steady state: rounds with new updates follow each other."""

    def __init__(self, profile: str, weights: Model, sent: Mapping[int, Model], **settings: Any) -> None:
        self.guard = g2uardfl.G2uardFL(profile=profile, seed=0, **settings)
        self.weights, self.sent = weights, sent
        self.stages: dict[str, list[float]] = {}

    def __call__(self) -> None:
        """Decide the round."""
        result = self.guard.aggregate(self.weights, self.sent)
        for stage, seconds in result.report.seconds.items():
            self.stages.setdefault(stage, []).append(1000 * seconds)

    def state_megabytes(self) -> float:
        """The size of the saved state."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state"
            self.guard.save(path)
            files = path.rglob("*") if path.is_dir() else [path]
            return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def measure(cell: str, device: str, profiles: list[str], repetitions: int) -> dict[str, Any]:
    """One row: the milliseconds of each contender in one cell, and ratios."""
    count, _, size = cell.partition("x")
    generator = np.random.default_rng(0)
    plain_weights = adapter(generator) if size == "LoRA" else model(HIDDEN[size], generator)
    parameters = sum(array.size for array in plain_weights.values())
    weights = on(device, plain_weights)
    sent = {client: on(device, one) for client, one in clients(plain_weights, int(count), generator).items()}
    fedavg = aggregators.create("fedavg")
    window = LARGE_WINDOW.get(cell, WINDOW)
    guards = {
        profile: Guard(profile, weights, sent, **({"window": window} if profile == "default" else {}))
        for profile in profiles
        if profile != "paper" or int(count) * parameters <= MOST_FOR_PAPER
    }
    contenders: dict[str, Callable[[], Any]] = {
        "read": lambda: one_read(sent),
        "mean": lambda: plain_mean(sent),
        "fedavg": lambda: fedavg.aggregate(weights, sent),
        **guards,
    }
    rounds = itertools.count(1)
    # The window has at least five rounds, and its oldest one is dropped in the steady state.
    for number in range(max(-(-window // int(count)), 5) + 2):
        for name, contender in contenders.items():
            if number < 2 or name == "default":
                contender()
        renew(weights, sent, next(rounds))
    for guard in guards.values():
        guard.stages.clear()
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(repetitions):
        for name, contender in contenders.items():
            taken[name].append(timed(device, contender))
        renew(weights, sent, next(rounds))
    found = {name: np.median(times, axis=0).tolist() for name, times in taken.items()}
    row: dict[str, Any] = {"cell": cell, "parameters": parameters, "arrays": len(plain_weights)}
    for place, kind in enumerate(("ms", "cpu ms")):
        row |= {f"{name} {kind}": round(values[place], 2) for name, values in found.items()}
    row["fedavg / mean"] = round(found["fedavg"][0] / found["mean"][0], 2)
    for name, guard in guards.items():
        row |= {f"{name} / {other}": round(found[name][0] / found[other][0], 2) for other in ("fedavg", "read")}
        row[f"{name} state MB"] = round(guard.state_megabytes(), 2)
        stages = [f"{stage} {statistics.median(times):.1f}" for stage, times in guard.stages.items()]
        row[f"{name} stages"] = ", ".join(stages)
    row["model MB"] = round(sum(array.nbytes for array in plain_weights.values()) / 1e6, 2)
    row["peak GB"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2)
    return row | machine(device)


def machine(device: str) -> dict[str, Any]:
    """Where and on what a row was measured."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "device": torch.cuda.get_device_name() if device != "cpu" else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "commit": commit.stdout.strip() or "unknown",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--cells", nargs="+", help="such as 10x1.2M or 10xLoRA (default: those of the device)")
    parser.add_argument("--growth", action="store_true", help="the cells of the plot")
    parser.add_argument("--profiles", nargs="*", default=["default", "paper"])
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--out", type=Path, help="folder for the data, the plot and the table (default: only print)")
    arguments = parser.parse_args()
    for cell in arguments.cells or (GROWTH if arguments.growth else CELLS[arguments.device]):
        # Each in its own process, so that memory is that of the cell.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            row = pool.submit(measure, cell, arguments.device, arguments.profiles, arguments.repetitions).result()
        print(f"\n{cell}", *(f"  {name:24}{value}" for name, value in row.items()), sep="\n", flush=True)
        if arguments.out:
            write(arguments.out, arguments.device, row)


def write(folder: Path, device: str, row: dict[str, Any]) -> None:
    """Add a row to the data, and create the table and the plot again."""
    path = folder / "data" / f"server-step-{device}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, Any]] = {}
    if path.exists():
        with path.open(newline="") as file:
            rows = {one["cell"]: one for one in csv.DictReader(file)}
    rows[row["cell"]] = {**rows.get(row["cell"], {}), **row}
    names = list(dict.fromkeys(name for one in rows.values() for name in one))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows.values())
    table = [dict(one) for one in rows.values()]
    (folder / f"server-step-{device}.svg").write_text(growth_plot(table))
    page = folder / "server-step.md"
    text = page.read_text() if page.exists() else f"<!-- {device} -->\n<!-- end of {device} -->\n"
    begin, end = f"<!-- {device} -->", f"<!-- end of {device} -->"
    before, after = text.partition(begin)[0], text.partition(end)[2]
    page.write_text(f"{before}{begin}\n{markdown(table, device)}\n{end}{after}")


COLUMNS = {
    "clients x parameters": "{cell}", "one read": "{read ms}", "plain mean": "{mean ms}", "FedAvg": "{fedavg ms}",
    "default profile": "{default ms}", "paper profile": "{paper ms}", "FedAvg / mean": "{fedavg / mean}",
    "default / FedAvg": "{default / fedavg}", "default / read": "{default / read}", "state, MB": "{default state MB}",
    "peak, GB": "{peak GB}", "load": "{load}", "commit": "{commit}",
}  # fmt: skip


def markdown(rows: list[dict[str, Any]], device: str) -> str:
    """The table of the page."""

    def order(row: dict[str, Any]) -> tuple[float, float]:
        return float(row["cell"].partition("x")[0]), float(row["parameters"])

    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for row in sorted(rows, key=order):
        cells = [str(row.get(column[1:-1], "")).replace("x", " x ") for column in COLUMNS.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", f"![Growth with clients and parameters](server-step-{device}.svg)"])


def growth_plot(rows: list[dict[str, Any]]) -> str:
    """An SVG of two double-logarithmic panels: milliseconds by clients (of 0.1M) and by parameters (of ten clients)."""
    panels = {
        "clients, 0.1M parameters each": {float(r["cell"].split("x")[0]): r for r in rows if "x0.1M" in r["cell"]},
        "parameters, 10 clients": {float(r["parameters"]): r for r in rows if r["cell"].startswith("10x")},
    }
    panels["parameters, 10 clients"] = {
        x: row for x, row in panels["parameters, 10 clients"].items() if "LoRA" not in row["cell"]
    }
    parts = []
    for place, (title, points) in enumerate(panels.items()):
        curves = {
            name: sorted((x, float(row[f"{name} ms"])) for x, row in points.items() if row.get(f"{name} ms"))
            for name in ("read", "fedavg", "default")
        }
        xs, ys = list(points), [y for curve in curves.values() for _, y in curve]
        if not xs or not ys:
            continue
        spans = [(math.floor(math.log10(min(v))), math.ceil(math.log10(max(v)) + 1e-9)) for v in (xs, ys)]

        def at(x: float, y: float, spans: list[tuple[int, int]] = spans, left: int = 60 + 400 * place) -> str:
            (x0, x1), (y0, y1) = spans
            right = left + 300 * (math.log10(x) - x0) / max(x1 - x0, 1)
            return f"{right:.1f},{250 - 200 * (math.log10(y) - y0) / max(y1 - y0, 1):.1f}"

        (x0, x1), (y0, y1) = spans
        lines = [(at(10.0**x, 10.0**y0), at(10.0**x, 10.0**y1), f"{10.0**x:g}") for x in range(x0, x1 + 1)]
        rungs = [(at(10.0**x0, 10.0**y), at(10.0**x1, 10.0**y), f"{10.0**y:g} ms") for y in range(y0, y1 + 1)]
        for (first, last, label), shift in [*((one, (0, 14)) for one in lines), *((one, (-28, 4)) for one in rungs)]:
            x, y = (float(part) + move for part, move in zip(first.split(","), shift, strict=True))
            parts.append(f'<path d="M{first} L{last}" stroke="#ddd"/>')
            parts.append(f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle">{label}</text>')
        parts.append(f'<text x="{210 + 400 * place}" y="285" text-anchor="middle">{title}</text>')
        for (name, curve), colour in zip(curves.items(), ("#888", "#0072b2", "#d55e00"), strict=True):
            if curve:
                path = " L".join(at(*point) for point in curve)
                x, y = at(*curve[-1]).split(",")
                parts.append(f'<path d="M{path}" stroke="{colour}" fill="none" stroke-width="2"/>')
                parts.append(f'<text x="{float(x) + 4:.0f}" y="{float(y) - 6:.0f}" fill="{colour}">{name}</text>')
    head = '<svg xmlns="http://www.w3.org/2000/svg" width="860" height="300" font-family="sans-serif" font-size="11">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])


if __name__ == "__main__":
    main()
