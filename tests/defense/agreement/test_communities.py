"""Communities planted in a graph of noise: they are found with their members, evidence and strength."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.defense.agreement.communities import Community, find_communities
from g2uardfl.defense.agreement.mixture import two_components
from helpers.graphs import EVIDENCE, LEAD, found_in, indices, noise, planted


def test_members_belong_with_a_probability_above_one_half():
    assert Community(0.0, 0.0, np.array([0.2, 0.5, 0.51, 1.0]), 0.0).members.tolist() == [False, False, True, True]


@pytest.mark.parametrize("size", [12, 40, 150])
def test_a_planted_group_is_found_with_its_members(size):
    members = range(2, 2 + max(4, size // 8))
    for seed in range(10):
        found = found_in(planted(size, seed, (members, 5.0)), np.arange(size))
        assert indices(found[0].members) == list(members)
        assert found[0].evidence > EVIDENCE


def test_two_planted_groups_are_both_found_the_stronger_first():
    for seed in range(10):
        graph = planted(80, seed, (range(20, 32), 5.0), (range(8), 9.0))
        found = found_in(graph, np.arange(80))
        assert {tuple(indices(one.members)) for one in found[:2]} == {tuple(range(8)), tuple(range(20, 32))}
        assert [one.strength for one in found] == sorted((one.strength for one in found), reverse=True)
        assert not (found[0].members & found[1].members).any()


def test_a_submission_belongs_to_at_most_one_community():
    graph = planted(60, 0, (range(8), 6.0), (range(6, 14), 6.0))
    found = found_in(graph, np.arange(60))
    assert found
    assert max(np.sum([one.members for one in found], axis=0)) <= 1


def test_communities_hold_all_submissions_of_clients_who_send_often():
    people = np.arange(120) % 40
    attackers = np.isin(people, [3, 8, 21, 30])
    for seed in range(10):
        graph = noise(120, seed)
        graph[np.ix_(attackers, attackers)] += 4
        graph[np.equal.outer(people, people)] = 0
        assert np.array_equal(found_in(graph, people)[0].members, attackers)


def test_many_submissions_of_two_clients_are_no_community():
    people = np.concatenate([np.zeros(20, int), np.ones(20, int), np.arange(2, 12)])
    graph = planted(50, 0, (range(40), 6.0))
    graph[np.equal.outer(people, people)] = 0
    rounds = np.concatenate([np.arange(20), np.arange(20), np.arange(10)])
    for evidence in (0.0, EVIDENCE):
        found = find_communities(graph, people, rounds, evidence, LEAD)
        assert not any(one.members[:40].all() for one in found)


def test_repeated_submissions_are_no_further_evidence():
    graph = planted(12, 0, (range(4), 5.0))
    once = found_in(graph, np.arange(12), 0.0)[0]
    people = np.repeat(np.arange(12), 6)
    again = found_in(np.kron(graph, np.ones((6, 6))), people, 0.0)[0]
    assert indices(again.members) == list(range(24))
    assert again.evidence == pytest.approx(once.evidence, rel=0.05)


@pytest.mark.parametrize("people", [np.arange(40), np.arange(40) % 30], ids=["each once", "ten of thirty twice"])
def test_evidence_is_the_information_criterion_of_each_clients_closeness_to_the_members(people):
    graph = planted(40, 1, (range(2, 7), 6.0))
    graph[np.equal.outer(people, people)] = 0
    found = found_in(graph, people)[0]
    members = indices(found.members)
    assert set(range(2, 7)) <= set(members)
    closeness = []
    for i in range(40):
        others = [j for j in members if people[j] != people[i]]
        closeness.append(sum(graph[i, j] for j in others) / max(1, len(others)))
    clients = sorted(set(people.tolist()))
    of_client = [[closeness[i] for i in range(40) if people[i] == client] for client in clients]
    gain, _ = two_components(np.array([sum(values) / len(values) for values in of_client]))
    # One component has two parameters, two have four: the criterion charges log(n) for each of the two more.
    assert found.evidence == pytest.approx(2 * gain * len(clients) - 2 * math.log(len(clients)))
    np.testing.assert_allclose(found.belonging, two_components(np.array(closeness))[1])
    assert found.similarity == pytest.approx(sum(closeness[i] for i in members) / len(members))


def test_a_community_needs_the_least_evidence():
    graph = planted(40, 0, (range(2, 7), 5.0))
    evidence = found_in(graph, np.arange(40), 0.0)[0].evidence
    assert found_in(graph, np.arange(40), evidence - 0.01)
    assert not found_in(graph, np.arange(40), evidence + 0.01)


def test_evidence_grows_with_the_strength_of_the_group():
    found = [found_in(planted(40, 0, (range(2, 9), strength)), np.arange(40), 0.0) for strength in (3.0, 5.0, 9.0)]
    evidence = [communities[0].evidence for communities in found]
    assert evidence == sorted(evidence)
    assert evidence[-1] > evidence[0] + EVIDENCE


def test_strength_is_the_mean_sum_of_a_members_edges_and_at_most_the_largest_eigenvalue():
    for seed in range(10):
        graph = planted(40, seed, (range(2, 9), 5.0))
        [found] = found_in(graph, np.arange(40))
        members = indices(found.members)
        expected = sum(graph[i, j] for i in members for j in members) / len(members)
        assert found.strength == pytest.approx(expected)
        assert found.strength <= np.linalg.eigvalsh(graph).max() + 1e-9


@pytest.mark.parametrize("clients", range(5))
def test_fewer_than_five_clients_have_no_community(clients):
    people = np.arange(8 * clients) % max(1, clients)
    graph = np.where(np.equal.outer(people, people), 0.0, 12.0)
    assert found_in(graph, people, 0.0) == []


def test_a_graph_without_edges_has_no_community():
    assert found_in(np.zeros((20, 20)), np.arange(20), 0.0) == []


@pytest.mark.parametrize("value", [12.0, 0.1, -6.0])
def test_a_graph_of_equal_edges_has_no_community(value):
    graph = np.full((20, 20), value)
    np.fill_diagonal(graph, 0)
    assert found_in(graph, np.arange(20)) == []


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(40)), seed=st.integers(0, 5))
def test_the_order_of_submissions_does_not_matter(order, seed):
    order = np.array(order)
    graph = planted(40, seed, (range(3, 9), 5.0), (range(20, 25), 8.0))
    plain = found_in(graph, np.arange(40))
    permuted = found_in(graph[np.ix_(order, order)], np.arange(40)[order])
    assert len(permuted) == len(plain) >= 2
    for first, second in zip(plain, permuted, strict=True):
        assert np.array_equal(first.members[order], second.members)
        assert second.evidence == pytest.approx(first.evidence, rel=1e-3)


def test_the_same_graph_gives_the_same_communities_every_time():
    # A graph of low rank, as idle clients make it, would make an iterative eigenvalue solver restart at random.
    rng = np.random.default_rng(593)
    size = int(rng.integers(8, 40))
    graph = np.zeros((size, size))
    for _ in range(rng.integers(1, 4)):
        members = rng.choice(size, rng.integers(2, 5), replace=False)
        graph[np.ix_(members, members)] += rng.integers(1, 6)
    np.fill_diagonal(graph, 0)
    outcomes = {
        tuple((one.evidence, one.belonging.tobytes()) for one in found_in(graph, np.arange(size))) for _ in range(100)
    }
    assert len(outcomes) == 1


def test_rounds_are_compared_by_equality_alone():
    graph = planted(60, 0, (range(8), 6.0))
    numbers = np.arange(60) // 10
    first, second = (
        find_communities(graph, np.arange(60), rounds, EVIDENCE, 1.5) for rounds in (numbers, 1000 - 7 * numbers)
    )
    assert [indices(one.members) for one in first] == [indices(one.members) for one in second] == [list(range(8))]
