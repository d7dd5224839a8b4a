"""Similarity graphs of noise, with planted groups."""

from __future__ import annotations

import numpy as np

from g2uardfl.defense.agreement.groups import Group, find_groups


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


def found_in(graph, people, false_alarm_rate: float = 0.01, max_malicious_share: float = 0.5) -> list[Group]:
    """The groups of a graph whose clients have never been convicted."""
    return find_groups(graph, people, np.zeros(len(people)), false_alarm_rate, max_malicious_share)


def indices(mask) -> list[int]:
    """Where a mask is True."""
    return np.flatnonzero(mask).tolist()
