"""Results of many runs: finding them, the settings in which they differ, and their metrics as means over seeds."""

from __future__ import annotations

import dataclasses
import glob
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import aggregators, attacks, tasks
from ..core.errors import ConfigError, StateError
from ..simulation.config import RunConfig
from ..simulation.directory import FinishedRun
from ..simulation.naming import PROFILE, attack_name, defense_name, differing, task_name
from ..tasks.base import TrainingDefaults

NAMED = {"task": task_name, "attack": attack_name, "defense": defense_name}
"""The settings that are names, and how they are shown."""
_MACHINE = ("device", "data_dir", "checkpoint_every", "workers", "engine")
"""Settings that do not change the experiment, only how it is executed."""


_FROM_TASK = ("model", *(item.name for item in dataclasses.fields(TrainingDefaults)))
"""Settings that have the task's value unless another is given."""


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds alone."""

    settings: dict[str, Any]
    """The settings in which the groups differ; a name as shown to readers."""
    runs: tuple[FinishedRun, ...]

    @property
    def repeats_seeds(self) -> bool:
        """Whether several runs have the same seed: of different releases, or copies. Deviations are then too small."""
        return len({run.config.seed for run in self.runs}) < len(self.runs)

    def values(self, figure: str) -> list[float]:
        """A figure of each run in which it is defined; for names see the values of `simulation.metrics.FIGURES`."""
        found = ({**run.summary, **run.summary["detection"]}.get(figure) for run in self.runs)
        return [value for value in found if value is not None]

    def mean(self, figure: str) -> float | None:
        """The mean of a figure; None where no run defines it."""
        values = self.values(figure)
        return statistics.fmean(values) if values else None

    def deviation(self, figure: str) -> float | None:
        """The standard deviation of a figure (divided by n - 1); None with fewer than two values."""
        values = self.values(figure)
        return statistics.stdev(values) if len(values) > 1 else None


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """The run directories among `paths` and inside them; patterns such as `runs/**` are allowed.

    Raises `ConfigError` for a path without any.
    """
    found: dict[Path, None] = {}
    for path in paths:
        matches = [str(path)] if os.path.exists(path) else sorted(glob.glob(str(path), recursive=True))
        inside = [run for match in matches for run in _runs_below(Path(match))]
        if not inside:
            raise ConfigError(
                f"{path} is not a run directory and holds none: name folders written by g2uardfl run or sweep"
            )
        found |= dict.fromkeys(inside)
    return list(found)


def read_runs(paths: Iterable[str | Path]) -> tuple[list[FinishedRun], list[Path]]:
    """The finished runs among `paths` and inside them, and the directories of those that are not finished."""
    finished, unfinished = [], []
    for path in find_runs(paths):
        if (path / "summary.json").exists():
            finished.append(FinishedRun(path))
        else:
            unfinished.append(path)
    if not finished:
        raise StateError(f"none of {len(unfinished)} runs is finished: continue with g2uardfl resume {unfinished[0]}")
    return finished, unfinished


def shown_settings(configs: Sequence[RunConfig], *, with_seed: bool = False) -> list[dict[str, Any]]:
    """The settings of each run in which the runs differ; names are those shown to readers.

    Settings that differ only because tasks or numbers of rounds do are left out. Where nothing differs, attack and
    defence are shown.

    Parameters
    ----------
    configs
        The config of each run.
    with_seed
        Whether seeds are among the settings (default: False).
    """
    found = differing(configs, ignored=_MACHINE if with_seed else ("seed", "defense.seed", *_MACHINE))
    columns: dict[str, list[Any]] = {key: [shown(config) for config in configs] for key, shown in NAMED.items()}
    columns = {key: names for key, names in columns.items() if len(set(names)) > 1}
    follows = {key for key in _FROM_TASK if _is_function(found.get(key, []), [config.task for config in configs])}
    if all(config.attack_until in (None, config.rounds) for config in configs):
        follows.add("attack_until")
    columns |= {key: values for key, values in found.items() if key not in (*NAMED, PROFILE, *follows)}
    if not columns:
        columns = {key: [NAMED[key](config) for config in configs] for key in ("attack", "defense")}
    return [{key: values[index] for key, values in columns.items()} for index in range(len(configs))]


def grouped(runs: Sequence[FinishedRun], *, by_seed: bool = False) -> list[Group]:
    """Groups of runs that differ in their seeds alone, in the order of the lists of tasks, attacks and defenses.

    Parameters
    ----------
    runs
        The runs.
    by_seed
        Whether runs with different seeds are in different groups (default: False).
    """
    groups: dict[str, tuple[dict[str, Any], list[FinishedRun]]] = {}
    for run, settings in zip(runs, shown_settings([run.config for run in runs], with_seed=by_seed), strict=True):
        groups.setdefault(repr(settings), (settings, []))[1].append(run)
    found = [Group(settings, tuple(members)) for settings, members in groups.values()]
    return sorted(found, key=_rank)


def _is_function(values: Sequence[Any], of: Sequence[str]) -> bool:
    """Whether equal names have equal values."""
    return len(set(zip(of, map(repr, values), strict=False))) == len(set(of))


def _rank(group: Group) -> tuple[Any, ...]:
    config = group.runs[0].config
    others = [_comparable(value) for key, value in group.settings.items() if key not in NAMED]
    named = ((config.task, tasks.names()), (config.attack, attacks.names()), (config.defense, aggregators.names()))
    return (*((_position(name, known), name) for name, known in named), defense_name(config), others)


def _position(name: str, known: Sequence[str]) -> int:
    return known.index(name) if name in known else len(known)


def _comparable(value: Any) -> tuple[bool, float, str]:
    """Numbers before anything else."""
    is_number = isinstance(value, int | float)
    return not is_number, float(value) if is_number else 0.0, repr(value)


def _runs_below(path: Path) -> Iterator[Path]:
    for folder, inner, files in os.walk(path):
        inner.sort()
        if "config.toml" in files:
            inner.clear()
            yield Path(folder)
