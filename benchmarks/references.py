"""Reference decisions of every rule: written before a refactoring, compared after it.

    python benchmarks/references.py write before.json     # at the old commit
    python benchmarks/references.py compare before.json   # at the new one

A reference holds, for every round of a set of short runs, a hash of the model and every verdict. `compare` runs the
same set again and prints the first difference of each run; reasons are not compared, because they may be reworded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

_RULES = (
    "fedavg", "g2uardfl", "krum", "multi_krum", "rfa", "ndc", "weak_dp", "foolsgold", "rlr", "fltrust", "flame",
    "deepsight", "median", "trimmed_mean", "bulyan",
)  # fmt: skip
_PAPER_SWITCHES = (
    {"score_update": "printed"},
    {"score_update": "signed"},
    {"score_update": "printed", "momentum": "printed", "edge_scaling": "printed", "distance_weighting": "printed"},
    {"score_update": "printed", "fade_absent": True, "score_init": "deviation"},
    {"score_update": "signed", "eliminate": False, "score_percentile": 0.0, "distance_percentile": 100.0},
)


def runs(quick: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """The runs by name: the settings of a `RunConfig`, and how often it is interrupted and resumed."""
    for rule in _RULES:
        for attack in ("none", "black_box", "pgd_replacement", "three_d_fed"):
            for since in (1,) if quick else (1, 10):
                config = {"task": "digits", "attack": attack, "defense": rule, "rounds": 20, "defend_from": since}
                if rule == "g2uardfl":
                    config["defense_settings"] = {"profile": "default"}
                yield f"digits {rule} {attack} from {since}", config
    for number, switches in enumerate(_PAPER_SWITCHES):
        for attack in ("none", "black_box", "pgd_replacement"):
            settings = {"profile": "paper", **switches}
            yield f"digits paper {number} {attack}", {
                "task": "digits", "attack": attack, "defense": "g2uardfl", "rounds": 20, "defense_settings": settings
            }  # fmt: skip
    for attack in ("black_box", "randomized", "model_obfuscation"):
        for extra in ({"defend_from": 15}, {"pmr": 0.45}, {"alpha": 0.1}, {"start": "scratch"}):
            name = " ".join(f"{key}={value}" for key, value in extra.items())
            yield f"digits default {attack} {name}", {
                "task": "digits", "attack": attack, "defense": "g2uardfl", "rounds": 40, "seed": 3, **extra
            }  # fmt: skip
    for profile in ("default", "paper"):
        settings = {"profile": profile, **({"score_update": "printed"} if profile == "paper" else {})}
        config = {"attack": "black_box", "defense": "g2uardfl", "defense_settings": settings}
        yield f"digits {profile} resumed", {"task": "digits", "rounds": 24, "resumed": True, **config}
        if not quick:
            yield f"mnist {profile}", {"task": "mnist", "rounds": 6, **config}


def play(config: dict[str, Any]) -> list[dict[str, Any]]:
    """One run: for each round the hash of its model and its verdicts without their reasons."""
    import torch

    from g2uardfl.simulation.config import RunConfig
    from g2uardfl.simulation.directory import RunDirectory, resumed
    from g2uardfl.simulation.run import Callback, Interrupted, Simulation

    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []

    class Note(Callback):
        def on_round(self, simulation: Simulation, record: dict[str, Any]) -> None:
            digest = hashlib.sha256()
            for name in sorted(simulation.weights):
                digest.update(simulation.weights[name].cpu().contiguous().numpy().tobytes())
            verdicts = {
                client: {name: value for name, value in verdict.items() if name != "reason"}
                for client, verdict in record["verdicts"].items()
            }
            did = [event["kind"] for event in record.get("events", ())]
            found.append({"model": digest.hexdigest()[:16], "verdicts": verdicts, "asr": record["asr"], "did": did})
            if interrupted and record["round"] == 11:
                simulation.stop_asked = True

    values = dict(config)
    interrupted = values.pop("resumed", False)
    run = Simulation(RunConfig(engine="loop", **values))
    if not interrupted:
        run.run([Note()])
        return found
    with tempfile.TemporaryDirectory() as folder:
        try:
            run.run([Note(), RunDirectory(folder, overwrite=True)])
        except Interrupted:
            interrupted = False
            resumed(folder).run([Note()])
    return found


def first_difference(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str:
    """The first difference of two references of one run, in words; empty if they are equal."""
    if len(before) != len(after):
        return f"{len(before)} rounds before, {len(after)} after"
    for number, (old, new) in enumerate(zip(before, after, strict=True), start=1):
        for client, verdict in old["verdicts"].items():
            if new["verdicts"].get(client) != verdict:
                return f"round {number}, client {client}: {verdict} before, {new['verdicts'].get(client)} after"
        if old["model"] != new["model"]:
            scores = f"ASR {old['asr']} before, {new['asr']} after"
            return f"round {number}: same verdicts, another model; {scores}; the guard did {new['did']}"
    return ""


def main() -> None:
    """Write references, or compare with them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--quick", action="store_true", help="without MNIST and without later starts")
    parser.add_argument("--only", default="", help="runs whose name contains this text")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    wanted = {name: config for name, config in runs(arguments.quick) if arguments.only in name}
    before = json.loads(arguments.file.read_text()) if arguments.action == "compare" else {}
    found, different = {}, 0
    with ProcessPoolExecutor(arguments.processes) as pool:
        waiting = {pool.submit(play, config): name for name, config in wanted.items()}
        for number, done in enumerate(as_completed(waiting), start=1):
            name = waiting[done]
            found[name] = json.loads(json.dumps(done.result()))
            problem = first_difference(before[name], found[name]) if name in before else ""
            different += bool(problem)
            if problem or number % 20 == 0:
                print(f"{number}/{len(wanted)} {name}: {problem or 'equal' if before else 'done'}", flush=True)
    if arguments.action == "write":
        arguments.file.write_text(json.dumps(found))
        print(f"{len(found)} runs written to {arguments.file}")
    else:
        print(f"{len(found) - different} of {len(found)} runs are equal")
        sys.exit(different > 0)


if __name__ == "__main__":
    main()
