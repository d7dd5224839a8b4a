"""Recorded rounds: what the stages of a guard saw, in one file, to be decided again without training.

A `RoundRecorder` is passed to `Aggregator.aggregate` as an observer. It keeps exactly the observation that a guard
decided on; replaying it with a guard of the same settings gives the same verdicts. For other rules and other profiles
it measures the round itself. The ground truth (who attacked) is added in a simulation, where it is known.

A record of the default profile holds sketches, from which a client that knows its own updates could derive the guard's
secret: protect it like a saved state. The paper's profile clusters with random numbers of its own, so only a guard with
a `seed` reproduces its decisions.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..aggregators.base import Outcome, Round
from ..core.errors import StateError
from ..core.randomness import secret_of
from ..core.state_files import SavedState, read_state, write_state
from .observation import Observation, Observer
from .profiles import find, names

_KIND = "record"


@dataclass
class Record:
    """Observations of consecutive rounds and, where known, which of their clients attacked."""

    rounds: list[Observation] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    """The number of each round, as its caller counts."""
    attacking: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    """For each round and client; empty where the ground truth is unknown."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Where the record comes from."""

    def add_truth(self, attackers: Mapping[int, Collection[Any]]) -> None:
        """Add who attacked: round number -> the clients that attacked in it."""
        self.attacking = [
            np.array([client in attackers[number] for client in observation.clients], dtype=bool)
            for number, observation in zip(self.numbers, self.rounds, strict=True)
        ]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file that holds every number exactly and that only its owner may read."""
        arrays = {
            f"{number}.{name}": array
            for number, observation in enumerate(self.rounds)
            for name, array in observation.measured.items()
        }
        document = {
            "clients": [list(observation.clients) for observation in self.rounds],
            "layers": list(self.rounds[0].layers) if self.rounds else [],
            "numbers": self.numbers,
            "measured": [sorted(observation.measured) for observation in self.rounds],
            "client_axes": {name: axes for one in self.rounds for name, axes in one.client_axes.items()},
            "attacking": [[bool(one) for one in truth] for truth in self.attacking],
            "notes": self.notes,
        }
        write_state(path, _KIND, SavedState(document, arrays))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Record:
        """Read a file that `save` wrote."""
        state = read_state(path, _KIND)
        values = state.values
        try:
            # Older records have built-in measurements only.
            axes = {name: tuple(one) for name, one in values.get("client_axes", _built_in_axes()).items()}
            rounds = [
                Observation(
                    tuple(clients),
                    tuple(values["layers"]),
                    {name: state.arrays[f"{number}.{name}"] for name in measured},
                    {name: axes[name] for name in measured if name in axes},
                )
                for number, (clients, measured) in enumerate(zip(values["clients"], values["measured"], strict=True))
            ]
            truth = [np.array(one, dtype=bool) for one in values["attacking"]]
            return Record(rounds, list(values["numbers"]), truth, dict(values["notes"]))
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"{os.fspath(path)} is an incomplete record ({error}): record it again") from error


class RoundRecorder:
    """Keeps the observation of every round it is called with.

    Parameters
    ----------
    profiles
        The profiles whose guards can decide the record. What the recorded rule did not measure for them is measured
        here, with their default settings (default: all built-in ones).
    seed
        Determines the sketches of what is measured here, under a secret that is not renewed; None draws one (default:
        None).
    """

    def __init__(self, profiles: Sequence[str] | None = None, seed: int | None = None) -> None:
        self.record = Record()
        kinds = [find(name).observer for name in (names() if profiles is None else profiles)]
        secret = secret_of(seed)
        self._observers: list[Observer] = [kind(kind.Settings(), secret) for kind in kinds]

    def __call__(self, round_: Round, outcome: Outcome) -> None:
        """Keep one round."""
        layers = tuple(layer.name for layer in round_.layout.layers)
        own = (
            outcome.observation if isinstance(outcome.observation, Observation) else Observation(round_.clients, layers)
        )
        measured, axes = dict(own.measured), dict(own.client_axes)
        for observer in self._observers:
            if not measured.keys() >= observer.client_axes.keys():
                measured = {**observer.measure(round_), **measured}
                axes = {**observer.client_axes, **axes}
        self.record.rounds.append(replace(own, measured=measured, client_axes=axes))
        self.record.numbers.append(len(self.record.rounds) if round_.number is None else round_.number)


def without(observation: Observation, excluded: npt.NDArray[np.bool_]) -> Observation:
    """The same round without some of its clients, for replays in which nobody attacks."""
    return observation.only(np.flatnonzero(~excluded))


def _built_in_axes() -> dict[str, tuple[int, ...]]:
    return {name: axes for profile in names() for name, axes in find(profile).observer.client_axes.items()}
