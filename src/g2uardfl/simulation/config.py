"""`RunConfig`: all settings of a run, read from and written to `config.toml`."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import aggregators
from ..core.errors import ConfigError
from ..core.settings import build, check, choice, number, optional_number, table, text, unknown_setting
from ..core.text import suggestion
from ..tasks.base import TrainingDefaults
from ..training.local import Recipe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SECTIONS = {"task": "task_settings", "attack": "attack_settings", "defense": "defense_settings"}
"""The prefixes that `--set` accepts, and the field of `RunConfig` that each stands for."""
_FORMAT = 2
"""Version of `config.toml`. In version 1, 0 stood for settings that were not given."""


@dataclass(frozen=True)
class RunConfig:
    """All settings of one run.

    Settings that are None, their default, are filled in by `resolved`: most of them with the task's own value. Settings
    that are None afterwards do not apply.
    """

    task: str = text("digits")
    attack: str = text("none")
    defense: str = text("fedavg")
    model: str = text("")
    """One of the task's models; empty means the first."""
    rounds: int = number(100, 1, math.inf)
    clients: int = optional_number(1, math.inf, integer=True)
    """Number of clients (the paper's M); by default the task's."""
    per_round: int = optional_number(1, math.inf, integer=True)
    """Number of clients that the server selects each round (m); by default the task's."""
    pmr: float = number(0.25, 0, 1)
    """Poisoned model rate: the fraction of clients that are malicious."""
    pdr: float = number(0.5, 0, 1)
    """Poisoned data rate: the fraction of a malicious client's samples that are backdoored."""
    alpha: float = number(math.inf, 0, math.inf, above=True)
    """Concentration of the Dirichlet partition: small values give heterogeneous clients; infinity is IID."""
    partition: str = choice("dirichlet", "dirichlet", "natural")
    """`dirichlet`, or `natural` for tasks whose data has natural groups."""
    local_epochs: int | None = optional_number(1, math.inf, integer=True)
    """Passes over a client's data; by default the task's, unless `local_steps` is given."""
    local_steps: int | None = optional_number(1, math.inf, integer=True)
    """SGD steps of local training, instead of passes."""
    lr: float = optional_number(0, math.inf, above=True)
    """Learning rate; by default the task's."""
    batch_size: int = optional_number(1, math.inf, integer=True)
    """Samples per step; by default the task's."""
    momentum: float = optional_number(0, 1)
    """Momentum of SGD; by default the task's."""
    weight_decay: float = optional_number(0, math.inf)
    """Weight decay of SGD; by default the task's."""
    lr_decay: float = optional_number(0, 1, above=True)
    """The learning rate is multiplied by this factor after every round; by default the task's."""
    churn: float = number(0.0, 0, 1)
    """The fraction of clients that leave permanently, or join, at a random round."""
    attack_from: int = number(1, 1, math.inf)
    """The first round in which malicious clients attack; before it they train honestly."""
    attack_until: int | None = optional_number(1, math.inf, integer=True)
    """The last round in which malicious clients attack; by default the last round of the run."""
    defend_from: int = number(1, 1, math.inf)
    """The first round in which the defence aggregates; before it the server uses FedAvg."""
    start: str = text("converged")
    """The initial model: `converged` (trained centrally; the paper attacks after convergence), `scratch`, or a file."""
    evaluate_every: int = number(1, 1, math.inf)
    checkpoint_every: int = number(10, 1, math.inf)
    seed: int = number(0, 0, 2**63 - 1)
    device: str = text("cpu")
    engine: str = choice("auto", "auto", "loop", "workers", "batched")
    """How clients are trained: `loop`, `workers` (CPU), `batched` (GPU), or `auto` to choose the fastest."""
    workers: int = number(0, 0, 1024)
    """Number of worker processes; 0 means one per core."""
    data_dir: str = text("")
    sample_limit: int | None = optional_number(1, math.inf, integer=True)
    """At most this number of samples of each set (training, test, backdoor) is used; by default all."""
    task_settings: dict[str, Any] = table()
    attack_settings: dict[str, Any] = table()
    defense_settings: dict[str, Any] = table()

    def __post_init__(self) -> None:
        check(self)
        for name in ("model", "data_dir"):
            if name in self.task_settings:
                raise ConfigError(
                    f"{name} is a setting of the run, not of the task: write {name} without the prefix task."
                )

    def resolved(self, defaults: TrainingDefaults) -> RunConfig:
        """The config with a value for every setting that applies; ConfigError where settings contradict each other."""
        if self.local_steps is not None and self.local_epochs is not None:
            raise ConfigError(
                f"local_epochs={self.local_epochs} and local_steps={self.local_steps} exclude each other: leave one out"
            )
        if self.sample_limit is not None and self.partition == "natural":
            raise ConfigError("sample_limit would separate samples from their groups: use partition='dirichlet'")
        names = ["clients", "per_round", "lr", "batch_size", "lr_decay", "momentum", "weight_decay"]
        usual = {name: getattr(defaults, name) for name in names}
        if self.local_steps is None:
            usual["local_epochs"] = defaults.local_epochs
        config = dataclasses.replace(self, **{n: value for n, value in usual.items() if getattr(self, n) is None})
        config._check_rounds()
        if config.per_round > config.clients:
            raise ConfigError(
                f"per_round={config.per_round} is more than clients={config.clients}: select fewer or add clients"
            )
        return config

    def _check_rounds(self) -> None:
        """Raise `ConfigError` if the attack or the defence would act in no round."""
        for name in ("attack_from", "defend_from"):
            if getattr(self, name) > self.rounds:
                raise ConfigError(
                    f"{name}={getattr(self, name)} is after the last round (rounds={self.rounds}): "
                    f"lower {name} or run more rounds"
                )
        if self.attack_until is not None and self.attack_until < self.attack_from:
            raise ConfigError(
                f"attack_until={self.attack_until} is before attack_from={self.attack_from}: there would be no attack"
            )

    def recipe(self, round_number: int) -> Recipe:
        """How an honest client trains in a round."""
        return Recipe(
            lr=self.lr * self.lr_decay ** (round_number - 1),
            batch_size=self.batch_size,
            epochs=self.local_epochs or 0,
            steps=self.local_steps or 0,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )

    def to_toml(self) -> str:
        """The complete config as TOML; `from_toml` reads it back unchanged."""
        import tomli_w

        return tomli_w.dumps(_without_none({"format": _FORMAT, **dataclasses.asdict(self)}))

    @staticmethod
    def from_toml(written: str, source: str = "the config") -> RunConfig:
        """Read what `to_toml` wrote; settings that are left out have their defaults."""
        return build(RunConfig, _values(written, source))

    @staticmethod
    def from_file(path: str | Path) -> RunConfig:
        """Read a config file; settings that it leaves out have their defaults."""
        return build(RunConfig, read_values(path))


