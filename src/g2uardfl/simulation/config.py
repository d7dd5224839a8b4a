"""`RunConfig`: all settings of a run, read from and written to `config.toml`."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError
from ..core.settings import build, check, choice, number
from ..tasks.base import TrainingDefaults
from ..training.local import Recipe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SECTIONS = {"task": "task_settings", "attack": "attack_settings", "defense": "defense_settings"}
"""The prefixes that `--set` accepts, and the field of `RunConfig` that each stands for."""


@dataclass(frozen=True)
class RunConfig:
    """All settings of one run.

    `clients`, `per_round`, `local_epochs`, `lr`, `batch_size` and `lr_decay` use the task's default when they are 0;
    `momentum` and `weight_decay` when they are negative. `resolved` fills these defaults in.
    """

    task: str = "digits"
    attack: str = "none"
    defense: str = "fedavg"
    model: str = ""
    """One of the task's models; empty means the first."""
    rounds: int = number(100, 1, math.inf)
    clients: int = number(0, 0, math.inf)
    """Number of clients (the paper's M)."""
    per_round: int = number(0, 0, math.inf)
    """Number of clients that the server selects each round (m)."""
    pmr: float = number(0.25, 0, 1)
    """Poisoned model rate: the fraction of clients that are malicious."""
    pdr: float = number(0.5, 0, 1)
    """Poisoned data rate: the fraction of a malicious client's samples that are backdoored."""
    alpha: float = number(math.inf, 0, math.inf, above=True)
    """Concentration of the Dirichlet partition: small values give heterogeneous clients; infinity is IID."""
    partition: str = choice("dirichlet", "dirichlet", "natural")
    """`dirichlet`, or `natural` for tasks whose data has natural groups."""
    local_epochs: int = number(0, 0, math.inf)
    local_steps: int = number(0, 0, math.inf)
    """SGD steps of local training; 0 means `local_epochs` passes over the client's data."""
    lr: float = number(0.0, 0, math.inf)
    batch_size: int = number(0, 0, math.inf)
    momentum: float = number(-1.0, -1, 1)
    weight_decay: float = number(-1.0, -1, math.inf)
    lr_decay: float = number(0.0, 0, 1)
    """The learning rate is multiplied by this factor after every round."""
    churn: float = number(0.0, 0, 1)
    """The fraction of clients that leave permanently, or join, at a random round."""
    attack_from: int = number(1, 1, math.inf)
    """The first round in which malicious clients attack; before it they train honestly."""
    attack_until: int = number(0, 0, math.inf)
    """The last round in which malicious clients attack; 0 means the last round of the run."""
    defend_from: int = number(1, 1, math.inf)
    """The first round in which the defence aggregates; before it the server uses FedAvg."""
    start: str = "converged"
    """The initial model: `converged` (trained centrally; the paper attacks after convergence), `scratch`, or a file."""
    evaluate_every: int = number(1, 1, math.inf)
    checkpoint_every: int = number(10, 1, math.inf)
    seed: int = number(0, 0, 2**63 - 1)
    device: str = "cpu"
    engine: str = choice("auto", "auto", "loop", "workers", "batched")
    """How clients are trained: `loop`, `workers` (CPU), `batched` (GPU), or `auto` to choose the fastest."""
    workers: int = number(0, 0, 1024)
    """Number of worker processes; 0 means one per core."""
    data_dir: str = ""
    task_settings: dict[str, Any] = field(default_factory=dict)
    attack_settings: dict[str, Any] = field(default_factory=dict)
    defense_settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)

    def resolved(self, defaults: TrainingDefaults) -> RunConfig:
        """The config with the task's defaults for all settings that are not given."""
        filled = {
            name: getattr(self, name) or getattr(defaults, name)
            for name in ("clients", "per_round", "lr", "batch_size", "lr_decay", "local_epochs")
        }
        for name in ("momentum", "weight_decay"):
            filled[name] = getattr(defaults, name) if getattr(self, name) < 0 else getattr(self, name)
        config = dataclasses.replace(self, **filled)
        if config.per_round > config.clients:
            raise ConfigError(
                f"per_round={config.per_round} is more than clients={config.clients}: select fewer or add clients"
            )
        return config

    def recipe(self, round_number: int) -> Recipe:
        """How an honest client trains in a round."""
        return Recipe(
            lr=self.lr * self.lr_decay ** (round_number - 1),
            batch_size=self.batch_size,
            epochs=self.local_epochs,
            steps=self.local_steps,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )

    def to_toml(self) -> str:
        """The complete config as TOML; `from_toml` reads it back unchanged."""
        import tomli_w

        return tomli_w.dumps({"format": 1, **dataclasses.asdict(self)})

    @staticmethod
    def from_file(path: str | Path) -> RunConfig:
        """Read a config file; settings that it leaves out have their defaults."""
        return build(RunConfig, read_values(path))


def read_values(path: str | Path) -> dict[str, Any]:
    """The settings in a TOML file, by name."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    if values.pop("format", 1) != 1:
        raise ConfigError(f"{path} was written by another version of g2uardfl")
    return values


def with_assignments(values: Mapping[str, Any], assignments: list[str]) -> dict[str, Any]:
    """A copy of `values`, changed by assignments of the form `key=value`.

    A key is a field of `RunConfig`, or `defense.KEY`, `attack.KEY` or `task.KEY`. A key without a prefix that is not a
    field is a setting of the defence. A value that is not valid TOML is a string.

    >>> with_assignments({}, ["rounds=3", "window=50", "task.edge=full"])
    {'rounds': 3, 'defense_settings': {'window': 50}, 'task_settings': {'edge': 'full'}}
    """
    changed = dict(values)
    fields = {item.name for item in dataclasses.fields(RunConfig)}
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator or not key:
            raise ConfigError(f"--set {assignment}: write key=value")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        section, dot, name = key.partition(".")
        if dot and section not in _SECTIONS:
            raise ConfigError(f"--set {assignment}: the part before the dot is one of {', '.join(_SECTIONS)}")
        if not dot and key in fields:
            changed[key] = value
            continue
        place = _SECTIONS[section] if dot else "defense_settings"
        changed[place] = {**changed.get(place, {}), (name if dot else key): value}
    return changed
