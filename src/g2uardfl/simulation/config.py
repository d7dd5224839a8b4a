"""What a run is: every choice that decides its result, readable from and writable to `config.toml`."""

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

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SECTIONS = {"task": "task_settings", "attack": "attack_settings", "defense": "defense_settings"}


@dataclass(frozen=True)
class RunConfig:
    """One experiment. `lr`, `clients` and others left at 0 mean the task's default until `resolved` fills them in."""

    task: str = "digits"
    attack: str = "none"
    defense: str = "fedavg"
    model: str = ""
    """One of the task's models; empty means its first."""
    rounds: int = number(100, 1, math.inf)
    clients: int = number(0, 0, math.inf)
    """M, how many clients there are."""
    per_round: int = number(0, 0, math.inf)
    """m, how many the server selects each round."""
    pmr: float = number(0.25, 0, 1)
    """The share of clients that are malicious."""
    pdr: float = number(0.5, 0, 1)
    """The share of a malicious client's samples that are backdoored."""
    alpha: float = number(math.inf, 0, math.inf, above=True)
    """How alike the clients' data is: Dirichlet's α, infinity for a uniform split."""
    partition: str = choice("dirichlet", "dirichlet", "natural")
    """`dirichlet`, or `natural` where the data comes in groups."""
    local_epochs: int = number(0, 0, math.inf)
    local_steps: int = number(0, 0, math.inf)
    """Steps of local training; 0 means whole epochs."""
    lr: float = number(0.0, 0, math.inf)
    batch_size: int = number(0, 0, math.inf)
    momentum: float = number(-1.0, -1, 1)
    weight_decay: float = number(-1.0, -1, math.inf)
    lr_decay: float = number(0.0, 0, 1)
    """The learning rate is multiplied by this every round."""
    churn: float = number(0.0, 0, 1)
    """The share of clients that leave for good or only join at some round of the run."""
    attack_from: int = number(1, 1, math.inf)
    """The first round in which malicious clients attack; before it they are as honest as the others."""
    attack_until: int = number(0, 0, math.inf)
    """The last round in which they attack; 0 means to the end."""
    defend_from: int = number(1, 1, math.inf)
    """The first round of the defence; before it the server averages (FedAvg)."""
    start: str = "converged"
    """`converged` (trained centrally first, as the paper attacks after convergence), `scratch`, or a model file."""
    evaluate_every: int = number(1, 1, math.inf)
    checkpoint_every: int = number(10, 1, math.inf)
    seed: int = number(0, 0, 2**63 - 1)
    device: str = "cpu"
    engine: str = choice("auto", "auto", "loop", "workers", "batched")
    """How clients are trained: one by one, in worker processes (CPU), as one batched model (GPU), or what is best."""
    workers: int = number(0, 0, 1024)
    """Worker processes; 0 means one for each core."""
    data_dir: str = ""
    task_settings: dict[str, Any] = field(default_factory=dict)
    attack_settings: dict[str, Any] = field(default_factory=dict)
    defense_settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)

    def resolved(self, defaults: TrainingDefaults) -> RunConfig:
        """The same run with everything left open taken from the task's defaults."""
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

    def to_toml(self) -> str:
        """The complete config as TOML; `from_toml` reads it back unchanged."""
        import tomli_w

        return tomli_w.dumps({"format": 1, **dataclasses.asdict(self)})

    @staticmethod
    def from_file(path: str | Path) -> RunConfig:
        """Read a config file; what it leaves out takes the defaults."""
        return build(RunConfig, read_values(path))


def read_values(path: str | Path) -> dict[str, Any]:
    """The settings in a TOML file, as names and values."""
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
    """`values` changed by `key=value` texts.

    A key is a field of `RunConfig`, or `defense.KEY`, `attack.KEY`, `task.KEY`; a plain key that is no field is a
    setting of the defence. Values are read as TOML, and as plain text where they are none.

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
