"""The cost of one hostile reply to the server: seconds and bytes of memory in addition to a round without it.

    python benchmarks/hostile_replies.py

Ten honest clients reply with a model of 1.2 million parameters, and one hostile client with something else, to a server
with FedAvg, so the numbers are those of reading replies and not those of a defence. Each kind is read in a process
of its own. "bytes" is the size of the reply, which Flower holds before the strategy sees it; "peak" and "seconds" are
memory and time beyond those of the round without it. The command fails if the round is lost, or if the peak is above
the stated bound: the reply's own bytes, one model, and 8 MB for what Python itself allocates.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import logging
import os
import statistics
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from g2uardfl.flower import AggregatorStrategy

_SHAPES = {
    "conv.weight": (64, 32, 3, 3), "norm.weight": (64,), "norm.bias": (64,), "norm.running_mean": (64,),
    "norm.running_var": (64,), "hidden.weight": (1024, 1130), "hidden.bias": (20,),
}  # fmt: skip
_CLIENTS = 10
_SLACK = 8 * 10**6
"""Bytes that Python and its libraries allocate for themselves: they differ from run to run by some megabytes."""


def model(seed: int = 0, scale: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: np.abs(scale * rng.normal(size=shape)).astype(np.float32) for name, shape in _SHAPES.items()}


_GLOBAL = model()
_MODEL_BYTES = sum(value.nbytes for value in _GLOBAL.values())


def honest(seed: int) -> dict[str, np.ndarray]:
    return {name: value + step for (name, value), step in zip(_GLOBAL.items(), model(seed, 0.01).values(), strict=True)}


def record(weights: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(value) for name, value in weights.items()})


def content(arrays: ArrayRecord, **metrics: object) -> RecordDict:
    return RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 10, "loss": 0.5, **metrics})})


def with_bias(array: Array) -> RecordDict:
    arrays = record(honest(99))
    arrays["hidden.bias"] = array
    return content(arrays)


def header(text: str, size: int = 0, version: int = 1) -> Array:
    encoded = text.encode() + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(encoded))
    return Array("float32", (20,), "numpy.ndarray", b"\x93NUMPY" + bytes([version, 0]) + length + encoded + bytes(size))


def described(shape: str, fortran: bool = False, size: int = 0) -> Array:
    return header(f"{{'descr': '<f4', 'fortran_order': {fortran}, 'shape': {shape}, }}", size)


def converted(dtype: str, order: str = "C") -> RecordDict:
    weights = {name: np.asarray(value.astype(dtype), order=order) for name, value in honest(99).items()}  # type: ignore[call-overload]
    return content(record(weights))


def moved(step: float) -> RecordDict:
    return content(record({name: value + np.float32(step) for name, value in _GLOBAL.items()}))


KINDS: dict[str, Callable[[], RecordDict]] = {
    "nothing": RecordDict,
    "NaN in every number": lambda: moved(np.nan),
    "every number 1e30": lambda: moved(1e30),
    "subnormal numbers": lambda: content(record({n: np.full(s, 1e-42, np.float32) for n, s in _SHAPES.items()})),
    "float64, big-endian": lambda: converted(">f8"),
    "float64 in Fortran order": lambda: converted("<f8", "F"),
    "long double": lambda: converted("g"),
    "200 million uint16 as bias of 20": lambda: with_bias(Array(np.ones(200_000_000, np.uint16))),
    "100 million float32 as bias of 20": lambda: with_bias(Array(np.ones(100_000_000, np.float32))),
    "50 million big-endian float64 as bias of 20": lambda: with_bias(Array(np.ones(50_000_000, ">f8"))),
    "a header with a bool": lambda: with_bias(described("(True, 20)", size=80)),
    "a header of no axes in Fortran order": lambda: with_bias(described("()", fortran=True, size=4)),
    "a header whose sizes overflow": lambda: with_bias(described(f"(0, {2**40 - 1}, {2**40 - 1}, {2**40 - 1})")),
    "a header that claims a terabyte": lambda: with_bias(described("(10**12,)")),
    "a header of 100 MB": lambda: with_bias(header(" " * 10**8, version=2)),
    "a deeply nested header": lambda: with_bias(header("(" * 9000)),
    "100,000 arrays too many": lambda: content(
        ArrayRecord({**record(honest(99)), **dict.fromkeys(map(str, range(100_000)), Array(np.ones(1)))})
    ),
    "a name of 10 MB": lambda: content(record(honest(99) | {"x" * 10**7: np.ones(1)})),
    "a metric of a million numbers": lambda: content(record(honest(99)), loss=[0.5] * 10**6),
    "9e14 samples": lambda: content(record(honest(99)), **{"num-examples": 9 * 10**14}),
    "an identity of 5 MB": lambda: RecordDict(
        {**content(record(honest(99))), "who": ConfigRecord({"name": "line\nbreak" * 500_000})}
    ),
}


def size(given: RecordDict) -> int:
    arrays = sum(len(n) + len(a.data) for r in given.array_records.values() for n, a in r.items())
    metrics = sum(8 * len(v) if isinstance(v, list) else 8 for r in given.metric_records.values() for v in r.values())
    return arrays + metrics + sum(len(str(v)) for r in given.config_records.values() for v in r.values())


def round_of(kind: str | None, replies: list[Message]) -> tuple[float, float, int, str]:
    """One round in a process of its own: seconds, peak bytes, bytes of the hostile reply, and the decision about it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        hostile_reply = [] if kind is None else [reply(99, KINDS[kind]())]
        own = sum(size(one.content) for one in hostile_reply)
        strategy = AggregatorStrategy("fedavg", min_replies=_CLIENTS, identity=identity)
        strategy.current_arrays = record(_GLOBAL)
        # Memory that was needed to create the replies is freed, so that it does not hide that needed to read them.
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before, began = resident("VmRSS"), time.perf_counter()
        arrays, _ = strategy.aggregate_train(1, replies + hostile_reply)
        seconds = time.perf_counter() - began
        hostile = [verdict.decision for client, verdict in strategy.verdicts.items() if client not in range(99)]
        decision = "ROUND LOST" if arrays is None else " ".join(hostile)
        os.write(writing, f"{seconds} {resident('VmHWM') - before} {own} {decision}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        seconds, peak, own, *decision = pipe.read().split() or ("nan", "nan", "0", "SERVER LOST")
    os.waitpid(child, 0)
    return float(seconds), float(peak), int(own), " ".join(decision)


def resident(field: str) -> int:
    """Bytes of this process, from /proc."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def identity(reply: Message) -> int | str:
    claimed = reply.content.config_records.get("who")
    return str(claimed["name"]) if claimed else int(reply.metadata.src_node_id)


def reply(node: int, given: RecordDict) -> Message:
    return Message(given, reply_to=Message(RecordDict(), node, "train"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    logging.disable(logging.CRITICAL)
    replies = [reply(node, content(record(honest(node)))) for node in range(1, _CLIENTS + 1)]
    alone = [round_of(None, replies) for _ in range(options.repetitions)]
    seconds, peak = min(one[0] for one in alone), statistics.median(one[1] for one in alone)
    print(f"model: {_MODEL_BYTES / 1e6:.1f} MB; a round without it: {seconds:.3f} s, peak {peak / 1e6:.1f} MB")
    print("| kind | decision | bytes (MB) | peak (MB) | seconds |\n|---|---|---|---|---|")
    exceeded = []
    for kind in KINDS:
        found = [round_of(kind, replies) for _ in range(options.repetitions)]
        *_, own, decision = found[0]
        more, later = statistics.median(one[1] for one in found) - peak, min(one[0] for one in found) - seconds
        print(f"| {kind} | {decision} | {own / 1e6:.1f} | {max(0, more) / 1e6:.1f} | {max(0, later):.3f} |", flush=True)
        if decision.isupper() or not more <= own + _MODEL_BYTES + _SLACK:
            exceeded.append(kind)
    print(f"{len(KINDS)} kinds; lost or above the bound: {', '.join(exceeded) or 'none'}")
    sys.exit(bool(exceeded))


if __name__ == "__main__":
    main()
