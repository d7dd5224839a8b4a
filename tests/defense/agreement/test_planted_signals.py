"""From sketches to communities: a common direction of known strength is found at a known rate, noise is not.

The attackers' sketches share one direction. Its strength is its norm beside an independent part of norm 1, so
that the cosine of two attackers is strength² / (1 + strength²). With sketches of width 256 the noise of a cosine is
1/16 in each of three layers.
"""

from __future__ import annotations

import numpy as np
import pytest

from g2uardfl.defense.agreement.clustering import ClusteringSettings
from g2uardfl.defense.agreement.communities import find_communities
from g2uardfl.defense.agreement.similarity import similarity_graph
from g2uardfl.defense.agreement.twins import find_twins
from helpers.graphs import noise

LAYERS, WIDTH, PER_ROUND = 3, 256, 10
SETTINGS = ClusteringSettings()


def directions(rng, *shape: int) -> np.ndarray:
    vectors = rng.normal(size=(*shape, LAYERS, WIDTH))
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def sketches_of(seed: int, rounds: int, attackers: int, strength: float, learning: float = 0.0):
    """The sketches of a window, who attacks, and the rounds; `learning` is the strength of what everybody shares."""
    rng = np.random.default_rng(seed)
    attack = np.arange(rounds * PER_ROUND) % PER_ROUND < attackers
    sketches = directions(rng, len(attack)) + learning * directions(rng)
    sketches[attack] += strength * directions(rng)
    sketches /= np.linalg.norm(sketches, axis=-1, keepdims=True)
    return sketches.astype(np.float32), attack, np.arange(len(attack)) // PER_ROUND


def flagged(sketches, rounds) -> np.ndarray:
    """The submissions in communities, with the default settings. No client sends twice."""
    people = np.arange(len(sketches))
    graph = similarity_graph(people, rounds.tolist(), sketches)
    communities = find_communities(graph, people, rounds, SETTINGS.min_evidence, SETTINGS.min_lead, sketches=sketches)
    return np.any([np.zeros(len(sketches), bool), *(one.members for one in communities)], axis=0)


def rates(seeds: range, **planted) -> tuple[float, float]:
    """Recall and false positive rate over many windows."""
    found, missed, wrong, honest = 0, 0, 0, 0
    for seed in seeds:
        sketches, attack, rounds = sketches_of(seed, **planted)
        members = flagged(sketches, rounds)
        found, missed = found + (members & attack).sum(), missed + (~members & attack).sum()
        wrong, honest = wrong + (members & ~attack).sum(), honest + (~attack).sum()
    return found / max(1, found + missed), wrong / honest


@pytest.mark.parametrize(
    ("rounds", "attackers", "strength"),
    [
        (2, 3, 0.6),  # a cosine of 0.26
        (5, 3, 0.4),  # 0.14
        (5, 5, 0.4),
        (10, 3, 0.3),  # 0.08: the more rounds, the weaker a direction is found
        (10, 5, 0.3),
        (30, 2, 0.25),  # 0.06: two attackers of a round would hardly be seen in it alone
    ],
)
def test_a_common_direction_of_that_strength_is_found_nearly_always(rounds, attackers, strength):
    recall, false_positives = rates(range(12), rounds=rounds, attackers=attackers, strength=strength)
    assert recall > 0.97
    assert false_positives < 0.01


@pytest.mark.parametrize("strength", [0.0, 0.05, 0.1])
def test_a_direction_below_the_noise_of_the_sketches_is_not_found_and_nobody_else_is_flagged(strength):
    recall, false_positives = rates(range(12), rounds=5, attackers=3, strength=strength)
    assert recall < 0.05
    assert false_positives < 0.01


def test_recall_grows_with_the_strength():
    recalls = [rates(range(20), rounds=5, attackers=3, strength=strength)[0] for strength in (0.1, 0.2, 0.25, 0.4)]
    assert recalls == sorted(recalls)
    assert recalls[0] < 0.05
    assert recalls[-1] > 0.97


@pytest.mark.parametrize(("rounds", "seeds"), [(1, 200), (3, 200), (10, 60), (30, 15)])
def test_a_window_of_independent_updates_raises_a_false_alarm_in_less_than_two_percent(rounds, seeds):
    # Measured: 1 in 2000 windows of one round, none in 2000 of three, none in 300 of ten and of thirty.
    alarms = sum(
        flagged(sketches, numbers).any()
        for sketches, _, numbers in (sketches_of(10_000 + seed, rounds, 0, 0.0) for seed in range(seeds))
    )
    assert alarms <= 0.02 * seeds


@pytest.mark.parametrize("learning", [0.3, 1.0, 3.0])
def test_what_all_clients_learn_is_no_community(learning):
    _, false_positives = rates(range(20), rounds=5, attackers=0, strength=0.0, learning=learning)
    assert false_positives < 0.01


@pytest.mark.parametrize("learning", [0.3, 1.0])
def test_attackers_are_found_beside_what_all_clients_learn(learning):
    recall, false_positives = rates(range(12), rounds=5, attackers=3, strength=1.0, learning=learning)
    assert recall > 0.97
    assert false_positives < 0.01


@pytest.mark.parametrize(("size", "repeats"), [(40, 1), (120, 3), (300, 1)])
def test_a_graph_of_normal_noise_rarely_has_a_community(size, repeats):
    """Edges of pure noise; with repeats each client sends so many times, and these are not compared."""
    people = np.arange(size) % (size // repeats)
    alarms = 0
    for seed in range(40):
        graph = noise(size, seed)
        graph[np.equal.outer(people, people)] = 0
        alarms += bool(find_communities(graph, people, np.arange(size) // 10, SETTINGS.min_evidence, SETTINGS.min_lead))
    assert alarms <= 2


@pytest.mark.parametrize(("strength", "found"), [(3.0, True), (0.1, False)])
def test_two_clients_with_one_direction_are_twins_if_it_is_strong(strength, found):
    """Two attackers of one round are too few to form a community. A strength of 3 is a cosine of 0.9."""
    pairs = alarms = 0
    for seed in range(40):
        sketches, _, rounds = sketches_of(seed, rounds=1, attackers=2, strength=strength)
        graph = similarity_graph(np.arange(PER_ROUND), rounds.tolist(), sketches)
        twins = find_twins(graph, rounds, np.zeros(PER_ROUND, bool), SETTINGS.twin_similarity)
        pairs += twins[:2] == [1, 0]
        alarms += any(twin is not None for twin in twins[2:])
    assert pairs >= 38 if found else pairs <= 2
    assert alarms <= 2
