"""Records of rounds under every attack, to try detectors on without training (`g2uardfl.defense.recording`).

For each combination of attack, α and PMR one file is made from a model that stays clean (attackers' updates are noted
but left out of the average) and one from a model that is already poisoned and stays so (FedAvg). Each attack poisons
its model once, in `--poison-rounds` rounds of FedAvg over alike clients, a quarter of them malicious.

    python benchmarks/make_records.py --task mnist --attacks black_box pgd --alphas inf 0.5 0.05 --pmrs 0.1 0.25 0.45 \
        --rounds 20 --device cuda --processes 8 --out records

Records that are already there are not made again.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any


def poison(settings: dict[str, Any], path: str) -> str:
    """Let an attack into a model that nobody defends, and keep the model."""
    import torch

    from g2uardfl.simulation.config import RunConfig
    from g2uardfl.simulation.run import Simulation
    from g2uardfl.simulation.start import write_model

    torch.set_num_threads(1)
    simulation = Simulation(RunConfig(**settings))
    summary = simulation.run()
    write_model(path, simulation.weights)
    return f"{Path(path).name}: ASR {100 * summary['asr']:.1f}"


def record(settings: dict[str, Any], clean: bool, path: str) -> str:
    """Run one federation and write its record."""
    import torch

    from g2uardfl.aggregators.base import Aggregator, Outcome, Round
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
    asr = [simulation.start_scores["asr"], *(record["asr"] for record in records)]
    recording.record.notes = {**settings, "clean": clean, "asr": asr}
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
    parser.add_argument("--poison-rounds", type=int, default=20, help="how long a model is poisoned at first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("records"))
    arguments = parser.parse_args()
    models = arguments.out / "poisoned"
    models.mkdir(parents=True, exist_ok=True)
    names = ["task", "rounds", "seed", "device", "data_dir"]
    shared = {**{name: getattr(arguments, name) for name in names}, "evaluate_every": 10}

    def place(folder: Path, parts: list[str], suffix: str) -> Path:
        name = "-".join([arguments.task, *parts, f"seed{arguments.seed}"])
        return folder / f"{name}{suffix}".replace("(", "_").replace(")", "")

    context = multiprocessing.get_context("spawn")
    # A process for each record: what one left behind on a GPU would be missing to the next.
    with ProcessPoolExecutor(arguments.processes, mp_context=context, max_tasks_per_child=1) as pool:
        starts = {attack: place(models, [attack], ".safetensors") for attack in arguments.attacks}
        if "poisoned" in arguments.kinds:
            run = {**shared, "rounds": arguments.poison_rounds}
            missing = {attack: path for attack, path in starts.items() if not path.exists()}
            show([pool.submit(poison, {**run, "attack": attack}, str(path)) for attack, path in missing.items()])
        waiting = []
        for pmr, alpha, attack, kind in itertools.product(
            arguments.pmrs, arguments.alphas, arguments.attacks, arguments.kinds
        ):
            clean = kind == "clean"
            path = place(arguments.out, [attack, f"alpha{alpha}", f"pmr{pmr}", kind], ".npz")
            settings = {**shared, "attack": attack, "alpha": alpha, "pmr": pmr}
            if not path.exists():
                start = "converged" if clean else str(starts[attack])
                waiting.append(pool.submit(record, {**settings, "start": start}, clean, str(path)))
        show(waiting)


def show(waiting: list[Future[str]]) -> None:
    """Print what each job says, or why it failed, as soon as it is done."""
    for done in as_completed(waiting):
        print(done.exception() or done.result(), flush=True)


if __name__ == "__main__":
    main()
