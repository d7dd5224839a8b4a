"""Records of rounds under attack, on which detectors can be compared without training (`g2uardfl.defense.recording`).

For each combination of attack, α and PMR one record starts from a clean model, which stays clean (updates of attackers
are recorded but not averaged), and one from a poisoned model, which stays poisoned (FedAvg). Each attack poisons its
model once: `--poison-rounds` rounds of FedAvg with a uniform split of the data, a quarter of the clients malicious.

    python benchmarks/make_records.py --task mnist --attacks black_box pgd --alphas inf 0.5 0.05 --pmrs 0.1 0.25 0.45 \
        --rounds 20 --device cuda --processes 8 --out records

Existing records are kept.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch

from g2uardfl.aggregators.base import Aggregator, Outcome, Round, Verdict
from g2uardfl.defense.recording import RoundRecorder
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.run import Simulation
from g2uardfl.simulation.start import write_model


class Oracle(Aggregator):
    """The mean of the updates of clients that do not attack."""

    name = "oracle"
    summary = "knows who attacks, for simulations only"
    simulation: Simulation

    def combine(self, round_: Round) -> Outcome:
        """Average the honest updates; the model is kept if there are none."""
        honest = np.array([client not in self.simulation.attacking for client in round_.clients])
        shares = honest / max(1, honest.sum())
        verdicts = {
            client: Verdict("accepted", "Does not attack.") if one else Verdict("malicious", "Attacks.")
            for client, one in zip(round_.clients, honest, strict=True)
        }
        return Outcome(round_.weighted_sum(shares), shares, verdicts)


def poison(settings: dict[str, Any], path: str) -> str:
    """Let an attack poison an undefended model, and write the model."""
    torch.set_num_threads(1)
    simulation = Simulation(RunConfig(**settings))
    summary = simulation.run()
    write_model(path, simulation.weights)
    return f"{Path(path).name}: ASR {100 * summary['asr']:.1f} %"


def record(settings: dict[str, Any], clean: bool, path: str) -> str:
    """Run one federation and write its record."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    oracle = Oracle()
    simulation = oracle.simulation = Simulation(RunConfig(**settings), defense=oracle if clean else None)
    recorder = RoundRecorder()
    simulation.observers.append(recorder)
    simulation.run()
    rounds = simulation.records
    asr = [simulation.start_scores["asr"], *(one["asr"] for one in rounds)]
    recorder.record.add_truth({one["round"]: one["attacking"] for one in rounds})
    recorder.record.notes = {**settings, "clean": clean, "asr": asr}
    recorder.record.save(path)
    last = next(value for value in reversed(asr) if value is not None)
    return f"{Path(path).name}: ASR {100 * last:.1f} %, {time.perf_counter() - began:.0f} s"


def main() -> None:
    """Make the records in parallel processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--attacks", nargs="+", default=["black_box", "pgd", "pgd_replacement"])
    parser.add_argument("--alphas", nargs="+", type=float, default=[math.inf])
    parser.add_argument("--pmrs", nargs="+", type=float, default=[0.25])
    parser.add_argument("--kinds", nargs="+", choices=["clean", "poisoned"], default=["clean", "poisoned"])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--poison-rounds", type=int, default=20, help="rounds in which a model is poisoned first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("records"))
    arguments = parser.parse_args()
    models = arguments.out / "poisoned"
    models.mkdir(parents=True, exist_ok=True)
    names = ["task", "rounds", "seed", "device", "engine", "data_dir"]
    shared = {**{name: getattr(arguments, name) for name in names}, "evaluate_every": 10}

    def place(folder: Path, parts: list[str], suffix: str) -> Path:
        name = "-".join([arguments.task, *parts, f"seed{arguments.seed}"])
        return folder / f"{name}{suffix}".replace("(", "_").replace(")", "")

    context = multiprocessing.get_context("spawn")
    # One process for each record: GPU memory that a run does not release would be missing in the next.
    with ProcessPoolExecutor(arguments.processes, mp_context=context, max_tasks_per_child=1) as pool:
        starts = {attack: place(models, [attack], ".safetensors") for attack in arguments.attacks}
        if "poisoned" in arguments.kinds:
            run = {**shared, "rounds": arguments.poison_rounds}
            missing = {attack: path for attack, path in starts.items() if not path.exists()}
            show([pool.submit(poison, {**run, "attack": attack}, str(path)) for attack, path in missing.items()])
        jobs = []
        for pmr, alpha, attack, kind in itertools.product(
            arguments.pmrs, arguments.alphas, arguments.attacks, arguments.kinds
        ):
            clean = kind == "clean"
            path = place(arguments.out, [attack, f"alpha{alpha}", f"pmr{pmr}", kind], ".npz")
            settings = {**shared, "attack": attack, "alpha": alpha, "pmr": pmr}
            if not path.exists():
                start = "converged" if clean else str(starts[attack])
                jobs.append(pool.submit(record, {**settings, "start": start}, clean, str(path)))
        show(jobs)


def show(jobs: list[Future[str]]) -> None:
    """Print the result of each job, or why it failed, as soon as it is done."""
    for done in as_completed(jobs):
        print(done.exception() or done.result(), flush=True)


if __name__ == "__main__":
    main()
