"""Graph construction: the similarity graph of the last rounds' submissions."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.numerics import Array
from ...core.settings import check, number
from ...core.state_files import SavedState
from ..observation import Observation
from ..stages import Construction, Evidence, Judgement, Mask
from .similarity import Numbers
from .sketches import Sketches
from .window import HISTORY, Window

_MAX_SUBMISSIONS = 10_000
"""The maximum number of submissions to which large rounds extend the window: their edges take 400 MB."""

logger = logging.getLogger("g2uardfl")


@dataclass(frozen=True)
class ConstructionSettings:
    """Settings of the graph's memory."""

    window: int = number(300, 10, 100_000)
    """The number of recent submissions that are remembered, or those of five rounds if these are more."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class SubmissionGraph(Evidence):
    """The similarity graph of the window; this round's submissions come last."""

    layers: tuple[str, ...]
    """The names of the layers."""
    shapes: Array
    """(clients x 2): `update_shapes` of this round."""
    people: Numbers
    """For each submission the number of its client, counted from 0."""
    rounds: Numbers
    """For each submission its round."""
    accepted: Mask
    """Which submissions of earlier rounds were accepted; False for this round's."""
    repetition: Array
    """(submissions x 2): the sum and the number of its similarities to its client's earlier submissions."""
    sketches: Sketches
    """(submissions x layers x width): the directions of the updates, all under one secret."""
    renewed: int = 0
    """How many of the submissions, the last ones, have a direction under the next secret, too."""


class SimilarityConstruction(Construction[SubmissionGraph, Judgement]):
    """Compares this round's submissions with each other and with those of the last rounds."""

    Settings = ConstructionSettings

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self.window = Window(settings.window)
        self._has_warned = False

    def build(self, number: int, observation: Observation) -> SubmissionGraph:
        """The graph of the window with this round's submissions."""
        window, shapes, clients = self.window, observation["shapes"], observation.clients
        window.limit = self._limit(len(clients))
        weaknesses = self.weaknesses(len(clients))
        if weaknesses and not self._has_warned:
            logger.warning("%s", *weaknesses)
        self._has_warned = bool(weaknesses)
        window.add(
            number,
            clients,
            observation["directions"],
            observation["renewed_directions"],
            int(observation["renewals"]),
        )
        return SubmissionGraph(
            round=number,
            clients=clients,
            norms=np.exp(shapes[:, 0]),
            nodes=tuple(window.clients),
            edges=window.edges,
            layers=observation.layers,
            shapes=shapes,
            people=window.client_numbers(),
            rounds=np.array(window.rounds, dtype=np.int64),
            accepted=window.accepted.copy(),
            repetition=window.repetition,
            sketches=window.sketches,
            renewed=len(window.renewed),
        )

    def _limit(self, clients: int) -> int:
        """The number of submissions that are remembered if a round has `clients` clients."""
        return max(int(self.settings.window), min(HISTORY * clients, _MAX_SUBMISSIONS))

    def weaknesses(self, clients: int) -> list[str]:
        """A window of few rounds."""
        rounds = max(1, self._limit(clients) // clients)
        if rounds >= HISTORY:
            return []
        return [
            f"The window holds {rounds} rounds of {clients} clients, too few to detect attackers over several rounds: "
            f"use window={HISTORY * clients} if there is memory for the square of this number."
        ]

    def learn(self, evidence: SubmissionGraph, judgement: Judgement) -> None:
        """Note who was accepted."""
        self.window.note_accepted(judgement.accepted)

    def state(self) -> SavedState:
        """The window."""
        return self.window.state()

    def restore(self, state: SavedState) -> None:
        """Continue with a saved window."""
        self.window.restore(state)
