"""Similarity graphs of noise, with planted groups."""

from __future__ import annotations

import numpy as np

from g2uardfl.defense.agreement.communities import Community, find_communities

EVIDENCE, LEAD = 10.0, 1.5
"""The least evidence and lead that the tests require of a community, unless they vary it."""


def noise(size: int, seed: int) -> np.ndarray:
    """The similarity graph of independent submissions: standard normal edges."""
    upper = np.triu(np.random.default_rng(seed).normal(size=(size, size)), 1)
    return upper + upper.T


def planted(size: int, seed: int, *groups: tuple[range | np.ndarray, float]) -> np.ndarray:
    """Noise, and groups whose members are more similar to each other by that many standard deviations."""
    graph = noise(size, seed)
    for members, strength in groups:
        graph[np.ix_(members, members)] += strength
    np.fill_diagonal(graph, 0)
    return graph


def spread_rounds(count: int) -> np.ndarray:
    """Rounds of about ten submissions each, so that neighbours are of different rounds."""
    return np.arange(count) % max(1, count // 10)


def found_in(graph, people, min_evidence: float = EVIDENCE, min_lead: float = LEAD) -> list[Community]:
    """The communities of a graph whose rounds are those of `spread_rounds`."""
    return find_communities(graph, people, spread_rounds(len(people)), min_evidence, min_lead)


def indices(mask) -> list[int]:
    """Where a mask is True."""
    return np.flatnonzero(mask).tolist()
