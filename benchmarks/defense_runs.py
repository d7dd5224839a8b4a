r"""Short runs of every defence against some attacks, from the converged start: ACC, ASR and who was refused.

    python benchmarks/defense_runs.py --task mnist --attacks black_box pgd_replacement --rounds 60 --device cuda

An attack may carry settings of the run behind @, a defence its own settings behind a comma:

    python benchmarks/defense_runs.py --attacks black_box black_box@pmr=0.45 pgd@defend_from=40@rounds=140 \
        --defenses fedavg g2uardfl g2uardfl,profile=paper
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from g2uardfl import aggregators

COLUMNS = ("acc", "acc_min", "asr_tail_mean", "asr_max", "asr_start", "recall", "precision", "benign_flagged")


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """One run's figures in percent."""
    import torch

    from g2uardfl.simulation.config import RunConfig
    from g2uardfl.simulation.run import Simulation

    torch.set_num_threads(1)
    simulation = Simulation(RunConfig(**settings))
    summary = simulation.run()
    detection = summary["detection"]
    figures = {name: summary[name] for name in ("acc", "asr", "asr_tail_mean", "asr_max")}
    figures["asr_start"] = summary["start"]["asr"]
    figures["acc_min"] = min(record["acc"] for record in simulation.records if record["acc"] is not None)
    figures |= {name: detection[name] for name in ("recall", "precision", "benign_flagged")}
    seconds = summary["defend_seconds_median"]
    return {"seconds": seconds, **{name: 100 * value for name, value in figures.items()}}


def settings_of(shared: dict[str, Any], attack: str, defense: str) -> dict[str, Any]:
    """A run's settings from `ATTACK@key=value...` and `DEFENCE,key=value...`."""
    from g2uardfl.simulation.config import with_assignments

    attack_name, *of_run = attack.split("@")
    defense_name, *of_defense = defense.split(",")
    settings = {**shared, "attack": attack_name, "defense": defense_name}
    return with_assignments(settings, [*of_run, *(f"defense.{one}" for one in of_defense)])


def main() -> None:
    """Run all combinations and print a table for each attack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--model", default="")
    parser.add_argument("--attacks", nargs="+", default=["black_box", "pgd_replacement"])
    parser.add_argument("--defenses", nargs="+", default=aggregators.names())
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--evaluate-every", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    shared = {
        name: getattr(arguments, name)
        for name in ["task", "model", "rounds", "evaluate_every", "seed", "device", "engine"]
    }
    shared["data_dir"] = arguments.data_dir
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, mp_context=context) as pool:
        waiting = {
            pool.submit(run, settings_of(shared, attack, defense)): (attack, defense)
            for attack, defense in itertools.product(arguments.attacks, arguments.defenses)
        }
        for done in as_completed(waiting):
            if done.exception():
                print(f"{waiting[done]}: {done.exception()}", flush=True)
                continue
            rows[waiting[done]] = done.result()
            print(*waiting[done], {name: round(value, 3) for name, value in done.result().items()}, flush=True)
    for attack in arguments.attacks:
        print(f"\n{arguments.task}, {attack}, {arguments.rounds} rounds, seed {arguments.seed}\n")
        print(
            "| defence | ACC % | lowest ACC % | ASR %, last tenth | highest ASR % | ASR % at the start | recall % "
            "| precision % | benign refused % | s a round |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|")
        for defense in arguments.defenses:
            if row := rows.get((attack, defense)):
                figures = " | ".join(f"{row[name]:.2f}" for name in COLUMNS)
                print(f"| {defense} | {figures} | {row['seconds']:.3f} |")


if __name__ == "__main__":
    main()
