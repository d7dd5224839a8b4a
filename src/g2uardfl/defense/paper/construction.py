"""Graph construction: this round's attributed client graph, mixed with the remembered one."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.numerics import Array, InnerProducts
from ...core.settings import check, choice, number, switch
from ...core.state_files import SavedState
from ..observation import Observation
from ..stages import Construction, Evidence, Judgement
from .attributes import normalised_attributes
from .graph import GraphMemory, Momentum, history_share
from .relations import EdgeScaling, adjacency

FEWEST_CLIENTS = 3
"""With fewer usable clients there is nothing to compare: no graph is built and nothing is remembered of the round."""


@dataclass(frozen=True)
class ConstructionSettings:
    """Settings of the graph's edges and of its memory."""

    attribute_history: float = number(0.1, 0, 1)
    """κ1: the weight of a client's remembered attributes."""
    relation_history: float = number(0.1, 0, 1)
    """κ2: the weight of a pair's remembered relation."""
    momentum: Momentum = choice("history", "history", "printed")
    """Whether κ1 and κ2 weight the history, or the new values as in the printed equation."""
    fade_absent: bool = switch(False)
    """Whether history fades while a client is absent (as printed)."""
    memory_limit: int = number(1_000_000, 1000, math.inf)
    """The maximum number of remembered pairs of clients; that of clients is a tenth of it."""
    edge_scaling: EdgeScaling = choice("similarity", "similarity", "printed")
    """tanh(max(E, 0)), or exp(-tanh(max(E, 0))) as printed."""
    update_relation: bool = switch(False)
    """Whether the cosine similarity of the updates is a fourth relation, which the paper does not have."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class AttributedGraph(Evidence):
    """The attributed client graph G = (V, E, X) of a round, whose nodes are the round's clients."""

    comparable: bool
    """False where there are too few clients; attributes and edges are then those of this round alone, unused."""
    attributes: Array
    """X: (clients x features), z-scores mixed with the remembered ones."""
    own_attributes: Array
    """The z-scores of this round alone."""
    layers: tuple[str, ...]
    update_products: Array
    """(clients x clients): the inner products of the updates over the whole model."""


class GraphConstruction(Construction[AttributedGraph, Judgement]):
    """Builds the attributed client graph and remembers it for clients and pairs that were seen."""

    Settings = ConstructionSettings

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self.memory = GraphMemory(settings.fade_absent, settings.memory_limit)

    def build(self, number: int, observation: Observation) -> AttributedGraph:
        """The round's graph."""
        config, clients = self.settings, observation.clients
        products = InnerProducts(observation["gg"], observation["gu"], observation["uu"])
        own = normalised_attributes(observation["attributes"])
        attributes, edges = own, adjacency(products, config.edge_scaling, with_update_cosines=config.update_relation)
        comparable = len(clients) >= FEWEST_CLIENTS
        if comparable:
            attributes, edges = self.memory.smooth(
                number,
                clients,
                own,
                edges,
                history_share(config.attribute_history, config.momentum),
                history_share(config.relation_history, config.momentum),
            )
        update_products = products.total.uu[0]
        return AttributedGraph(
            round=number,
            clients=clients,
            norms=np.sqrt(np.maximum(np.diagonal(update_products), 0)),
            nodes=clients,
            edges=edges,
            comparable=comparable,
            attributes=attributes,
            own_attributes=own,
            layers=observation.layers,
            update_products=update_products,
        )

    def state(self) -> SavedState:
        """The remembered graph."""
        rows, edges = self.memory.rows, self.memory.edges
        values = {
            "rows": [[client, last] for client, (_, last) in rows.items()],
            "edges": [[first, second, last] for (first, second), (_, last) in edges.items()],
        }
        arrays: dict[str, Any] = {"strengths": np.array([strength for strength, _ in edges.values()])}
        if rows:
            arrays["attributes"] = np.stack([row for row, _ in rows.values()])
        return SavedState(values, arrays)

    def restore(self, state: SavedState) -> None:
        """Continue from a saved graph."""
        values, arrays = state.values, state.arrays
        self.memory.edges = OrderedDict(
            ((first, second), (float(strength), last))
            for (first, second, last), strength in zip(values["edges"], arrays["strengths"], strict=True)
        )
        if values["rows"]:
            self.memory.rows = OrderedDict(
                (client, (row, last)) for (client, last), row in zip(values["rows"], arrays["attributes"], strict=True)
            )
