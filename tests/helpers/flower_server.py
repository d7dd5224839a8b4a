"""A server to be killed by a test: it runs a small federation, and stops at a given moment until it is killed.

python tests/helpers/flower_server.py FOLDER ROUNDS [MOMENT ROUND]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, by its path

from flwr.app import Message

from g2uardfl.flower import G2uardFLStrategy, array_record
from helpers.flower import LocalGrid, content
from helpers.models import odd_mlp, perturbed

MOMENTS = ("inside the round", "writing the audit", "writing the state", "between rounds")
CLIENTS = 8


def wait_to_be_killed(moment: str) -> None:
    print(moment, flush=True)
    time.sleep(600)


def serve(folder: Path, rounds: int, moment: str | None = None, at: int = 0) -> G2uardFLStrategy:
    """Run the remaining ones of `rounds`."""
    strategy = G2uardFLStrategy(
        fraction_evaluate=0.0, seed=1, state_path=folder / "guard.state", audit_path=folder / "audit.jsonl"
    )
    now = 0

    def client(message: Message) -> Message | None:
        nonlocal now
        now, node = message.content["config"]["server-round"], message.metadata.dst_node_id
        if (moment, at, node) == (MOMENTS[0], now, CLIENTS // 2):
            wait_to_be_killed(moment)
        shift = 0.3 if node <= 2 else 0.0
        return Message(content(perturbed(odd_mlp(), 100 * now + node, shift=shift)), reply_to=message)

    def after(number: int, arrays: object) -> None:
        if (moment, at) == (MOMENTS[3], number):
            wait_to_be_killed(moment)

    def stopping(function: Callable[..., Any], place: str) -> Callable[..., Any]:
        def stopped(*args: Any) -> Any:
            if (moment, at) == (place, now):
                wait_to_be_killed(place)
            return function(*args)

        return stopped

    # The last step of writing: the audit is flushed to the disk, the state is renamed.
    os.fsync, os.replace = stopping(os.fsync, MOMENTS[1]), stopping(os.replace, MOMENTS[2])
    strategy.start(
        LocalGrid(dict.fromkeys(range(1, CLIENTS + 1), client)),
        array_record(odd_mlp(seed=9)),
        num_rounds=rounds - strategy.rounds_done,
        evaluate_fn=after,
    )
    return strategy


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), *(sys.argv[3:4] or [None]), *map(int, sys.argv[4:5]))
