"""A table of the paper: its cells, the runs behind each, and the numbers that the paper prints."""

from __future__ import annotations

import csv
import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError
from ...core.settings import build
from ...core.text import suggestion
from ...simulation.config import RunConfig, with_setting
from ...simulation.metrics import defense_score

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLES = (
    "effectiveness", "robustness", "detection", "heterogeneity", "pmr", "churn", "kappa", "ablation", "convergence",
    "elimination", "readings",
)  # fmt: skip
"""All tables, in the order in which `reproduce all` runs them."""
SCALES = ("smoke", "paper")
GUARD = "g2uardfl"
PROFILES = ("paper", "default")
"""The profiles of the guard in each of its cells; other defences have one variant, without a name."""
CONTRADICTION = 0.02
"""Printed numbers are rounded to two digits: a printed DS or F1 further than this from its formula contradicts it."""

Labels = tuple[str, ...]
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """A row of a table for one task: what runs, and what the paper prints."""

    labels: Labels
    """The label on each axis of the table."""
    settings: Values
    """The settings of its runs, with the names of `--set`; the profile of the guard is still to be chosen."""
    printed: Mapping[str, float | str | None]
    """Figure -> the printed percentage; a text such as "OOM" where the paper prints one; None where it has none."""
    variants: tuple[str, ...]
    """The profiles of the guard; for other defences one variant without a name."""
    seeds: int
    """The number of seeds at the paper's scale."""

    @cached_property
    def recomputed(self) -> dict[str, float]:
        """Printed figures that contradict others of the same cell, as they follow from those."""
        numbers = {name: value for name, value in self.printed.items() if isinstance(value, float)}
        found = {}
        if {"asr", "acc", "ds"} <= numbers.keys():
            found["ds"] = 100 * defense_score(numbers["acc"] / 100, numbers["asr"] / 100)
        if {"precision", "recall", "f1"} <= numbers.keys() and numbers["precision"] + numbers["recall"] > 0:
            product = numbers["precision"] * numbers["recall"]
            found["f1"] = 2 * product / (numbers["precision"] + numbers["recall"])
        return {name: value for name, value in found.items() if abs(value - numbers[name]) > CONTRADICTION}


@dataclass(frozen=True)
class Table:
    """A table of the paper as data.

    Parameters
    ----------
    name
        Its name on the command line.
    values
        The content of its TOML file.
    shared
        The content of `setting.toml`.
    printed
        The rows of its CSV file: labels of some axes, and figures (default: none).
    """

    name: str
    values: Values
    shared: Values
    printed: Sequence[Mapping[str, str]] = field(default=())

    @property
    def title(self) -> str:
        """What the table shows."""
        return str(self.values["title"])

    @property
    def figures(self) -> tuple[str, ...]:
        """The figures of each cell."""
        return tuple(self.values["figures"])

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences below the table."""
        return tuple(self.values.get("notes", ()))

    @property
    def has_curves(self) -> bool:
        """Whether it shows ASR over the rounds."""
        return bool(self.values.get("curves", False))

    @property
    def has_theorem(self) -> bool:
        """Whether Theorem 1 is checked beside it."""
        return bool(self.values.get("theorem", False))

    @cached_property
    def axes(self) -> dict[str, dict[str, Values]]:
        """Axis -> label -> settings. An axis without settings of its own has those of `setting.toml`."""
        found = {}
        for axis, labels in self.values["axes"].items():
            common = self.shared["axes"].get(axis, {})
            found[axis] = {label: common[label] for label in labels} if isinstance(labels, list) else dict(labels)
        return found

    def has_label(self, label: str) -> bool:
        """Whether one of the axes has this label."""
        return any(label in labels for labels in self.axes.values())

    @cached_property
    def cells(self) -> list[Cell]:
        """All cells that the paper's table has, but those that do not apply."""
        axes = self.axes
        return [cell for labels in itertools.product(*axes.values()) if (cell := self._cell(labels)) is not None]

    def _cell(self, labels: Labels) -> Cell | None:
        settings = {**self.shared["settings"], **self.values.get("settings", {})}
        for axis, label in zip(self.axes, labels, strict=True):
            settings |= self.axes[axis][label]
        for rule in self.values.get("where", ()):
            if all(label in rule.get(axis, [label]) for axis, label in zip(self.axes, labels, strict=True)):
                if rule.get("left_out"):
                    return None
                settings |= rule["settings"]
        seeds = min(int(self.values.get("seeds", 1)), int(settings.pop("seeds", 1 if "task" in self.axes else 3)))
        profiles = tuple(settings.pop("profiles", self.values.get("profiles", PROFILES)))
        variants = profiles if settings["defense"] == GUARD else ("",)
        return Cell(labels, settings, self._printed(labels), variants, seeds)

    def _printed(self, labels: Labels) -> dict[str, float | str | None]:
        own = dict(zip(self.axes, labels, strict=True))
        for row in self.printed:
            if all(row[axis] == label for axis, label in own.items() if axis in row):
                return {figure: _number(row.get(figure, "")) for figure in self.figures}
        return dict.fromkeys(self.figures)

    def config(self, cell: Cell, variant: str, *, scale: str, local: str, seed: int, changes: Values) -> RunConfig:
        """The config of one run.

        Parameters
        ----------
        cell, variant
            The cell, and one of its variants.
        scale
            "paper", or "smoke" for a small run whose figures mean nothing.
        local
            "steps" or "epochs": how "2 local gradient descent steps" are read.
        seed
            The seed of the run.
        changes
            Further settings, which take precedence.
        """
        settings = {**cell.settings, **self.shared["local"][local]}
        if variant:
            settings["defense.profile"] = variant
        if scale == "smoke":
            settings |= {**self.shared["smoke"], **self.shared["smoke_defense"].get(settings["defense"], {})}
        values: dict[str, Any] = {}
        for name, value in {**settings, "seed": seed, **changes}.items():
            values = with_setting(values, name, value)
        return build(RunConfig, values)


def load(name: str) -> Table:
    """A table of the paper by name, or one of your own: the path of a TOML file in the same format."""
    shared = tomllib.loads(_package_file("setting.toml") or "")
    if name in TABLES:
        values, printed = tomllib.loads(_package_file(f"{name}.toml") or ""), _package_file(f"{name}.csv")
        return Table(name, values, shared, _rows(printed))
    path = Path(name)
    if path.suffix != ".toml":
        raise ConfigError(f"there is no table {name!r}: {suggestion(name, [*TABLES, 'all'])} (or name a .toml file)")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        beside = path.with_suffix(".csv")
        return Table(path.stem, values, shared, _rows(beside.read_text(encoding="utf-8") if beside.exists() else None))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _package_file(name: str) -> str | None:
    found = files(__package__).joinpath(name)
    return found.read_text(encoding="utf-8") if found.is_file() else None


def _rows(text: str | None) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines())) if text else []


def _number(text: str) -> float | str | None:
    try:
        return float(text) if text else None
    except ValueError:
        return text
