"""How well the paper's profile separates attackers, for settings of its auto-encoder that the paper does not give.

    python benchmarks/make_records.py --attacks black_box --out records
    python benchmarks/autoencoder_settings.py records/*.npz

A guard with each combination of settings decides the records. The table shows the mean adjusted Rand index of its
clusters against the ground truth, over the rounds with at least two attackers and two honest clients, and the mean
number of clusters, for each group of records. The first row is 2-means on the attributes. `--grid KEY=VALUE,VALUE...`
replaces the values of a setting.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.metrics import adjusted_rand_score

from detectors import DETECTORS, Decide, group_of, guard, is_scored, with_truth
from g2uardfl.core.threads import one_thread
from g2uardfl.defense.recording import Record

GRID: dict[str, list[float]] = {
    "hidden_dim": [32, 64],
    "pretrain_epochs": [10, 30, 100],
    "cluster_epochs": [10, 30, 100],
    "learning_rate": [0.001, 0.01, 0.05],
    "clustering_weight": [0.01, 0.1, 1.0],
}
"""The settings of the paper's profile that are combined, and their values."""
BASELINE = "2-means on the attributes"


def score(records: list[Record], begin: Callable[[], Decide]) -> tuple[float, float]:
    """The mean adjusted Rand index, and the mean number of clusters that are not empty."""
    indices, counts = [], []
    for record in records:
        decide = begin()
        for observation, truth in zip(record.rounds, record.attacking, strict=True):
            labels = decide(observation).labels
            if is_scored(truth):
                indices.append(float(adjusted_rand_score(truth, labels)))
                counts.append(len(np.unique(labels)))
    if not indices:
        raise SystemExit("no round has two attackers and two honest clients: record more rounds")
    return statistics.fmean(indices), statistics.fmean(counts)


def grid_of(texts: list[str]) -> dict[str, list[float]]:
    """`GRID` with the values of some settings replaced.

    >>> grid_of(["hidden_dim=16,32"])["hidden_dim"]
    [16, 32]
    """
    pairs = (text.partition("=") for text in texts)
    return {**GRID, **{name: json.loads(f"[{values}]") for name, _, values in pairs}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD")
    parser.add_argument("--grid", nargs="+", default=[], metavar="KEY=VALUES")
    arguments = parser.parse_args()
    groups: dict[str, list[Record]] = {}
    for path in sorted(arguments.records):
        record = with_truth(path)
        groups.setdefault(group_of(record), []).append(record)
    grid = grid_of(arguments.grid)
    rows = {BASELINE: DETECTORS[BASELINE]}
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        rows[", ".join(f"{name} {value}" for name, value in settings.items())] = guard("paper", **settings)
    with one_thread():
        scores = {label: [score(records, begin) for records in groups.values()] for label, begin in rows.items()}
    baseline = scores.pop(BASELINE)
    print("| adjusted Rand index (clusters) | " + " | ".join(groups) + " |\n|---" + "|---" * len(groups) + "|")
    for label, row in [(BASELINE, baseline), *sorted(scores.items(), key=lambda item: -item[1][0][0])]:
        print(f"| {label} | " + " | ".join(f"{index:.2f} ({count:.1f})" for index, count in row) + " |")


if __name__ == "__main__":
    main()
