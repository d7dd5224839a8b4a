"""The guard: runs the four stages of a profile in each round."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ..aggregators.base import Aggregator, ClientId, Decision, Event, Outcome, Round, Verdict, model_kept
from ..core.errors import ConfigError, StateError
from ..core.layout import ModelLayout
from ..core.numerics import Array
from ..core.randomness import secret_of
from ..core.settings import build, text
from ..core.settings import seed as seed_field
from ..core.state_files import SavedState, read_state, write_state
from .observation import Observation, Observer
from .profiles import DEFAULT, PARTS, build_parts, find, names
from .stages import Clustering, Construction, Elimination, Evidence, Filtering, Judgement, Stage, Step

_KIND = "guard"
AnyGuard = TypeVar("AnyGuard", bound="Guard")


@dataclass(frozen=True)
class _Guard:
    """The settings that do not depend on the profile."""

    profile: str = text(DEFAULT)
    seed: int | None = seed_field()


class Guard(Aggregator):
    """Runs the stages of a profile and saves them.

    `G2uardFL` is the same with documented keyword arguments.

    Parameters
    ----------
    profile
        "default", "paper", or `package.module:ClassName` of a `Profile`.
    seed
        Determines everything random: the same seed and inputs give the same results. None draws a secret from the
        operating system, which is kept in the saved state only (default: None).
    **settings
        Settings of the profile by name; the others keep their defaults.
    """

    name = "g2uardfl"
    summary = "clusters clients as an attributed graph, keeps their reputations, and moves away from attackers"
    takes_seed = True
    uses_num_examples = True

    observer: Observer
    construction: Construction[Any, Any]
    clustering: Clustering[Any, Any, Any]
    filtering: Filtering[Any, Any, Any, Any]
    elimination: Elimination[Any, Any]

    def __init__(self, profile: str = DEFAULT, *, seed: int | None = None, **settings: Any) -> None:
        if not isinstance(profile, str):
            raise ConfigError(f"profile={profile!r} is not allowed: give a name, or package.module:ClassName")
        self.profile, self.seed = profile, build(_Guard, {"seed": seed}).seed
        self._secret = secret_of(self.seed)
        self._install(build_parts(profile, self._secret, settings))
        self.round = 0
        """Rounds decided so far."""
        self._signature: list[list[Any]] | None = None

    @property
    def parts(self) -> dict[str, Stage]:
        """Observer and stages by name, in the order of a round."""
        return {name: getattr(self, name) for name in PARTS}

    def _install(self, parts: Mapping[str, Stage]) -> None:
        for name, part in parts.items():
            setattr(self, name, part)

    def configuration(self) -> dict[str, Any]:
        """Profile, seed (None if the secret was drawn) and all settings by name."""
        settings = {name: value for part in self.parts.values() for name, value in vars(part.settings).items()}
        return {"profile": self.profile, "seed": self.seed, **settings}

    @classmethod
    def setting_groups(cls) -> dict[str, list[type]]:
        """The settings of each built-in profile."""
        groups: dict[str, list[type]] = {"": [_Guard]}
        for name in names():
            groups[f"profile={name}"] = [part.Settings for part in find(name).parts().values()]
        return groups

    def accept_layout(self, layout: ModelLayout) -> None:
        """Reject a model whose layout differs from that of earlier rounds."""
        if self._signature is None:
            self._signature = layout.signature()
        elif self._signature != layout.signature():
            raise ValueError(
                "this guard belongs to a model with other parameters, or with other arrays declared as buffers: "
                "create a new guard for this model"
            )

    def combine(self, round_: Round) -> Outcome:
        """One round of the defence over the usable updates."""
        clock = _Clock()
        observation = self.observer.observe(round_)
        clock.lap("observation")
        evidence, judgement = self._decide(observation, clock)
        self.observer.learn(evidence)
        step = self.elimination.step(round_, evidence, judgement)
        clock.lap("elimination")
        return Outcome(
            step.vector,
            step.shares,
            _verdicts(evidence.clients, judgement, step.weights),
            events=_events(step),
            restored=step.restored,
            seconds=clock.seconds,
            observation=observation,
            edges=evidence.strongest_edges(),
        )

    def judge(self, observation: Observation) -> dict[ClientId, Verdict]:
        """The verdicts on a recorded round; memories are updated as in the round itself.

        A record holds no updates to sum, so these verdicts have no `weight`.
        """
        evidence, judgement = self._decide(observation, _Clock())
        return _verdicts(evidence.clients, judgement)

    def _decide(self, observation: Observation, clock: _Clock) -> tuple[Evidence, Judgement]:
        """The first three stages."""
        self.round += 1
        evidence = self.construction.build(self.round, observation)
        clock.lap("construction")
        prior = self.filtering.prior(evidence)
        clusters = self.clustering.cluster(evidence, prior)
        clock.lap("clustering")
        judgement = self.filtering.judge(evidence, prior, clusters)
        self.construction.learn(evidence, judgement)
        clock.lap("filtering")
        return evidence, judgement

    def weaknesses(self, clients: int) -> list[str]:
        """Warnings about the settings in rounds of `clients` clients."""
        return [sentence for part in self.parts.values() for sentence in part.weaknesses(clients)]

    def state(self) -> SavedState:
        """Everything the guard remembers, its secret and its settings."""
        values = {
            "settings": self.configuration(),
            "secret": self._secret,
            "round": self.round,
            "signature": self._signature,
        }
        return SavedState.joined({name: part.state() for name, part in self.parts.items()}, values)

    def restore(self, state: SavedState) -> None:
        """Restore a saved state exactly. The saved seed and secret replace this guard's; its settings stay."""
        try:
            saved = state.values["settings"]
            if saved["profile"] != self.profile:
                raise StateError(
                    f"this state belongs to profile={saved['profile']!r}, not to profile={self.profile!r}: "
                    "choose that profile, or start over"
                )
            seed, secret = saved["seed"], int(state.values["secret"])
            number, signature = int(state.values["round"]), state.values["signature"]
            parts = {name: type(part)(part.settings, secret) for name, part in self.parts.items()}
            for name, part in parts.items():
                part.restore(state.part(name))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise StateError(
                f"this guard state is incomplete ({error}): restore it from a copy or start over"
            ) from error
        self._install(parts)
        self.seed, self._secret, self.round, self._signature = seed, secret, number, signature

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole state, secret included, to one file, atomically and without pickle."""
        write_state(path, _KIND, self.state())

    @classmethod
    def load(cls: type[AnyGuard], path: str | os.PathLike[str]) -> AnyGuard:
        """A guard with the saved settings that continues where the saved one stopped."""
        state = read_state(path, _KIND)
        try:
            settings = dict(state.values["settings"])
            guard = cls(settings.pop("profile"), seed=settings.pop("seed"), **settings)
        except (KeyError, TypeError) as error:
            raise StateError(f"{path} is incomplete ({error}): restore it from a copy or start over") from error
        guard.restore(state)
        return guard


def _verdicts(
    clients: tuple[ClientId, ...], judgement: Judgement, weights: Array | None = None
) -> dict[ClientId, Verdict]:
    verdicts = {}
    for row, client in enumerate(clients):
        decision: Decision = "accepted" if judgement.accepted[row] else "held_out"
        verdicts[client] = Verdict(
            "malicious" if judgement.malicious[row] else decision,
            judgement.reasons[row],
            benign_score=float(judgement.scores[row]),
            cluster=None if judgement.clusters is None else int(judgement.clusters[row]),
            distance=None if judgement.distances is None else float(judgement.distances[row]),
            suspicion=None if judgement.suspicion is None else float(judgement.suspicion[row]),
            weight=None if weights is None else float(weights[row]),
        )
    return verdicts


def _events(step: Step) -> tuple[Event, ...]:
    if step.restored is not None or step.weights.any():
        return step.events
    return (*step.events, model_kept("Every client was rejected"))


class _Clock:
    """Seconds since the last lap, by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage], self._last = now - self._last, now
