"""Graph construction: the similarity graph of the last rounds' submissions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.numerics import Array
from ...core.settings import check, number
from ...core.state_files import SavedState
from ..observation import Observation
from ..stages import Construction, Evidence, Judgement, Mask
from .similarity import Numbers, similarity_graph
from .sketches import Sketches
from .window import Window

_MIN_ROUNDS = 5
"""Rounds that the window should hold: attackers of one round are often too few to be distinguished from chance."""


@dataclass(frozen=True)
class ConstructionSettings:
    """Settings of the graph's memory."""

    window: int = number(300, 10, 100_000)
    """How many submissions of the last rounds are remembered."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class SubmissionGraph(Evidence):
    """The similarity graph of the window; this round's submissions come last."""

    shapes: Array
    """(clients x 2): `update_shapes` of this round."""
    people: Numbers
    """For each submission the number of its client, counted from 0."""
    rounds: Numbers
    """For each submission its round."""
    accepted: Mask
    """Which submissions of earlier rounds were accepted; False for this round's."""
    sketches: Sketches
    """(submissions x layers x width): the directions of the updates, all under one secret."""
    renewed: int = 0
    """How many of the submissions, the last ones, have a direction under the next secret, too."""


@dataclass(frozen=True, kw_only=True)
class NoiseJudgement(Judgement):
    """A judgement that may ask the graph to forget submissions."""

    noise: Mask
    """This round's submissions that are not worth comparing with: next to noise, honest updates would look similar."""


class SimilarityConstruction(Construction[SubmissionGraph, NoiseJudgement]):
    """Compares this round's submissions with each other and with those of the last rounds."""

    Settings = ConstructionSettings

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self.window = Window(settings.window)

    def build(self, number: int, observation: Observation) -> SubmissionGraph:
        """The graph of the window with this round's submissions."""
        window, shapes = self.window, observation["shapes"]
        window.add(
            number,
            observation.clients,
            observation["directions"],
            observation["renewed_directions"],
            int(observation["renewals"]),
        )
        people = window.client_numbers()
        return SubmissionGraph(
            round=number,
            clients=observation.clients,
            norms=np.exp(shapes[:, 0]),
            nodes=tuple(window.clients),
            edges=similarity_graph(people, window.rounds, window.sketches),
            shapes=shapes,
            people=people,
            rounds=np.array(window.rounds, dtype=np.int64),
            accepted=window.accepted.copy(),
            sketches=window.sketches,
            renewed=len(window.renewed),
        )

    def weaknesses(self, clients: int) -> list[str]:
        """A window of few rounds."""
        rounds = max(1, self.settings.window // clients)
        if rounds >= _MIN_ROUNDS:
            return []
        return [
            f"window={self.settings.window} holds {rounds} rounds of {clients} clients, and attackers are detected "
            f"over several: use at least {_MIN_ROUNDS * clients}."
        ]

    def learn(self, evidence: SubmissionGraph, judgement: NoiseJudgement) -> None:
        """Note who was accepted, and forget noise."""
        self.window.note_accepted(judgement.accepted)
        kept = np.ones(len(evidence.nodes), dtype=bool)
        kept[evidence.here] = ~judgement.noise
        self.window.keep(kept)

    def state(self) -> SavedState:
        """The window."""
        return self.window.state()

    def restore(self, state: SavedState) -> None:
        """Continue with a saved window."""
        self.window.restore(state)
