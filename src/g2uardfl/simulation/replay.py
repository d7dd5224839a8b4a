"""Replay: decide recorded rounds again, in seconds and without training."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

import numpy as np
from sklearn.metrics import adjusted_rand_score

from .. import aggregators
from ..aggregators.base import ClientId, Verdict
from ..core.errors import ConfigError
from ..defense import profiles
from ..defense.guard import Guard
from ..defense.observation import Observation
from ..defense.recording import Record
from .config import RunConfig
from .metrics import Detection


@dataclass(frozen=True)
class Replay:
    """Metrics of a defence's decisions on a record."""

    rounds: int
    refused: float | None
    """The share of all submissions that were rejected; None if there were none."""
    detection: Detection | None
    """None if the record does not say who attacked; `rand_index` and `attacker_accepted` are then None, too."""
    rand_index: float | None
    """The mean adjusted Rand index of rejected clients against attackers, over the rounds with attackers and others."""
    attacker_accepted: float | None
    """The share of rounds in which an attacker was accepted."""
    seconds: float


@runtime_checkable
class Judge(Protocol):
    """A rule that can decide recorded rounds: its verdicts depend on an observation alone."""

    def judge(self, observation: Observation) -> Mapping[ClientId, Verdict]:
        """The verdicts on a recorded round; updates the rule's state as the round itself did."""


def create_for(record: Record, defense: str | None, settings: Mapping[str, Any]) -> Any:
    """The rule (a `Judge`) that decides a record; a rule of the recorded run keeps its settings, updated by `settings`.

    Without a name it is the rule of the recorded run, if that can decide recorded rounds, and otherwise g2uardfl.
    """
    name = defense or _recorded_rule(record) or "g2uardfl"
    kind = aggregators.find(name)
    if not issubclass(kind, Judge):
        raise ConfigError(f"{kind.name} cannot decide recorded rounds, because it has no `judge`: choose g2uardfl")
    if issubclass(kind, Guard):
        settings = with_recorded_settings(record, settings)
        _refuse_without_effect(record, settings)
        # A random secret would make every replay different.
        settings = {**settings, "seed": 0 if settings.get("seed") is None else settings["seed"]}
    elif name == _recorded_rule(record):
        settings = {**(record.notes.get("defense") or {}), **settings}
    return aggregators.create(name, **settings)


def _recorded_rule(record: Record) -> str | None:
    """The rule of the recorded run, if it can decide recorded rounds."""
    config = record.notes.get("config")
    name = RunConfig.from_toml(config).defense if config else None
    return name if name and issubclass(aggregators.find(name), Judge) else None


def with_recorded_settings(record: Record, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the recorded guard, updated by `settings`.

    If they name another profile, only the recorded seed is kept; if the recorded rule is not a guard, nothing is.
    """
    recorded = record.notes.get("defense") or {}
    if "profile" not in recorded:
        return dict(settings)
    if settings.get("profile", recorded["profile"]) != recorded["profile"]:
        recorded = {"seed": recorded["seed"]}
    return {**recorded, **settings}


def _refuse_without_effect(record: Record, settings: Mapping[str, Any]) -> None:
    """Reject changed settings of observer and elimination, which have no effect on a replay."""
    profile = profiles.find(settings.get("profile", profiles.DEFAULT))
    recorded = {**profile.defaults(), **(record.notes.get("defense") or {})}
    for part in ("observer", "elimination"):
        for item in fields(profile.parts()[part].Settings):
            if settings.get(item.name, recorded[item.name]) != recorded[item.name]:
                raise ConfigError(f"{item.name} has no effect on recorded rounds, which pass no {part}: leave it out")


def replay(record: Record, defense: Judge, on_round: Callable[[], None] = lambda: None) -> Replay:
    """Let `defense` decide every round of `record` in turn."""
    has_truth = bool(record.attacking)
    malicious = set(record.notes.get("malicious", ()))
    detection, indices, accepted_rounds, refused, judged = Detection(), [], 0, 0, 0
    began = time.perf_counter()
    for number, observation in enumerate(record.rounds):
        verdicts = defense.judge(observation)
        flagged = {client for client, verdict in verdicts.items() if verdict.refused}
        refused, judged = refused + len(flagged), judged + len(verdicts)
        if has_truth:
            truth = record.attacking[number]
            attacking = {client for client, one in zip(observation.clients, truth, strict=True) if one}
            behaving = malicious & set(observation.clients) - attacking
            detection.add(flagged, attacking, observation.clients, behaving)
            accepted_rounds += bool(attacking - flagged)
            if 0 < truth.sum() < len(truth):
                indices.append(adjusted_rand_score(truth, [client in flagged for client in observation.clients]))
        on_round()
    return Replay(
        rounds=len(record.rounds),
        refused=refused / judged if judged else None,
        detection=detection if has_truth else None,
        rand_index=float(np.mean(indices)) if indices else None,
        attacker_accepted=accepted_rounds / len(record.rounds) if has_truth and record.rounds else None,
        seconds=time.perf_counter() - began,
    )
