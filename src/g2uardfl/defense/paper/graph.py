"""The attributed client graph with momentum over rounds (Graph Construction).

The memory holds attributes of clients that took part, and edges of pairs that took part in the same round. The time of
a round is proportional to its number of pairs of clients, whatever the number of registered clients.
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
    """The share of the previous value in the moving average, for the paper's κ = `weight`.

    With "history", κ is the weight of the previous value: κ old + (1-κ) new. "printed" is the equation exactly as
    printed, (1-κ) old + κ new, under which a graph with κ = 0 never changes.
    """
    return weight if momentum == "history" else 1.0 - weight


@dataclass
class GraphMemory:
    """Attributes of clients and edges of pairs, as moving averages over rounds.

    The previous value of a new client or pair is 0, as with the paper's zero padding.

    Parameters
    ----------
    fade_absent
        Whether the values of absent clients and pairs decay in each round, as in the printed equation, which averages
        them with zeros (default: False).
    limit
        The maximum number of pairs, and ten times the maximum number of clients. Beyond it, the least recently seen
        are forgotten (default: 1,000,000).
    """

    fade_absent: bool = False
    limit: int = 1_000_000
    rows: OrderedDict[ClientId, tuple[Array, int]] = field(default_factory=OrderedDict)
    """Client -> its attributes and the round of their last update, least recently seen first."""
    edges: OrderedDict[tuple[ClientId, ClientId], tuple[float, int]] = field(default_factory=OrderedDict)
    """Pair of clients in canonical order -> edge weight and the round of its last update, least recently seen first."""

    def smooth(
        self,
        round_number: int,
        clients: Sequence[ClientId],
        attributes: Array,
        adjacency: Array,
        attribute_history: float,
        relation_history: float,
    ) -> tuple[Array, Array]:
        """Update the moving averages with this round's graph, and return those of `clients`.

        X = h X_previous + (1-h) X_now with h = `attribute_history`, and the same for E with `relation_history`.
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
        """The share of a value last updated in `last_round`; with `fade_absent` one factor `history` per round."""
        return float(history ** (round_number - last_round)) if self.fade_absent else history


def _forget_oldest(memory: OrderedDict[Any, Any], limit: int) -> None:
    while len(memory) > limit:
        memory.popitem(last=False)
