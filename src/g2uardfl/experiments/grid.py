"""Grids of runs: lists of values whose combinations are the runs, from a TOML file or the command line."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError
from ..core.settings import build
from ..simulation.config import RunConfig, parse_value, read_values, with_setting

Axes = Mapping[str, Sequence[Any]]
"""Name of a setting -> its values. Names are those of `--set`: fields of `RunConfig`, `defense.KEY`, ..."""

_NAMED = ("task", "attack", "defense")
"""The settings that are names, to which settings can be appended."""
_FIELDS = {item.name for item in dataclasses.fields(RunConfig)}


@dataclass(frozen=True)
class Grid:
    """The combinations of all values of all axes.

    Parameters
    ----------
    axes
        The axes. A task, attack or defense can carry settings, which belong to this value alone:
        `g2uardfl,profile=paper` or `pgd,rounds=140,radius=1.5`. A key that is not a field of `RunConfig` is a setting
        of the task, attack or defense it is appended to.
    cells
        Separate grids: each replaces the axes of the same name by its own (default: none, `axes` is the only grid).

    Examples
    --------
    >>> grid = Grid({"seed": [0, 1], "defense": ["fedavg", "g2uardfl,profile=paper"]})
    >>> [(config.defense, config.defense_settings, config.seed) for config in grid.configs()][:2]
    [('fedavg', {}, 0), ('g2uardfl', {'profile': 'paper'}, 0)]
    """

    axes: Axes
    cells: Sequence[Axes] = ()

    @staticmethod
    def from_file(path: str | Path) -> Grid:
        """Read a TOML file: a list is an axis, any other value is fixed; `[[cells]]` are the cells."""
        values = read_values(path)
        cells = values.pop("cells", [])
        if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
            raise ConfigError(f"{path}: write each cell as a table that starts with [[cells]]")
        return Grid(_axes(values), [_axes(cell) for cell in cells])

    def with_axes(self, axes: Axes) -> Grid:
        """The grid with `axes` in place of its own of the same name, in every cell."""
        kept = [{name: values for name, values in cell.items() if name not in axes} for cell in self.cells]
        return Grid({**self.axes, **axes}, kept)

    def configs(self) -> list[RunConfig]:
        """The config of each run; seeds vary slowest, so that an unfinished sweep has results for every other value."""
        found: list[RunConfig] = []
        for cell in self.cells or [{}]:
            axes = {**self.axes, **cell}
            found += [_config(dict(zip(axes, values, strict=True))) for values in itertools.product(*axes.values())]
        return sorted(found, key=lambda config: config.seed)


def axes_of(options: Mapping[str, Sequence[Any]], assignments: Sequence[str] = ()) -> dict[str, list[Any]]:
    """The axes of options with a list of values, and of assignments `key=value,value,...`.

    >>> axes_of({"seed": [0, 1]}, ["pmr=0.1,0.4", "defense.profile=default,paper"])
    {'seed': [0, 1], 'pmr': [0.1, 0.4], 'defense.profile': ['default', 'paper']}
    """
    axes = {name: list(values) for name, values in options.items() if values}
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator or not key:
            raise ConfigError(f"--set {assignment}: write key=value or key=value,value,...")
        listed = parse_value(f"[{text}]")
        axes[key] = listed if isinstance(listed, list) else [parse_value(one) for one in text.split(",")]
    return axes


def _axes(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    axes = {name: value if isinstance(value, list) else [value] for name, value in values.items()}
    for name, listed in axes.items():
        if not listed:
            raise ConfigError(f"{name} = [] has no value: list at least one or leave {name} out")
    return axes


def _config(point: Mapping[str, Any]) -> RunConfig:
    """The config of one combination of values."""
    values: dict[str, Any] = {}
    appended: list[tuple[str, Any]] = []
    for key, value in point.items():
        if key in _NAMED and isinstance(value, str):
            # A comma that does not begin a setting belongs to the name.
            name, *assignments = re.split(r",(?=[\w.]+=)", value)
            appended += [_appended(key, assignment) for assignment in assignments]
            values[key] = name
        else:
            values = with_setting(values, key, value)
    for key, value in appended:
        values = with_setting(values, key, value)
    return build(RunConfig, values)


def _appended(section: str, assignment: str) -> tuple[str, Any]:
    key, _, text = assignment.partition("=")
    return (key if key in _FIELDS or "." in key else f"{section}.{key}"), parse_value(text)
