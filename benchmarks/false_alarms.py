"""How often the default profile flags a group or a loner where nobody attacks: the calibration of `false_alarm_rate`.

    g2uardfl sweep --task digits --attack none --defense g2uardfl --alpha inf 0.5 0.05 --seed 1 2 3 --rounds 36 \
        --record --out runs/honest
    python benchmarks/false_alarms.py runs/honest

Each record is replayed at several rates, with its attackers removed if it has any. A row shows the share of the
rounds, in %, that have a flagged group or loner, by the number of clients in the window.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

from g2uardfl import G2uardFL
from g2uardfl.defense.recording import Record, without

RATES = (0.1, 0.01, 0.001)
SIZES = (12, 25, 40, 60, 110)
"""Upper bounds of the rows."""


def alarms(record: Record, rate: float) -> list[tuple[int, bool]]:
    """For each round the number of clients in the window, and whether a group or a loner was flagged."""
    guard = G2uardFL(seed=0, false_alarm_rate=rate)
    found = []
    for number, observation in enumerate(record.rounds):
        honest = without(observation, record.attacking[number]) if record.attacking else observation
        flagged = any(verdict.cluster for verdict in guard.judge(honest).values())
        found.append((len(set(guard.construction.window.clients)), flagged))
    return found


def table(records: list[Record]) -> str:
    """The table in Markdown."""
    rows: dict[str, dict[float, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for rate in RATES:
            for clients, flagged in alarms(record, rate):
                bound = next((size for size in SIZES if clients <= size), None)
                rows["more" if bound is None else f"up to {bound}"][rate].append(flagged)
                rows["all"][rate].append(flagged)
    lines = [
        "| clients | rounds | " + " | ".join(f"rate {rate}" for rate in RATES) + " |",
        "|---" * (len(RATES) + 2) + "|",
    ]
    for name in [*(f"up to {size}" for size in SIZES), "more", "all"]:
        if name in rows:
            shares = [f"{100 * sum(rows[name][rate]) / len(rows[name][rate]):.2f}" for rate in RATES]
            lines.append(f"| {name} | {len(rows[name][RATES[0]])} | {' | '.join(shares)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path, help="records, or folders with records")
    paths = [
        path
        for given in parser.parse_args().records
        for path in (sorted(given.rglob("*.npz")) if given.is_dir() else [given])
    ]
    print(table([Record.load(path) for path in paths]))


if __name__ == "__main__":
    main()
