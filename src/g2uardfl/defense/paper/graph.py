"""The attributed client graph and its memory over rounds (Graph Construction, momentum).

Only clients that were seen have a row and only pairs that met have an edge, so a round costs time and memory in
proportion to the clients in it (and their pairs), however many clients the federation has had.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ...aggregators.base import ClientId
from ...core.numerics import Array

Momentum = Literal["history", "printed"]


def history_share(weight: float, momentum: Momentum) -> float:
    """The share of the remembered value in the new one, for the paper's κ = `weight`.

    "history" reads κ as the weight of the history: κ old + (1-κ) new. "printed" is the equation to the letter:
    (1-κ) old + κ new, under which κ = 0 would mean a graph that never changes.
    """
    return weight if momentum == "history" else 1.0 - weight


@dataclass
class GraphMemory:
    """The attributed graph of the clients and pairs seen so far.

    A client or a pair without history has history 0, as in the paper's zero padding.

    Parameters
    ----------
    fade_absent
        Whether history shrinks in every round a client or a pair is absent (the printed equation, which mixes zeros
        into the rows of absent clients) or stays as it was.
    limit
        How many pairs to remember, and a tenth as many clients; whoever was seen longest ago is forgotten first.
    """

    fade_absent: bool = False
    limit: int = 1_000_000
    rows: OrderedDict[ClientId, tuple[Array, int]] = field(default_factory=OrderedDict)
    """Client -> its attributes and the round they were written in, oldest first."""
    edges: OrderedDict[tuple[ClientId, ClientId], tuple[float, int]] = field(default_factory=OrderedDict)
    """Pair of clients in canonical order -> strength of their edge and the round it was written in, oldest first."""

    def smooth(
        self,
        round_number: int,
        clients: Sequence[ClientId],
        attributes: Array,
        adjacency: Array,
        attribute_history: float,
        relation_history: float,
    ) -> tuple[Array, Array]:
        """Mix this round's graph with what is remembered, remember the result and return it for `clients`.

        X = h X_remembered + (1-h) X_now with h = `attribute_history`, and the same for E with `relation_history`.
        `clients` must be in canonical order and `adjacency` symmetric.
        """
        smoothed_rows = (1.0 - attribute_history) * attributes
        smoothed_edges = (1.0 - relation_history) * adjacency
        for i, client in enumerate(clients):
            if client in self.rows:
                row, last = self.rows[client]
                smoothed_rows[i] += self._share(attribute_history, last, round_number) * row
            self.rows[client] = (smoothed_rows[i].copy(), round_number)
            self.rows.move_to_end(client)
            for j in range(i, len(clients)):
                pair = (client, clients[j])
                if pair in self.edges:
                    strength, last = self.edges[pair]
                    smoothed_edges[i, j] += self._share(relation_history, last, round_number) * strength
                    self.edges.move_to_end(pair)
                smoothed_edges[j, i] = smoothed_edges[i, j]
                self.edges[pair] = (float(smoothed_edges[i, j]), round_number)
        _forget_oldest(self.rows, max(self.limit // 10, len(clients)))
        _forget_oldest(self.edges, self.limit)
        return smoothed_rows, smoothed_edges

    def _share(self, history: float, last_round: int, round_number: int) -> float:
        """The share of a value written in `last_round`; where absence fades it costs one more factor a round."""
        return float(history ** (round_number - last_round)) if self.fade_absent else history


def _forget_oldest(memory: OrderedDict[Any, Any], limit: int) -> None:
    while len(memory) > limit:
        memory.popitem(last=False)
