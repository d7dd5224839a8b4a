"""What the runs of a table measured, one row for each run: as CSV, and as means beside the printed numbers."""

from __future__ import annotations

import csv
import io
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ...core.errors import StateError
from ...simulation.directory import FinishedRun
from ...simulation.metrics import defense_score
from .table import Cell, Table

FIGURES = {
    "asr": "ASR %",
    "acc": "ACC %",
    "ds": "DS %",
    "precision": "precision %",
    "recall": "recall %",
    "f1": "F1 %",
    "benign_refused": "false positive rate %",
}
"""The figures of a run in percent, and their headings. ASR and ACC are means over the last tenth of the rounds."""
_NOTABLE = 5.0
"""The smallest difference to the printed number that is marked, in percentage points."""
_RUN = ("profile", "seed", "scale", "local", "rounds", "commit", "device")


@dataclass(frozen=True)
class RunResult:
    """The figures of one run."""

    labels: tuple[str, ...]
    variant: str
    seed: int
    scale: str
    local: str
    rounds: int
    commit: str
    figures: Mapping[str, float | None]
    """In percent; None where a rate is not defined."""
    device: str = ""
    """Where it ran, such as "cuda"; empty if the file of the results does not say so."""
    curve: str = ""
    """ASR in percent over the evaluated rounds, as `round:value` separated by spaces, if the table shows curves."""

    @staticmethod
    def of(run: FinishedRun, cell: Cell, variant: str, *, scale: str, local: str, with_curve: bool) -> RunResult:
        """The result of a finished run."""
        summary = run.summary
        shares = {**summary["detection"], "asr": summary["asr_tail_mean"], "acc": summary["acc_tail_mean"]}
        shares["benign_refused"] = summary["benign_refused"]
        shares["ds"] = defense_score(shares["acc"], shares["asr"])
        figures = {name: None if shares[name] is None else 100 * shares[name] for name in FIGURES}
        points = [f"{record['round']}:{100 * record['asr']:.2f}" for record in run.rounds if record["asr"] is not None]
        return RunResult(
            cell.labels,
            variant,
            run.config.seed,
            scale,
            local,
            int(summary["rounds"]),
            summary["environment"].get("commit", ""),
            figures,
            run.config.device,
            " ".join(points) if with_curve else "",
        )


@dataclass(frozen=True)
class Measured:
    """The runs of one variant of a cell."""

    runs: tuple[RunResult, ...]

    def mean(self, figure: str) -> float | None:
        """The mean over the seeds; None where no run defines the figure."""
        values = self._values(figure)
        return statistics.fmean(values) if values else None

    def deviation(self, figure: str) -> float | None:
        """The standard deviation over the seeds (divided by n - 1); None with fewer than two values."""
        values = self._values(figure)
        return statistics.stdev(values) if len(values) > 1 else None

    def _values(self, figure: str) -> list[float]:
        return [value for run in self.runs if (value := run.figures[figure]) is not None]


