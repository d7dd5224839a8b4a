"""Strength of the attacks without a defence: ACC and ASR of each on real data, beside the paper's figures.

200 clients, 10 per round, 25 % malicious, PDR 0.5, from the converged start, FedAvg. Attacks run in parallel processes;
each result is printed as soon as it is available, and the table at the end.

    python benchmarks/attack_strength.py --task mnist --rounds 600 --device cuda
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

PAPER = {
    "mnist": {
        "black_box": (34.00, 99.30),
        "pgd": (41.00, 99.28),
        "pgd_replacement": (68.00, 99.26),
        "constrain_and_scale": (67.00, 99.19),
        "dba": (100.00, 99.16),
        "three_d_fed": (98.18, 97.52),
        "dynamic_pdr": (85.00, 99.31),
        "model_obfuscation": (100.00, 98.41),
        "randomized": (62.00, 99.20),
    },
    "cifar10": {
        "black_box": (17.22, 85.38),
        "pgd": (22.78, 85.22),
        "pgd_replacement": (47.78, 84.97),
        "constrain_and_scale": (29.44, 85.20),
        "dba": (99.14, 82.03),
        "three_d_fed": (96.16, 73.08),
        "dynamic_pdr": (58.33, 85.13),
        "model_obfuscation": (100.00, 38.85),
        "randomized": (24.44, 85.56),
    },
    "sentiment140": {
        "black_box": (99.01, 65.69),
        "pgd": (99.01, 65.54),
        "pgd_replacement": (100.00, 64.51),
        "constrain_and_scale": (100.00, 65.22),
        "dynamic_pdr": (100.00, 64.59),
        "model_obfuscation": (100.00, 64.57),
        "randomized": (100.00, 64.82),
    },
    "reddit": {
        "black_box": (100.00, 22.02),
        "pgd": (100.00, 22.66),
        "pgd_replacement": (100.00, 22.58),
        "constrain_and_scale": (100.00, 22.18),
        "dynamic_pdr": (100.00, 22.69),
        "model_obfuscation": (100.00, 13.83),
        "randomized": (100.00, 22.53),
    },
}
"""No-defence rows of the paper's table of robustness: ASR and ACC in percent."""


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """One run, as a row of the table."""
    import torch

    from g2uardfl.simulation.config import RunConfig
    from g2uardfl.simulation.run import Callback, Interrupted, Simulation

    torch.set_num_threads(1)
    began = time.perf_counter()
    seconds = settings.pop("seconds")

    class Stop(Callback):
        """Ends the run when its time has expired."""

        def on_round(self, simulation: Simulation, record: dict[str, Any]) -> None:
            simulation.stop_asked = record["acc"] is not None and time.perf_counter() - began > seconds

    simulation = Simulation(RunConfig(**settings))
    try:
        summary = simulation.run([Stop()])
    except Interrupted:
        summary = simulation.summary()
    curve = {
        record["round"]: round(100 * record["asr"], 1) for record in simulation.records if record["asr"] is not None
    }
    return {
        "attack": settings["attack"],
        "model": simulation.task.model,
        "attack_settings": settings["attack_settings"],
        "rounds": len(simulation.records),
        **{name: round(100 * summary[name], 2) for name in ("asr", "acc", "asr_tail_mean", "acc_tail_mean", "asr_max")},
        "start": {name: round(100 * value, 2) for name, value in summary["start"].items()},
        "curve": curve,
        "seconds": round(time.perf_counter() - began),
    }


def main() -> None:
    """Run the attacks and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="mnist")
    parser.add_argument("--model", default="")
    parser.add_argument("--attacks", nargs="*", help="NAME or NAME,key=value,...; default: those of the paper")
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--evaluate-every", type=int, default=10)
    parser.add_argument("--defense", default="fedavg")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--start", default="converged")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end each run after this many seconds")
    arguments = parser.parse_args()
    paper = PAPER.get(arguments.task, {})
    jobs = []
    for text in arguments.attacks or ["none", *paper]:
        name, *pairs = text.split(",")
        jobs.append(
            {
                "task": arguments.task,
                "model": arguments.model,
                "attack": name,
                "attack_settings": {key: json.loads(value) for key, value in (pair.split("=") for pair in pairs)},
                "defense": arguments.defense,
                "rounds": arguments.rounds,
                "evaluate_every": arguments.evaluate_every,
                "seed": arguments.seed,
                "device": arguments.device,
                "data_dir": arguments.data_dir,
                "start": arguments.start,
                "seconds": arguments.seconds,
            }
        )
    rows = []
    with ProcessPoolExecutor(arguments.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(run, job): job["attack"] for job in jobs}
        for done in as_completed(waiting):
            if done.exception():
                print(f"{waiting[done]}: {done.exception()}", flush=True)
                continue
            rows.append(done.result())
            print(json.dumps(rows[-1]), flush=True)
    order = [job["attack"] for job in jobs]
    print(f"\n{arguments.task}, {arguments.defense}, seed {arguments.seed}\n")
    print("| attack | rounds | ASR % | ACC % | ASR %, mean of the last tenth | paper's ASR % | paper's ACC % |")
    print("|---|---|---|---|---|---|---|")
    for row in sorted(rows, key=lambda row: order.index(row["attack"])):
        printed = "{:.2f} | {:.2f}".format(*paper[row["attack"]]) if row["attack"] in paper else "- | -"
        figures = " | ".join(f"{row[name]:.2f}" for name in ("asr", "acc", "asr_tail_mean"))
        print(f"| {row['attack']} | {row['rounds']} | {figures} | {printed} |")


if __name__ == "__main__":
    main()
