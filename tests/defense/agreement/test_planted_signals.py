"""From sketches to groups: a common direction of known strength is found, and noise is flagged as rarely as allowed.

The attackers' sketches share one direction. Its strength is its norm relative to an independent part of norm 1, so
that the cosine of two attackers is strength² / (1 + strength²). With sketches of width 256 the noise of a cosine is
1/16 in each of three layers.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from g2uardfl.defense.agreement.window import Window
from helpers.graphs import flagged, found_in, unit

LAYERS, WIDTH, PER_ROUND = 3, 256, 10


def directions(rng, *shape: int) -> np.ndarray:
    return rng.normal(size=(*shape, LAYERS, WIDTH)) / math.sqrt(WIDTH)


def window_of(seed: int, clients: np.ndarray, kinds: np.ndarray, strength: float, common: float = 0.0, past: float = 0):
    """Rounds of ten submissions by these clients.

    Submissions of one kind share a direction of that strength, except for kind 0. All share one of strength `common`,
    and those of one client one of strength `past`.
    """
    rng = np.random.default_rng(seed)
    sketches = directions(rng, len(clients)) + common * directions(rng)
    sketches += strength * (kinds > 0)[:, None, None] * directions(rng, kinds.max() + 1)[kinds]
    sketches += past * directions(rng, clients.max() + 1)[clients]
    window = Window(10**6)
    for start in range(0, len(clients), PER_ROUND):
        rows = slice(start, start + PER_ROUND)
        window.add(start // PER_ROUND, clients[rows].tolist(), unit(sketches[rows]))
    return window


def flagged_in(window: Window, **settings) -> list[int]:
    return flagged(found_in(window.edges, window.client_numbers(), **settings))


def drawn_clients(seed: int, clients: int, rounds: int) -> np.ndarray:
    """Ten different ones of these clients in each round."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.permutation(clients)[:PER_ROUND] for _ in range(rounds)])


@pytest.mark.parametrize(
    ("rounds", "attackers", "strength"),
    [
        (2, 3, 0.6),  # a cosine of 0.26
        (5, 3, 0.4),  # 0.14
        (5, 5, 0.4),
        (10, 3, 0.3),  # 0.08: the more rounds, the weaker a direction is found
        (30, 2, 0.25),  # 0.06: two attackers of a round would hardly be seen in it alone
    ],
)
def test_attackers_in_each_round_are_found_by_their_common_direction(rounds, attackers, strength):
    """No client sends twice."""
    clients = np.arange(rounds * PER_ROUND)
    attack = clients % PER_ROUND < attackers
    for seed in range(3):
        found = flagged_in(window_of(seed, clients, attack.astype(int), strength))
        wrong = len(set(found) ^ set(np.flatnonzero(attack).tolist()))
        assert wrong <= 0.03 * len(clients)


@pytest.mark.parametrize("common", [0.0, 1.0])
def test_returning_attackers_are_detected_even_if_all_clients_learn_the_same(common):
    for seed in range(3):
        clients = drawn_clients(seed, 40, 12)
        attack = clients < 8
        found = flagged_in(window_of(seed, clients, attack.astype(int), 0.6 + common, common))
        assert len(set(found) ^ set(np.flatnonzero(attack).tolist())) <= 3


@pytest.mark.parametrize("strength", [0.0, 0.1])
def test_a_direction_below_the_noise_of_the_sketches_is_not_found(strength):
    clients = np.arange(50)
    for seed in range(6):
        assert flagged_in(window_of(seed, clients, (clients % 10 < 3).astype(int), strength)) == []


@pytest.mark.parametrize("common", [0.0, 1.0, 3.0])
def test_honest_clients_are_flagged_at_most_as_often_as_allowed(common):
    graphs, alarms = 40, 0
    for seed in range(graphs):
        clients = drawn_clients(seed, 25, 1 + seed % 5)
        alarms += bool(flagged_in(window_of(seed, clients, np.zeros(len(clients), int), 0.0, common), rate=0.05))
    # The 99 % quantile of so many graphs at a rate of 0.05.
    assert alarms <= 0.05 * graphs + 2.33 * math.sqrt(0.05 * 0.95 * graphs)


@pytest.mark.parametrize("kinds", [3, 4, 5, 8])
def test_kinds_of_honest_clients_are_not_flagged(kinds):
    for seed in range(3):
        clients = drawn_clients(seed, 40, 12)
        assert flagged_in(window_of(seed, clients, 1 + clients % kinds, 0.6)) == []


@pytest.mark.parametrize("attackers", [0, 3])
def test_clients_with_new_ids_are_flagged_as_those_with_fixed_ids(attackers):
    """Clients resemble their own past, so that two ids of one client are similar to each other."""
    who = np.tile(np.arange(10), 10)
    for seed in range(3):
        for ids in (who, np.arange(100), 100 * who + np.repeat(np.arange(10), 10) // 3):
            attack = who < attackers
            window = window_of(seed, who, attack.astype(int), 1.0, past=0.5)
            renamed = Window(10**6)
            for start in range(0, 100, 10):
                rows = slice(start, start + 10)
                renamed.add(start, ids[rows].tolist(), window.sketches[rows])
            assert flagged_in(renamed) == np.flatnonzero(attack).tolist()
