"""The four stages of every round, and the values that are passed between them.

    construction: Observation                -> Evidence
    filtering:    Evidence                   -> Prior        (what earlier rounds say about these clients)
    clustering:   Evidence, Prior            -> Clusters
    filtering:    Evidence, Prior, Clusters  -> Judgement
    elimination:  Round, Evidence, Judgement -> Step

The stages are those of the paper's Figure 2. Each is a small object with frozen settings and a memory of its own, which
no other object accesses; what a stage needs from another is passed in these values. A profile chooses one class for
each stage (`profiles.py`), and `guard.py` runs them. The values here hold what every profile has; a profile's own
stages may pass subclasses with more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ..aggregators.base import ClientId, Edge, Event, FlatModel, Round
from ..core.numerics import Array
from ..core.settings import NoSettings
from ..core.state_files import SavedState

if TYPE_CHECKING:
    from .observation import Observation

Mask = npt.NDArray[np.bool_]
Labels = npt.NDArray[np.int64]
Edges = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Evidence:
    """The client graph of a round. Its nodes are submissions (one client in one round); this round's come last."""

    round: int
    """The guard's count of rounds, from 1."""
    clients: tuple[ClientId, ...]
    """This round's clients."""
    norms: Array
    """The norms of their updates."""
    nodes: tuple[ClientId, ...]
    """The client of each node."""
    edges: Edges
    """(nodes x nodes): the weights of the graph's edges."""

    @property
    def here(self) -> slice:
        """The nodes of this round."""
        return slice(len(self.nodes) - len(self.clients), len(self.nodes))

    def strongest_edges(self, count: int = 3) -> tuple[Edge, ...]:
        """The `count` strongest edges of each client to others of this round, if they are positive, for reports."""
        edges = np.array(self.edges[self.here, self.here], dtype=float)
        np.fill_diagonal(edges, 0.0)
        count = min(count, len(edges))
        best = np.argpartition(-edges, count - 1, axis=1)[:, :count]
        pairs = {(min(i, j), max(i, j)) for i, row in enumerate(best.tolist()) for j in row if edges[i, j] > 0}
        return tuple(Edge(self.clients[i], self.clients[j], float(f"{edges[i, j]:.4g}")) for i, j in sorted(pairs))


@dataclass(frozen=True)
class Prior:
    """What earlier rounds say about the nodes of the graph."""

    scores: Array
    """For each node the benign score of its client before this round."""


@dataclass(frozen=True)
class Clusters:
    """The clusters of the graph's nodes."""

    labels: Labels
    """The cluster of each node."""
    membership: Array
    """For each node the probability that it belongs to its cluster."""

    @property
    def distances(self) -> Array:
        """For each node its distance from the centre of its cluster (default: 1 - `membership`)."""
        return 1.0 - self.membership

    def describe(self, label: int) -> str:
        """A clause of the reason for a client whose update is in cluster `label`."""
        return f"its update is in a cluster with {int(np.count_nonzero(self.labels == label)) - 1} others"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The decisions about this round's clients."""

    accepted: Mask
    malicious: Mask
    """Flagged as attackers; a client that is neither accepted nor malicious is held out."""
    scores: Array
    """Benign scores after this round."""
    clipping: Array
    """The factor that brings each accepted update to at most the norm limit."""
    reasons: tuple[str, ...]
    """One plain sentence for each client."""
    clusters: Labels | None = None
    """The cluster of each client, where there are clusters."""
    distances: Array | None = None
    """The distance of each client from its cluster's centre, where there are centres."""
    suspicion: Array | None = None
    """The probability that each update is malicious, where it is estimated."""


@dataclass(frozen=True)
class Step:
    """How the global model moves."""

    vector: Tensor
    """What to add to the flattened global model."""
    weights: Array
    """For each client the factor of its update in `vector`."""
    shares: Array
    """For each client its share in the average of running statistics and counters."""
    events: tuple[Event, ...] = ()
    """Changes to the model besides aggregation."""
    restored: FlatModel | None = None
    """An earlier model that becomes the new one in place of `vector`."""


class Stage(ABC):  # noqa: B024 - what a stage does is up to the four kinds below
    """Frozen settings and a memory.

    Parameters
    ----------
    settings
        An instance of `Settings`.
    seed
        Determines everything random; it may be a secret of 128 bits.

    Attributes
    ----------
    seed : int
        Its last 32 bits, which is what most libraries take as a seed.
    secret : int
        The whole number.
    """

    Settings: ClassVar[type] = NoSettings
    """A frozen dataclass with the fields of `core/settings.py`."""

    def __init__(self, settings: Any, seed: int) -> None:
        self.settings = settings
        self.secret, self.seed = seed, seed % 2**32

    def weaknesses(self, clients: int) -> list[str]:
        """Warnings about the stage's settings in rounds of `clients` clients, one sentence each."""
        return []

    def state(self) -> SavedState:
        """What the stage remembers between rounds; empty for a stage without memory."""
        return SavedState()

    def restore(self, state: SavedState) -> None:  # noqa: B027 - a stage without memory has nothing to restore
        """Continue from what `state` returned. Raises KeyError, TypeError or ValueError if the state is incomplete."""


E = TypeVar("E", bound=Evidence)
P = TypeVar("P", bound=Prior)
C = TypeVar("C", bound=Clusters)
J = TypeVar("J", bound=Judgement)


class Construction(Stage, Generic[E, J]):
    """Graph construction relates this round's clients to each other and to the rounds before."""

    @abstractmethod
    def build(self, number: int, observation: Observation) -> E:
        """The client graph of round `number`."""

    def learn(self, evidence: E, judgement: J) -> None:
        """Called with the decisions about the round once they are made."""


class Clustering(Stage, Generic[E, P, C]):
    """Graph clustering assigns the graph's nodes to clusters."""

    @abstractmethod
    def cluster(self, evidence: E, prior: P) -> C | None:
        """The clusters of the graph's nodes; None where there are too few clients to compare."""


class Filtering(Stage, Generic[E, P, C, J]):
    """Dynamic filtering and clipping decides who is flagged or held out, and how large an update may be."""

    @abstractmethod
    def prior(self, evidence: E) -> P:
        """What earlier rounds say about the nodes of the graph."""

    @abstractmethod
    def judge(self, evidence: E, prior: P, clusters: C | None) -> J:
        """Decide about the round's clients and remember the decision."""


class Elimination(Stage, Generic[E, J]):
    """Aggregation and adaptive poison eliminating moves the model, and removes poison from it."""

    @abstractmethod
    def step(self, round_: Round, evidence: E, judgement: J) -> Step:
        """The step of the global model. This stage alone sees the updates."""
