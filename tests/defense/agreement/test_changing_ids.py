"""Clients who get new ids: they resemble their own past, and must not be flagged as a community."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from g2uardfl import G2uardFL
from g2uardfl.defense.agreement.clustering import ClusteringSettings
from g2uardfl.defense.agreement.communities import find_communities, number_of_clients
from g2uardfl.defense.agreement.similarity import similarity_graph
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.run import Simulation

LAYERS, WIDTH, CLIENTS, ROUNDS = 3, 256, 10, 10
SETTINGS = ClusteringSettings()


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def window(seed: int, attackers: int, strength: float):
    """Sketches of ten clients in ten rounds, who resemble their own past; attackers resemble each other as well."""
    rng = np.random.default_rng(seed)
    who = np.tile(np.arange(CLIENTS), ROUNDS)
    own = unit(rng.normal(size=(CLIENTS, LAYERS, WIDTH)))
    own[:attackers] += strength * unit(rng.normal(size=(LAYERS, WIDTH)))
    sketches = unit(unit(rng.normal(size=(len(who), LAYERS, WIDTH))) + own[who])
    return sketches.astype(np.float32), who, np.repeat(np.arange(ROUNDS), CLIENTS)


def flagged(sketches, ids, rounds) -> np.ndarray:
    edges = similarity_graph(ids, rounds.tolist(), sketches)
    clients = number_of_clients(ids, rounds)
    limits = SETTINGS.min_evidence, SETTINGS.min_lead
    found = find_communities(edges, ids, rounds, *limits, sketches=sketches, clients=clients)
    return np.any([np.zeros(len(ids), bool), *(one.members for one in found)], axis=0)


@pytest.mark.parametrize("strength", [0.0, 0.6])
def test_two_clients_with_new_ids_are_as_little_a_community_as_with_fixed_ids(strength):
    for seed in range(6):
        sketches, who, rounds = window(seed, 2, strength)
        for ids in (who, np.arange(len(who))):
            assert not flagged(sketches, ids, rounds).any()


class ChangingIds(G2uardFL):
    """The guard in a federation where each client has a new id every few rounds, not all in the same round."""

    every = 1

    def aggregate(self, global_weights, client_weights, num_examples=None, **options):
        ids = {client: f"{client}-{(options['round_number'] + client) // self.every}" for client in client_weights}
        counts = None if num_examples is None else {ids[client]: count for client, count in num_examples.items()}
        sent = {ids[client]: weights for client, weights in client_weights.items()}
        result = super().aggregate(global_weights, sent, counts, **options)
        verdicts = {client: result.verdicts[ids[client]] for client in client_weights}
        return replace(result, report=replace(result.report, verdicts=verdicts))


@pytest.mark.slow
@pytest.mark.parametrize(("every", "rounds"), [(1, 25), (3, 45)])
def test_a_federation_without_attackers_loses_nothing_to_new_ids(every, rounds):
    """Earlier profiles flagged clients that resemble their own past under other ids, and rolled back the model."""
    config = RunConfig(clients=10, per_round=10, alpha=0.5, rounds=rounds, evaluate_every=rounds, engine="loop")
    guard = ChangingIds(seed=0)
    guard.every = every
    run = Simulation(config, guard)
    run.run()
    decisions = [verdict["decision"] for record in run.records for verdict in record["verdicts"].values()]
    kinds = [event["kind"] for record in run.records for event in record["events"]]
    # Measured: none of either.
    assert sum(decision != "accepted" for decision in decisions) <= 0.02 * 10 * rounds
    assert kinds.count("rolled_back") <= 1
    assert set(kinds) <= {"rolled_back"}


def test_attackers_with_new_ids_are_flagged_as_with_fixed_ids():
    for seed in range(6):
        sketches, who, rounds = window(seed, 3, 1.0)
        for ids in (who, np.arange(len(who))):
            assert np.array_equal(flagged(sketches, ids, rounds), who < 3)


def ids_of(seed: int, clients: int, per_round: int, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    drawn = np.concatenate([rng.permutation(clients)[:per_round] for _ in range(rounds)])
    return np.unique(drawn, return_inverse=True)[1], np.repeat(np.arange(rounds), per_round)


@pytest.mark.parametrize(("clients", "rounds"), [(20, 15), (50, 6), (50, 30), (200, 30), (1000, 30)])
def test_nearly_every_id_counts_as_a_client_where_clients_are_drawn_at_random(clients, rounds):
    shares = []
    for seed in range(20):
        ids, numbers = ids_of(seed, clients, 10, rounds)
        shares.append(number_of_clients(ids, numbers) / len(np.unique(ids)))
    # The fewer ids return in rounds far apart, the more the estimate varies.
    assert min(shares) >= 0.8
    assert np.mean(shares) >= 0.95


def test_ids_that_return_for_a_while_only_are_no_further_clients():
    """Ten clients in all of thirty rounds; each gets a new id every third round."""
    numbers, who = np.repeat(np.arange(30), 10), np.tile(np.arange(10), 30)
    ids = np.unique(100 * who + (numbers + who) // 3, return_inverse=True)[1]
    assert len(np.unique(ids)) > 100
    assert number_of_clients(ids, numbers) == 10


def test_the_number_of_clients_is_that_of_a_slow_count_of_pairs():
    for seed in range(10):
        ids, rounds = ids_of(seed, 30, 8, 6)
        # Of six rounds those that are three or more apart.
        apart = [(a, b) for a in range(len(ids)) for b in range(a) if abs(rounds[a] - rounds[b]) >= 3]
        returned = sum(ids[a] == ids[b] for a, b in apart)
        expected = min(len(apart) / returned, len(set(ids.tolist())))
        assert number_of_clients(ids, rounds) == pytest.approx(max(expected, 8))


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**31))
def test_it_lies_between_the_largest_round_and_the_number_of_ids(per_round, rounds, seed):
    ids, numbers = ids_of(seed, 12 + seed % 100, per_round, rounds)
    assert per_round <= number_of_clients(ids, numbers) <= len(np.unique(ids))


def test_where_no_id_returns_there_may_be_no_more_clients_than_in_the_largest_round():
    assert number_of_clients(np.arange(13), np.repeat([0, 1, 2], [4, 6, 3])) == 6
