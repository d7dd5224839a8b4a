"""What each ingredient of the default profile is worth in telling attackers, on recorded rounds.

    python benchmarks/ablation.py records/*.npz

Each row leaves one ingredient out. Recall and benign clients refused are means over the records; the last columns are
those where the attackers are taken out of the record before the guard sees it. "Alike" are records of clients with a
uniform split of the data, "different" those with Dirichlet's α in their names. What the elimination is worth shows in
the model alone, as does what going back is: `benchmarks/defense_runs.py --defenses g2uardfl g2uardfl,undo=false`.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from detectors import group_of, without
from g2uardfl.core.numerics import Array


def nobody_is_longer(usual: Any, shapes: Array, sketches: Array) -> NDArray[np.bool_]:
    """Stands in for `Usual.far_longer`."""
    return np.zeros(len(shapes), dtype=bool)


def as_it_is(agreement: Array, people: Array) -> Array:
    """Stands in for `communities._centred`."""
    return agreement


INGREDIENTS: dict[str, dict[str, Any]] = {
    # Settings of the guard, or (with a dot) constants or functions of a module of the defence.
    "all": {},
    "without earlier rounds": {"window": 10},
    "without having to stand out": {"least_lead": 0.0, "unlike_lead": 0.0},
    "without asking for more where clients are unlike": {"unlike_lead": 1.5},
    "without outliers": {"outlier_excess": 1e9},
    "without twins": {"twin_agreement": 1e9},
    "without records": {"record_weight": 0.0, "poor_record": -1.0},
    "with communities of whole rounds": {"communities._NEARLY_ALL": 1.0},
    "with what those who are left have in common": {"communities._centred": as_it_is},
    "with every majority taken for honest": {"communities.FAR_LESS": -1e9},
    "with updates far longer than others' in the first rounds": {"examination._FAR": 1e9},
    "with far longer updates having their say": {"examination.Usual.far_longer": nobody_is_longer},
    "with longer honest updates trimmed off": {"examination._NARROWED": 0.0},
    "with a single long update counting like several": {"examination._LONE": 1.0},
    "with peaks counting as much as lengths": {"examination._TAILS": np.ones(2)},
    "with a usual that cannot change": {"examination._CHANGED": 1e9},
    "with one beginning for each fit": {"communities._WELL_CUT": 2.0},
    "with one eigenvector": {"communities._VECTORS": 1},
    "with twins where many have one": {"examination._MANY": 1.0},
    "with twins that do nothing": {"examination._TINY": 1e30},
    "with noise remembered": {"examination._AGREES": -1e9},
}
COLUMNS = ["recall", "benign refused", "benign refused, nobody attacks"]


def judged(path: Path, settings: dict[str, Any]) -> list[tuple[str, float]]:
    """Recall and benign clients refused in one record."""
    import torch

    torch.set_num_threads(1)
    constants = {name: value for name, value in settings.items() if "." in name}
    with ExitStack() as stack:
        for name, value in constants.items():
            stack.enter_context(patch(f"g2uardfl.defense.{name}", value))
        return figures_of(path, {name: value for name, value in settings.items() if name not in constants})


def figures_of(path: Path, settings: dict[str, Any]) -> list[tuple[str, float]]:
    """The same for the guard's own settings."""
    from g2uardfl import G2uardFL
    from g2uardfl.defense.recording import Record

    record = Record.load(path)
    figures = []
    for honest_alone in (False, True):
        guard = G2uardFL(**settings)
        refused: dict[bool, list[bool]] = {True: [], False: []}
        for observation, attacking in zip(record.rounds, record.attacking, strict=True):
            if honest_alone and attacking.all():
                continue
            verdicts = guard.judge(without(observation, attacking) if honest_alone else observation)
            for client, attacks in zip(observation.clients, attacking, strict=True):
                if client in verdicts:
                    refused[bool(attacks)].append(verdicts[client].refused)
        if honest_alone:
            figures.append((COLUMNS[2], statistics.fmean(refused[False])))
        elif refused[True]:
            figures += [(COLUMNS[0], statistics.fmean(refused[True])), (COLUMNS[1], statistics.fmean(refused[False]))]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--rows", nargs="+", choices=INGREDIENTS, default=[*INGREDIENTS], metavar="ROW")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    jobs = list(product(arguments.rows, arguments.records))
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    with ProcessPoolExecutor(arguments.processes) as pool:
        results = pool.map(judged, [path for _, path in jobs], [INGREDIENTS[name] for name, _ in jobs])
        for (name, path), figures in zip(jobs, results, strict=True):
            kind = "different" if "α" in group_of(path) else "alike"
            for column, share in figures:
                found[name, kind, column].append(100 * share)
    heads = [f"{column}, {kind} %" for kind, column in product(("alike", "different"), COLUMNS)]
    print(f"{len(arguments.records)} records\n\n| | " + " | ".join(heads) + " |\n|---" + "|---" * len(heads) + "|")
    for name in arguments.rows:
        cells = [found[name, kind, column] for kind, column in product(("alike", "different"), COLUMNS)]
        print(f"| {name} | " + " | ".join(f"{statistics.fmean(cell):.1f}" if cell else "-" for cell in cells) + " |")


if __name__ == "__main__":
    main()
