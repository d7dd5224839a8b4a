"""Records of rounds under every attack, to try detectors on without training (`g2uardfl.defense.recording`).

For each combination of task, attack, α and PMR one file is made from a model that stays clean (attackers' updates are
noted but left out of the average) and one from a model that is being poisoned (FedAvg).

    python benchmarks/make_records.py --task mnist --attacks black_box pgd --rounds 60 --device cuda --out records
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any


def record(settings: dict[str, Any], clean: bool, skip: int, path: str) -> str:
    """Run one federation and write its record; the first `skip` rounds are left out."""
    import torch

    from g2uardfl.aggregation import Aggregator, Outcome, Round
    from g2uardfl.defense.recording import Recording
    from g2uardfl.simulation.config import RunConfig
    from g2uardfl.simulation.run import Simulation

    torch.set_num_threads(1)
    began = time.perf_counter()
    simulation = Simulation(RunConfig(**settings))

    class Oracle(Aggregator):
        """FedAvg over those who do not attack."""

        name = "oracle"
        summary = "knows the truth"

        def combine(self, round_: Round) -> Outcome:
            honest = [row for row, client in enumerate(round_.clients) if client not in simulation.attacking]
            kept = replace(
                round_,
                clients=tuple(round_.clients[row] for row in honest),
                sent=round_.updates[honest],
                num_examples=round_.num_examples[honest],
            )
            outcome = simulation.average.combine(kept)
            shares = round_.num_examples * 0
            shares[honest] = outcome.shares
            verdicts = {client: next(iter(outcome.verdicts.values())) for client in round_.clients}
            return Outcome(outcome.step, shares, verdicts)

    recording = Recording(Oracle() if clean else simulation.defense)
    simulation.defense = recording
    simulation.run()
    records = simulation.records
    recording.record.tell({record["round"]: record["attacking"] for record in records})
    recording.record.rounds = recording.record.rounds[skip:]
    recording.record.attacking = recording.record.attacking[skip:]
    asr = [record["asr"] for record in records]
    recording.record.notes = {**settings, "clean": clean, "skipped": skip, "asr": asr}
    recording.record.save(path)
    last = next(value for value in reversed(asr) if value is not None)
    return f"{Path(path).name}: ASR {100 * last:.1f}, {time.perf_counter() - began:.0f} s"


def main() -> None:
    """Make the records in parallel processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--attacks", nargs="+", default=["black_box", "pgd", "pgd_replacement"])
    parser.add_argument("--alphas", nargs="+", type=float, default=[math.inf])
    parser.add_argument("--pmrs", nargs="+", type=float, default=[0.25])
    parser.add_argument("--kinds", nargs="+", choices=["clean", "poisoned"], default=["clean", "poisoned"])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--skip", type=int, default=20, help="first rounds of a poisoned record to leave out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("records"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, mp_context=context) as pool:
        waiting = []
        for attack, alpha, pmr, kind in itertools.product(
            arguments.attacks, arguments.alphas, arguments.pmrs, arguments.kinds
        ):
            settings = {
                "task": arguments.task,
                "attack": attack,
                "alpha": alpha,
                "pmr": pmr,
                "rounds": arguments.rounds + (arguments.skip if kind == "poisoned" else 0),
                "evaluate_every": 10,
                "seed": arguments.seed,
                "device": arguments.device,
                "data_dir": arguments.data_dir,
            }
            name = f"{arguments.task}-{attack}-alpha{alpha}-pmr{pmr}-{kind}-seed{arguments.seed}.npz"
            place = str(arguments.out / name.replace("(", "_").replace(")", ""))
            clean = kind == "clean"
            waiting.append(pool.submit(record, settings, clean, 0 if clean else arguments.skip, place))
        for done in as_completed(waiting):
            print(done.exception() or done.result(), flush=True)


if __name__ == "__main__":
    main()
