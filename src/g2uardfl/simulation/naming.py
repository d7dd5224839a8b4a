"""How runs are named in tables, legends and pages, and in which settings several runs differ."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..defense.profiles import DEFAULT
from .config import SECTIONS, RunConfig

_PLUGIN = re.compile(r"[^(),:]*:(\w+)")
"""The import path or file of a custom class, and the name of the class."""
PROFILE = "defense.profile"
"""The setting that chooses other settings."""


def defense_name(config: RunConfig) -> str:
    """The defence of a run as shown to readers; it says which profile it has, unless that is the default.

    >>> defense_name(RunConfig(defense="g2uardfl", defense_settings={"profile": "paper"}))
    'g2uardfl (paper)'
    >>> defense_name(RunConfig(defense="g2uardfl")), defense_name(RunConfig(defense="./mine.py:Rule"))
    ('g2uardfl', 'Rule')
    """
    name, profile = _short(config.defense), config.defense_settings.get("profile", DEFAULT)
    return name if profile == DEFAULT else f"{name} ({_short(profile)})"


def attack_name(config: RunConfig) -> str:
    """The attack of a run as shown to readers, wrapped attacks included.

    >>> attack_name(RunConfig(attack="randomized(./mine.py:SignFlip)"))
    'randomized(SignFlip)'
    """
    return _short(config.attack)


def task_name(config: RunConfig) -> str:
    """The task of a run as shown to readers."""
    return _short(config.task)


def run_name(config: RunConfig) -> str:
    """A run in words: its defence, attack and task.

    >>> run_name(RunConfig(attack="pgd"))
    'fedavg against pgd on digits'
    """
    return f"{defense_name(config)} against {attack_name(config)} on {task_name(config)}"


def flat_settings(config: RunConfig) -> dict[str, Any]:
    """All settings of a run by name; those of task, attack and defence as `task.KEY`, `attack.KEY` and `defense.KEY`.

    >>> flat_settings(RunConfig(defense_settings={"profile": "paper"}))["defense.profile"]
    'paper'
    """
    values = dataclasses.asdict(config)
    parts = {section: values.pop(field) for section, field in SECTIONS.items()}
    return values | {f"{section}.{key}": value for section, part in parts.items() for key, value in part.items()}


def differing(configs: Sequence[RunConfig], ignored: Sequence[str] = ()) -> dict[str, list[Any]]:
    """The settings in which runs differ: name -> the value of each run, None where a run does not have the setting.

    A setting of a defence, attack or task that only some runs have is compared among these, so that two defences differ
    in `defense` and not in every setting of either.

    Parameters
    ----------
    configs
        The configs, as resolved by `Simulation` or read from run directories.
    ignored
        Names of settings that are left out (default: none).

    Examples
    --------
    >>> differing([RunConfig(alpha=0.1, pmr=0.2), RunConfig(alpha=0.5, pmr=0.2)])
    {'alpha': [0.1, 0.5]}
    >>> runs = [RunConfig(defense="krum", defense_settings={"malicious_clients": f}) for f in (1, 2)]
    >>> differing([*runs, RunConfig()])
    {'defense': ['krum', 'krum', 'fedavg'], 'defense.malicious_clients': [1, 2, None]}
    """
    flat = [flat_settings(config) for config in configs]
    names = {name: None for one in flat for name in one if name not in ignored}
    return {name: [one.get(name) for one in flat] for name in names if _differs(name, flat)}


def _differs(name: str, flat: Sequence[Mapping[str, Any]]) -> bool:
    """Whether two runs that have the setting, or two of the same defence, attack or task, differ in it."""
    section = name.partition(".")[0]
    groups: dict[Any, set[str]] = {}
    for one in flat:
        group = one.get(section), section == "defense" and name != PROFILE and one.get(PROFILE, DEFAULT)
        groups.setdefault(group, set()).add(repr(one.get(name)))
        if name in one:
            groups.setdefault("all that have it", set()).add(repr(one[name]))
    return any(len(values) > 1 for values in groups.values())


def _short(name: str) -> str:
    """A name in which every custom class is shown without its module or file."""
    return _PLUGIN.sub(r"\1", name)
