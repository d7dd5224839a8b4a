"""The client graph of a round, as it goes into reports."""

from __future__ import annotations

import numpy as np
import pytest

from g2uardfl import G2uardFL
from g2uardfl.defense.profiles import names
from g2uardfl.defense.stages import Evidence
from helpers.federations import Federation, first_model


def slow_edges(clients, edges, count):
    """The `count` strongest positive edges of each client, one client after the other."""
    found = set()
    for i, row in enumerate(edges):
        others = sorted((j for j in range(len(row)) if j != i), key=lambda j: -row[j])[:count]
        found |= {frozenset((clients[i], clients[j])) for j in others if row[j] > 0}
    return found


def test_the_strongest_edges_of_each_client_of_this_round_are_kept():
    values = np.random.default_rng(0).normal(size=(9, 9))
    graph = values + values.T
    evidence = Evidence(4, ("a", 1, "b", 2, "c", 3), np.ones(6), ("a", 1, "b", "a", 1, "b", 2, "c", 3), graph)
    kept = evidence.strongest_edges(2)
    inner = graph[3:, 3:]
    assert {frozenset(edge[:2]) for edge in kept} == slow_edges(evidence.clients, inner, 2)
    for first, second, weight in kept:
        assert weight == pytest.approx(inner[evidence.clients.index(first), evidence.clients.index(second)], rel=1e-3)


def test_a_single_client_has_no_edges():
    assert Evidence(1, ("a",), np.ones(1), ("a",), np.ones((1, 1))).strongest_edges() == ()


@pytest.mark.parametrize("profile", names())
def test_the_report_of_a_guard_has_at_most_three_edges_for_each_client(profile):
    guard, model = G2uardFL(profile, seed=0), first_model()
    result = guard.aggregate(model, Federation().messages(model, 1))
    assert 0 < len(result.report.edges) <= 3 * len(result.verdicts)
    assert {client for edge in result.report.edges for client in edge[:2]} <= result.verdicts.keys()
