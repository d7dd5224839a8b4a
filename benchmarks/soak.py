"""A long run of a Flower server: churn, hostile replies, kills at random moments and a full disk.

    python benchmarks/soak.py --rounds 2000 --kills 100

Three servers run the same federation. The first sees honest clients and attackers only; the second sees hostile replies
in every round as well; the third sees the same replies, is killed with SIGKILL at random moments and has a full disk
for some rounds; it has processes of its own. Model and memory must be equal in all three at the end, and the audits of
the last two as well.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

_HONEST, _ATTACKERS = 8, 2
"""Clients of a round; attackers share a direction."""
_LIFETIME = 40
"""The number of rounds after which every client has a new id."""
_DISK_FULL_FOR = 3
"""The number of rounds for which the disk is full."""
_SHAPES = {"hidden.weight": (16, 12), "hidden.bias": (16,), "norm.running_mean": (16,), "output.weight": (4, 16)}
_SERVE = "serve"


def model(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in _SHAPES.items()}


def update(weights: dict[str, np.ndarray], number: int, client: int) -> dict[str, np.ndarray]:
    """What an honest client or an attacker sends: a small step from the model, always the same for one round."""
    rng = np.random.default_rng((number, client))
    sent = {name: value + 0.05 * rng.normal(size=value.shape) for name, value in weights.items()}
    if client < _ATTACKERS:
        sent = {name: value + 0.05 * model(1)[name] for name, value in sent.items()}
    return {name: value.astype(np.float32) for name, value in sent.items()}


def hostile_replies(weights: dict[str, np.ndarray], number: int) -> Iterator[Any]:
    """Three of the replies that no server can use, others in each round."""
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

    record, metrics = ArrayRecord({name: Array(value) for name, value in weights.items()}), MetricRecord({"n": 1})
    first = next(iter(weights))
    good = record[first]

    def with_first(array: Any) -> RecordDict:
        changed = {**dict(record.items()), first: array}
        return RecordDict({"arrays": ArrayRecord(changed), "metrics": MetricRecord({"num-examples": 10})})

    def header(shape: str, **more: str) -> Any:
        text = f"{{'descr': '<f4', 'fortran_order': {more.get('fortran', 'False')}, 'shape': {shape}, }}\n".encode()
        data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
        return Array("float32", good.shape, "numpy.ndarray", data)

    kinds = [
        lambda: RecordDict(),
        lambda: RecordDict({"arrays": record, "metrics": metrics}),
        lambda: with_first(Array(np.full(_SHAPES[first], np.nan, np.float32))),
        lambda: with_first(Array(np.full(_SHAPES[first], 1e30, np.float32))),
        lambda: with_first(Array("float32", good.shape, "numpy.ndarray", b"\x93NUMPY garbage")),
        lambda: with_first(Array("float32", good.shape, "numpy.ndarray", good.data[:-3])),
        lambda: with_first(header("(True, 20)")),
        lambda: with_first(header("()", fortran="True")),
        lambda: with_first(header(f"(0, {2**40 - 1}, {2**40 - 1}, {2**40 - 1})")),
        lambda: with_first(Array(np.ones((300, 300), np.uint16))),
        lambda: with_first(Array(np.full(_SHAPES[first], "text"))),
        lambda: RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": float("nan")})}),
    ]
    for place in range(3):
        yield kinds[(3 * number + place) % len(kinds)]()


def serve(folder: Path, rounds: int, hostile: bool, disk_full_every: int = 0, progress: bool = False) -> None:
    """Run the remaining ones of `rounds` in this process.

    The disk is full in the last rounds of every `disk_full_every` (0: never). With `progress`, print a line before the
    first round and one after each.
    """
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from g2uardfl.flower import G2uardFLStrategy, state_dict

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    strategy = G2uardFLStrategy(seed=1, state_path=folder / "guard.state", audit_path=folder / "audit.jsonl")
    arrays = strategy.current_arrays or ArrayRecord({name: Array(value) for name, value in model().items()})
    if progress:
        print("ready", flush=True)

    def sent_by(node: int, content: Any, number: int) -> Message:
        asked = Message(RecordDict({"config": ConfigRecord({"round": number})}), node, "train")
        return Message(content, reply_to=asked)

    before = strategy.rounds_done
    for number in range(before + 1, rounds + 1):
        if disk_full_every:
            _limit_file_size(1000 if number % disk_full_every >= disk_full_every - _DISK_FULL_FOR else None)
        weights = {name: value.numpy() for name, value in state_dict(arrays).items()}
        replies = []
        for client in range(_HONEST + _ATTACKERS):
            generation = (number + 3 * client) // _LIFETIME
            record = ArrayRecord({name: Array(value) for name, value in update(weights, number, client).items()})
            content = RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 10, "loss": 0.5})})
            replies.append(sent_by(1000 * generation + client + 1, content, number))
        if hostile:
            for place, content in enumerate(hostile_replies(weights, number)):
                replies.append(sent_by(10**9 + 3 * number + place, content, number))
        strategy.current_arrays = arrays
        new, _ = strategy.aggregate_train(number - before, replies)
        arrays = arrays if new is None else new
        if progress:
            print(number, flush=True)
        if number % 100 == 0:
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6
            with (folder / "memory.jsonl").open("a") as file:
                file.write(json.dumps({"round": number, "resident_mb": round(resident, 1)}) + "\n")


def _limit_file_size(limit: int | None) -> None:
    """Let every write beyond `limit` bytes of a file fail, as on a full disk."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if limit is None else limit, hard))