@dataclass(frozen=True)
class Results:
    """All results of a table at one scale and with one kind of local training.

    Parameters
    ----------
    table
        The table.
    runs
        The results of its finished runs.
    cells
        The cells of which results are wanted (default: all).
    only
        Labels that were asked for by name: rows with one of them are shown even if nothing was run (default: none).
    """

    table: Table
    runs: Sequence[RunResult]
    cells: Sequence[Cell] = field(default=())
    only: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.cells:
            object.__setattr__(self, "cells", self.table.cells)

    @cached_property
    def _by_cell(self) -> dict[tuple[tuple[str, ...], str], list[RunResult]]:
        found: dict[tuple[tuple[str, ...], str], list[RunResult]] = {}
        for run in sorted(self.runs, key=lambda run: run.seed):
            found.setdefault((run.labels, run.variant), []).append(run)
        return found

    def measured(self, cell: Cell, variant: str) -> Measured:
        """The runs of one variant of a cell; none if it is missing."""
        return Measured(tuple(self._by_cell.get((cell.labels, variant), ())))

    @property
    def is_smoke(self) -> bool:
        """Whether the figures are those of a smoke run and mean nothing."""
        return any(run.scale == "smoke" for run in self.runs)

    @cached_property
    def rows(self) -> list[Cell]:
        """The cells that are shown: those with a finished run, and those that were asked for by name."""
        known = {run.labels for run in self.runs}
        found = [cell for cell in self.cells if cell.labels in known or set(cell.labels) & set(self.only)]
        return found or list(self.cells)

    @property
    def expected(self) -> int:
        """The number of cells, where each profile of the guard counts."""
        return sum(len(cell.variants) for cell in self.cells)

    @property
    def missing(self) -> list[str]:
        """The variants of cells without any finished run."""
        return [
            ", ".join([*cell.labels, *([f"{variant} profile"] if variant else [])])
            for cell in self.cells
            for variant in cell.variants
            if not self.measured(cell, variant).runs
        ]

    def stated(self, name: str) -> str:
        """The values of a property of the runs (`scale`, `local`, `rounds`, `commit`, `seed`), separated by commas."""
        values = sorted({getattr(run, name) for run in self.runs})
        return ", ".join(str(value) for value in values if value != "") or "unknown"

    def devices(self) -> str:
        """Where the runs were executed, with their number if there are several devices; empty if that is not known."""
        counts = Counter(run.device or "unknown" for run in self.runs)
        if set(counts) <= {"unknown"}:
            return ""
        if len(counts) == 1:
            return next(iter(counts))
        return " and ".join(f"{device} ({count} runs)" for device, count in sorted(counts.items()))

    def to_csv(self) -> str:
        """One row for each run."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*self.table.axes, *_RUN, *FIGURES, *(["asr_by_round"] if self.table.has_curves else [])])
        order = {cell.labels: index for index, cell in enumerate(self.table.cells)}
        for run in sorted(self.runs, key=lambda run: (order[run.labels], run.variant != "paper", run.seed)):
            values = ["" if value is None else f"{value:.4f}" for value in run.figures.values()]
            own = [run.variant, run.seed, run.scale, run.local, run.rounds, run.commit, run.device]
            writer.writerow([*run.labels, *own, *values, *([run.curve] if self.table.has_curves else [])])
        return file.getvalue()

    @staticmethod
    def from_csv(table: Table, path: str | Path) -> Results:
        """The results in a file that `to_csv` wrote; the cells are all those of the tasks that it has."""
        try:
            rows = list(csv.DictReader(Path(path).read_text(encoding="utf-8").splitlines()))
            runs = [_run(table, row) for row in rows]
        except OSError as error:
            raise StateError(f"cannot read {path}: {error.strerror}") from error
        except (KeyError, ValueError) as error:
            raise StateError(f"{path} holds no results of the table {table.name}: {error}") from error
        if "task" not in table.axes:
            return Results(table, runs)
        index = list(table.axes).index("task")
        tasks = {run.labels[index] for run in runs}
        return Results(table, runs, [cell for cell in table.cells if cell.labels[index] in tasks])


def notable(printed: float | str | None, measured: float | None) -> int:
    """1 if a measured percentage is at least 5 points above the printed one, -1 if it is at least 5 below, else 0.

    >>> notable(10.0, 16.0), notable(10.0, 4.0), notable(10.0, 11.0), notable("OOM", 11.0)
    (1, -1, 0, 0)
    """
    if not isinstance(printed, float) or measured is None or abs(measured - printed) < _NOTABLE:
        return 0
    return 1 if measured > printed else -1


def _run(table: Table, row: Mapping[str, str]) -> RunResult:
    figures = {name: float(row[name]) if row[name] else None for name in FIGURES}
    labels = tuple(row[axis] for axis in table.axes)
    own: dict[str, Any] = {name: row[name] for name in ("scale", "local", "commit")}
    return RunResult(
        labels, row["profile"], int(row["seed"]), rounds=int(row["rounds"]), figures=figures,
        device=row.get("device") or "", curve=row.get("asr_by_round") or "", **own,
    )  # fmt: skip


def tasks_of(results: Results) -> Iterable[tuple[str, list[Cell]]]:
    """The rows of each task, in the order of the table; one group without a name if the table has a single task."""
    axes = list(results.table.axes)
    groups: dict[str, list[Cell]] = {}
    for cell in results.rows:
        groups.setdefault(cell.labels[axes.index("task")] if "task" in axes else "", []).append(cell)
    return groups.items()
