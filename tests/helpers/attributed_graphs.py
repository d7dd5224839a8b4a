"""Attributed client graphs of the paper's profile, without a round behind them."""

from __future__ import annotations

import numpy as np

from g2uardfl.defense.paper.construction import FEWEST_CLIENTS, AttributedGraph


def graph_of(attributes: np.ndarray, number: int = 1, norms: np.ndarray | None = None) -> AttributedGraph:
    """The graph of a round in which updates are orthogonal and all edges have the strength 0.5."""
    count = len(attributes)
    lengths = np.ones(count) if norms is None else np.asarray(norms, dtype=np.float64)
    return AttributedGraph(
        round=number,
        clients=tuple(range(count)),
        norms=lengths,
        nodes=tuple(range(count)),
        edges=np.full((count, count), 0.5),
        comparable=count >= FEWEST_CLIENTS,
        attributes=attributes,
        own_attributes=attributes,
        layers=("layer",),
        update_products=np.diag(lengths**2),
    )
