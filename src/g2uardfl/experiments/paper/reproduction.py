"""The reproduction of a table: its runs, and their results."""

from __future__ import annotations

import csv
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError
from ...simulation.directory import FinishedRun
from ..sweep import Sweep
from . import theorem
from .results import Results, RunResult
from .table import SCALES, Cell, Table


class Reproduction:
    """The runs of a table at one scale.

    Parameters
    ----------
    table
        The table.
    scale
        "paper", or "smoke": every cell with few clients, rounds and samples (default: "smoke").
    local
        "steps" or "epochs": how the paper's "2 local gradient descent steps" are read (default: "steps").
    only
        Labels; on each axis that has one of them, the others are left out; labels that the table does not have are
        ignored (default: all cells).
    seeds
        The number of seeds; None means that of the table, or 1 for a smoke run (default: None).
    changes
        Settings that replace those of the table (default: none).

    Attributes
    ----------
    configs
        The config of each run.
    """

    def __init__(
        self,
        table: Table,
        *,
        scale: str = "smoke",
        local: str = "steps",
        only: Sequence[str] = (),
        seeds: int | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        _require("scale", scale, SCALES)
        _require("local", local, tuple(table.shared["local"]))
        self.table, self.scale, self.local = table, scale, local
        self.cells, self._only = _selected(table, only), tuple(only)
        self._runs = [
            (cell, variant, seed)
            for cell in self.cells
            for variant in cell.variants
            for seed in range(seeds or (1 if scale == "smoke" else cell.seeds))
        ]
        self.configs = [
            table.config(cell, variant, scale=scale, local=local, seed=seed, changes=changes or {})
            for cell, variant, seed in self._runs
        ]

    def results(self, paths: Sequence[Path]) -> Results:
        """The results of the finished runs; `paths` are the run directories of `configs`."""
        runs = [
            RunResult.of(
                FinishedRun(path), cell, variant,
                scale=self.scale, local=self.local, with_curve=self.table.has_curves,
            )
            for (cell, variant, _), path in zip(self._runs, paths, strict=True)
            if (path / "summary.json").exists()
        ]  # fmt: skip
        return Results(self.table, runs, self.cells, self._only)


def sweep_of(parts: Sequence[Reproduction], out: str | Path, jobs: int = 1) -> tuple[Sweep, list[list[Path]]]:
    """One sweep of the runs of several tables, and for each table the run directories of its configs.

    First seeds come first, so that an unfinished sweep has results for every cell. Runs that tables have in common are
    executed once.

    Parameters
    ----------
    parts
        The tables.
    out
        The folder of the run directories.
    jobs
        The number of runs that are executed at the same time (default: 1).
    """
    configs = [config for part in parts for config in part.configs]
    order = sorted(range(len(configs)), key=lambda index: configs[index].seed)
    sweep = Sweep([configs[index] for index in order], out, jobs=jobs)
    place = dict(zip(order, sweep.paths, strict=True))
    paths = iter([place[index] for index in range(len(configs))])
    return sweep, [list(itertools.islice(paths, len(part.configs))) for part in parts]


def theorem_checks(folder: Path, scale: str, *, make: bool = True) -> list[theorem.Check]:
    """The checks of Theorem 1, from a file in `folder` if it has them already; otherwise made now, or none at all."""
    path = folder / f"theorem-{scale}.csv"
    fields = dataclasses.fields(theorem.Check)
    if path.exists():
        kinds = {"str": str, "int": int, "float": float}
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return [theorem.Check(**{item.name: kinds[str(item.type)](row[item.name]) for item in fields}) for row in rows]
    if not make:
        return []
    found = theorem.checks(scale)
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [item.name for item in fields], lineterminator="\n")
        writer.writeheader()
        writer.writerows(dataclasses.asdict(one) for one in found)
    return found


def _selected(table: Table, only: Sequence[str]) -> list[Cell]:
    wanted = [(index, {label for label in only if label in labels}) for index, labels in enumerate(table.axes.values())]
    return [cell for cell in table.cells if all(cell.labels[index] in labels for index, labels in wanted if labels)]


def _require(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigError(f"--{name} {value}: choose one of {', '.join(known)}")