def run(folder: Path, rounds: int, *, kills: int, disk_full_every: int, seed: int) -> int:
    """Run a server in processes of its own until all rounds are done; returns how often it was killed."""
    command = [sys.executable, __file__, _SERVE, str(folder), str(rounds), str(disk_full_every)]
    rng, killed = random.Random(seed), 0
    while True:
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        try:
            assert process.stdout is not None
            process.stdout.readline()
            if killed < kills:
                # Counted in rounds and not in seconds, so that a slow machine progresses and a fast one is killed, too.
                for _ in range(rng.randrange(rounds // (kills + 1))):
                    process.stdout.readline()
                try:
                    process.wait(rng.uniform(0.0, 0.1))  # any moment of a round
                except subprocess.TimeoutExpired:
                    process.kill()
                    killed += 1
                    continue
            if process.wait() != 0:
                raise RuntimeError((folder / "log").read_text()[-2000:])
            return killed
        finally:
            process.kill()
            process.wait()


def outcome(folder: Path) -> dict[str, Any]:
    """Model and memory of a server at its end, and its audit without times and sessions."""
    from g2uardfl.federation.state import FederationState
    from g2uardfl.flower import Audit

    state = FederationState.load(folder / "guard.state")
    assert state is not None
    return {
        "rounds": state.rounds_done,
        "model": {name: array.tobytes() for name, array in state.model.arrays.items()},
        "memory": (state.memory.values, {name: array.tobytes() for name, array in state.memory.arrays.items()}),
        "audit": [
            (record["round"], record["note"], {c: (v["decision"], v["reason"]) for c, v in record["verdicts"].items()})
            for record in Audit(folder / "audit.jsonl").rounds
        ],
    }


def soak(folder: Path, rounds: int, kills: int, seed: int = 0, disk_full_every: int = 100) -> dict[str, Any]:
    """Run the three servers and compare them."""
    began = time.perf_counter()
    for name in ("calm", "hostile", "disturbed"):
        (folder / name).mkdir()
    serve(folder / "calm", rounds, hostile=False)
    serve(folder / "hostile", rounds, hostile=True)
    killed = run(folder / "disturbed", rounds, kills=kills, disk_full_every=disk_full_every, seed=seed)
    calm, hostile, disturbed = (outcome(folder / name) for name in ("calm", "hostile", "disturbed"))
    memory = folder / "hostile" / "memory.jsonl"
    return {
        "rounds": disturbed["rounds"],
        "killed": killed,
        "hostile_replies": 3 * rounds,
        "model_equal": calm["model"] == hostile["model"] == disturbed["model"],
        "memory_equal": calm["memory"] == hostile["memory"] == disturbed["memory"],
        "audit_equal": hostile["audit"] == disturbed["audit"],
        "audited_rounds": len(disturbed["audit"]),
        "resident_mb": [json.loads(line) for line in memory.read_text().splitlines()] if memory.exists() else [],
        "seconds": round(time.perf_counter() - began),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = soak(Path(folder), arguments.rounds, arguments.kills, arguments.seed)
    print(json.dumps(result, indent=2))
    sys.exit(not all(result[name] for name in ("model_equal", "memory_equal", "audit_equal")))


if __name__ == "__main__":
    if sys.argv[1:2] == [_SERVE]:
        serve(Path(sys.argv[2]), int(sys.argv[3]), hostile=True, disk_full_every=int(sys.argv[4]), progress=True)
    else:
        main()