def read_values(path: str | Path) -> dict[str, Any]:
    """The settings in a TOML file, by name."""
    try:
        return _values(Path(path).read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _values(written: str, source: str) -> dict[str, Any]:
    """The settings in TOML, by name."""
    try:
        values = tomllib.loads(written)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from error
    version = values.pop("format", _FORMAT)
    if version not in (1, _FORMAT):
        raise ConfigError(f"{source} was written by another version of g2uardfl")
    return _from_version_1(values) if version == 1 else values


def _from_version_1(values: dict[str, Any]) -> dict[str, Any]:
    """The settings of a config file of version 1, in which every run had the task's value of `local_epochs`."""
    unset = {name for name in ("local_steps", "attack_until") if values.get(name) == 0}
    unset |= set() if "local_steps" in unset else {"local_epochs"}
    return {name: value for name, value in values.items() if name not in unset}


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that TOML can hold: None means that a setting is left out."""
    kept = {name: value for name, value in values.items() if value is not None}
    return {name: _without_none(value) if isinstance(value, dict) else value for name, value in kept.items()}


_NAMES = tuple(item.name for item in dataclasses.fields(RunConfig))
"""The settings of a run, without those of its parts."""


def overridden(values: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a file, with `options` on top.

    If the options name another task, attack or defence, the file's settings for the one it replaces are dropped.

    >>> overridden({"defense": "krum", "defense_settings": {"malicious_clients": 1}}, {"defense": "flame"})
    {'defense': 'flame'}
    """
    replaced = {field for name, field in SECTIONS.items() if options.get(name, values.get(name)) != values.get(name)}
    return {**{name: value for name, value in values.items() if name not in replaced}, **options}


def with_assignments(values: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """A copy of `values`, changed by assignments of the form `key=value`.

    A key is a field of `RunConfig`, or `defense.KEY`, `attack.KEY` or `task.KEY`. A key without a prefix that is not a
    field is a setting of the defence. A value that is not valid TOML is a string.

    >>> with_assignments({"defense": "krum"}, ["rounds=3", "malicious_clients=1", "task.edge=full"])
    {'defense': 'krum', 'rounds': 3, 'defense_settings': {'malicious_clients': 1}, 'task_settings': {'edge': 'full'}}
    """
    changed = dict(values)
    unprefixed = []
    for assignment in assignments:
        key, separator, written = assignment.partition("=")
        if not separator or not key:
            raise ConfigError(f"--set {assignment}: write key=value")
        changed = with_setting(changed, key, parse_value(written))
        unprefixed += [] if "." in key or key in _NAMES else [key]
    for key in unprefixed:
        _check_owner(key, str(changed.get("defense", RunConfig.defense)))
    return changed


def with_setting(values: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of `values` in which one setting is changed; for keys see `with_assignments`."""
    section, dot, name = key.partition(".")
    if dot and section not in SECTIONS:
        raise ConfigError(f"setting {key!r} has an unknown prefix {section!r}: {suggestion(section, list(SECTIONS))}")
    if not dot and key in _NAMES:
        return {**values, key: value}
    place = SECTIONS[section] if dot else "defense_settings"
    return {**values, place: {**values.get(place, {}), (name if dot else key): value}}


def parse_value(written: str) -> Any:
    """A value in TOML; any other text is a string.

    >>> parse_value("0.5"), parse_value("true"), parse_value("full")
    (0.5, True, 'full')
    """
    try:
        return tomllib.loads(f"value = {written}")["value"]
    except tomllib.TOMLDecodeError:
        return written


def _check_owner(key: str, defense: str) -> None:
    """Raise `ConfigError` for a key without a prefix that is not a setting of the defence."""
    parameters = inspect.signature(aggregators.find(defense)).parameters.values()
    known = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY or one.name == "profile"]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
    close = difflib.get_close_matches(key, [*known, *_NAMES], 1)
    if not close and not known and not takes_any:
        hint = f"{defense} has no settings, and `g2uardfl run --help` names those of the run"
        raise ConfigError(f"unknown setting {key!r}: {hint}")
    if key not in known and (close[0] in _NAMES if close else not takes_any):
        raise unknown_setting(key, close or known, defense)
