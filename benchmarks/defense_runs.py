r"""Runs of defences against attacks, from the converged start: a table of ACC, ASR and detection.

    python benchmarks/defense_runs.py --task mnist --attacks black_box pgd_replacement --rounds 60 --device cuda

Settings of the run can be appended to an attack with @, settings of a defence to its name with a comma:

    python benchmarks/defense_runs.py --attacks black_box black_box@pmr=0.45 pgd@defend_from=40@rounds=140 \
        --defenses fedavg g2uardfl g2uardfl,profile=paper --seeds 0 1 2

A row shows means over the seeds, but for the highest ASR and the lowest ACC of all. Runs are executed in parallel
processes; the figures of each and its ASR over the rounds are printed as soon as it is done. `--records` records the
rounds of each run for `g2uardfl replay`.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from g2uardfl import aggregators

COLUMNS = {
    "rounds": "rounds",
    "acc": "ACC %",
    "acc_min": "lowest ACC %",
    "asr_start": "ASR % at the start",
    "asr": "ASR %, last tenth",
    "asr_max": "highest ASR %",
    "recall": "recall %",
    "precision": "precision %",
    "benign_refused": "false positive rate %",
    "seconds": "s per round",
}


def run(settings: dict[str, Any], seconds: float, records: str) -> dict[str, Any]:
    """The figures of one run, shares in percent; it ends early after `seconds`."""
    import torch

    from g2uardfl.simulation.config import RunConfig
    from g2uardfl.simulation.recorder import Recorder
    from g2uardfl.simulation.run import Callback, Interrupted, Simulation

    class Stop(Callback):
        """Ends the run when its time has expired."""

        def on_round(self, simulation: Simulation, record: dict[str, Any]) -> None:
            simulation.stop_asked = record["acc"] is not None and time.perf_counter() - began > seconds

    torch.set_num_threads(1)
    began = time.perf_counter()
    simulation = Simulation(RunConfig(**settings))
    recorder = Recorder(Path(records))
    callbacks = [Stop(), recorder] if records else [Stop()]
    try:
        summary = simulation.run(callbacks)
    except Interrupted:
        summary = simulation.summary()
        if records:
            recorder.on_end(simulation, summary)
    rounds, detection = simulation.records, summary["detection"]
    shares = {
        "acc": summary["acc_tail_mean"],
        "acc_min": min(record["acc"] for record in rounds if record["acc"] is not None),
        "asr_start": summary["start"]["asr"],
        "asr": summary["asr_tail_mean"],
        "asr_max": max(r["asr"] for r in rounds[simulation.config.defend_from - 1 :] if r["asr"] is not None),
        **{name: detection[name] for name in ("recall", "precision", "benign_refused")},
    }
    return {
        "rounds": len(rounds),
        **{name: None if share is None else 100 * share for name, share in shares.items()},
        "seconds": summary["defend_seconds_median"],
        "curve": {r["round"]: round(100 * r["asr"], 1) for r in rounds if r["asr"] is not None},
    }


def settings_of(shared: dict[str, Any], attack: str, defense: str) -> dict[str, Any]:
    """A run's settings from `ATTACK@key=value...` and `DEFENCE,key=value...`."""
    from g2uardfl.simulation.config import with_assignments

    attack_name, *of_run = attack.split("@")
    defense_name, *of_defense = defense.split(",")
    settings = {**shared, "attack": attack_name, "defense": defense_name}
    return with_assignments(settings, [*of_run, *(f"defense.{one}" for one in of_defense)])


def table(rows: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    """The table in Markdown."""
    lines = [" | ".join(["| attack", "defence", "seeds", *COLUMNS.values()]) + " |", "|---" * (len(COLUMNS) + 3) + "|"]
    for (attack, defense), results in rows.items():
        cells = [attack, defense, str(len(results))]
        for name in COLUMNS:
            values = [result[name] for result in results if result[name] is not None]
            digits = {"rounds": 0, "seconds": 3}.get(name, 2)
            mean = {"asr_max": max, "acc_min": min}.get(name, statistics.fmean)
            cells.append(f"{mean(values):.{digits}f}" if values else "-")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run all combinations and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--model", default="")
    parser.add_argument("--attacks", nargs="+", default=["black_box", "pgd_replacement"])
    parser.add_argument("--defenses", nargs="+", default=aggregators.names())
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=math.inf, help="end each run after this many seconds")
    parser.add_argument("--evaluate-every", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--records", type=Path, help="a folder for the runs' records")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    names = ["task", "model", "rounds", "evaluate_every", "device", "engine", "data_dir"]
    shared = {name: getattr(arguments, name) for name in names}
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, mp_context=context) as pool:
        waiting = {}
        for seed, attack, defense in itertools.product(arguments.seeds, arguments.attacks, arguments.defenses):
            settings = settings_of({**shared, "seed": seed}, attack, defense)
            kept = ""
            if arguments.records:
                folder = arguments.records / f"{settings['task']}-{attack}-{defense}-{seed}".replace("/", "-")
                folder.mkdir(parents=True, exist_ok=True)
                kept = str(folder)
            rows[attack, defense] = []
            waiting[pool.submit(run, settings, arguments.seconds, kept)] = (attack, defense, seed)
        for done in as_completed(waiting):
            attack, defense, seed = waiting[done]
            if done.exception():
                print(f"{waiting[done]}: {done.exception()!r}", flush=True)
                continue
            result = done.result()
            rows[attack, defense].append(result)
            plain = {name: round(result[name], 2) for name in COLUMNS}
            print(attack, defense, f"seed {seed}", plain, "ASR", result["curve"], flush=True)
    print(f"\n{arguments.task}\n\n{table({key: results for key, results in rows.items() if results})}")


if __name__ == "__main__":
    main()
