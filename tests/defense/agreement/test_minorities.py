"""Which communities are those of attackers: a minority that stands out, and only with more evidence a majority."""

from __future__ import annotations

import numpy as np
import pytest

from g2uardfl.defense.agreement.communities import find_communities
from helpers.graphs import EVIDENCE, LEAD, found_in, indices, noise, planted, spread_rounds


def kinds(size: int, count: int, strength: float) -> list[tuple[range, float]]:
    """Groups of equal size that hold all submissions: clients with that many kinds of data."""
    each = size // count
    return [(range(i * each, (i + 1) * each), strength) for i in range(count)]


@pytest.mark.parametrize("count", [5, 6, 10])
def test_many_communities_of_equal_strength_are_kinds_of_data(count):
    for seed in range(10):
        assert found_in(planted(120, seed, *kinds(120, count, 3.0)), np.arange(120)) == []
    # Without a lead they would be flagged, up to half of the clients.
    assert found_in(planted(120, 0, *kinds(120, count, 3.0)), np.arange(120), min_lead=0.0)


@pytest.mark.parametrize("count", [5, 6, 10])
def test_attackers_stand_out_among_kinds_of_data(count):
    attackers = range(3, 120, 5)
    for seed in range(10):
        graph = planted(120, seed, *kinds(120, count, 2.0), (attackers, 4.0))
        [found] = found_in(graph, np.arange(120))
        assert indices(found.members) == list(attackers)


def test_attackers_must_lead_the_kinds_of_data_by_the_given_factor():
    """The mean sum of edges is 96 for the 24 attackers, and 38 for the 20 other clients of each kind of data."""
    graph = planted(120, 0, *kinds(120, 5, 2.0), (range(0, 120, 5), 4.0))
    for lead, found in ((1.5, True), (2.2, True), (3.0, False)):
        assert bool(found_in(graph, np.arange(120), min_lead=lead)) == found


def test_two_groups_of_attackers_are_both_found_although_neither_leads_the_other():
    for seed in range(10):
        graph = planted(120, seed, (range(10), 5.0), (range(30, 40), 5.0))
        members = {tuple(indices(one.members)) for one in found_in(graph, np.arange(120))}
        assert members == {tuple(range(10)), tuple(range(30, 40))}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("attackers", "others"), [(1.5, 0.4), (2.0, 1.0), (3.0, 1.5)])
def test_attackers_are_found_where_all_others_move_the_opposite_way(seed, attackers, others):
    attack = np.arange(120) < 20
    both, one = attack[:, None] & attack[None, :], attack[:, None] ^ attack[None, :]
    graph = noise(120, seed) + np.where(both, attackers, np.where(one, -others, others))
    np.fill_diagonal(graph, 0)
    (found,) = found_in(graph, np.arange(120))
    assert np.array_equal(found.members, attack)


def test_groups_of_more_than_half_of_the_clients_are_not_all_attackers():
    for seed in range(5):
        graph = planted(60, seed, (range(18), 6.0), (range(20, 38), 6.0))
        assert found_in(graph, np.arange(60)) == []


def test_no_community_covers_more_than_half_of_the_clients():
    found = found_in(planted(30, 0, (range(3, 27), 5.0)), np.arange(30), 0.0)
    assert all(one.members.sum() <= 15 for one in found)


@pytest.mark.parametrize("attackers", [30, 33, 38])
def test_convicted_attackers_are_found_even_where_they_become_the_majority(attackers):
    for seed in range(5):
        graph = planted(60, seed, (range(attackers), 6.0))
        convicted = np.arange(60) < 20
        if attackers > 30:
            assert found_in(graph, np.arange(60)) == []
        [one] = find_communities(graph, np.arange(60), spread_rounds(60), EVIDENCE, LEAD, convicted)
        assert indices(one.members) == list(range(attackers))


def test_the_majority_of_clients_without_a_conviction_is_honest():
    convicted = np.arange(60) >= 55
    graph = planted(60, 0, (range(35), 6.0))
    assert find_communities(graph, np.arange(60), spread_rounds(60), EVIDENCE, LEAD, convicted) == []


@pytest.mark.parametrize(("common", "flagged"), [(0.0, True), (0.2, True), (0.6, False), (1.0, False)])
def test_a_majority_attacks_only_if_the_others_have_much_less_in_common(common, flagged):
    """`common` is the strength of what the other clients' directions share; the majority's share one of strength 1."""
    graph, everybody = planted(60, 0, (range(36), 6.0)), np.arange(60)
    rng = np.random.default_rng(0)
    shared = np.where(everybody[:, None, None] < 36, rng.normal(size=512), common * rng.normal(size=512))
    sketches = shared + rng.normal(size=(60, 1, 512))
    sketches /= np.linalg.norm(sketches, axis=-1, keepdims=True)
    found = find_communities(graph, everybody, spread_rounds(60), EVIDENCE, LEAD, sketches=sketches.astype(np.float32))
    assert [indices(one.members) for one in found] == ([list(range(36))] if flagged else [])


def test_two_other_clients_are_too_few_to_judge_a_majority():
    graph = planted(40, 0, (range(38), 6.0))
    sketches = np.random.default_rng(0).normal(size=(40, 1, 64)).astype(np.float32)
    sketches[:38] = 1.0
    assert find_communities(graph, np.arange(40), np.arange(40), EVIDENCE, LEAD, sketches=sketches) == []


@pytest.mark.parametrize(("of_ten", "found"), [(2, True), (6, True), (8, True), (9, False), (10, False)])
def test_a_community_of_nearly_all_clients_of_its_rounds_is_what_those_rounds_have_in_common(of_ten, found):
    rounds = np.arange(100) // 10
    members = np.isin(rounds, [3, 7]) & (np.arange(100) % 10 < of_ten)
    graph = planted(100, 0, (np.flatnonzero(members), 8.0))
    communities = find_communities(graph, np.arange(100), rounds, EVIDENCE, LEAD)
    assert [indices(one.members) for one in communities] == ([indices(members)] if found else [])


def test_convicted_clients_do_not_count_as_the_rest_of_a_round():
    """Three attackers of each round are convicted; the community covers everybody else of two rounds."""
    rounds, convicted = np.arange(100) // 10, np.arange(100) % 10 < 3
    members = np.isin(rounds, [3, 7]) & ~convicted
    graph = planted(100, 0, (np.flatnonzero(members), 8.0))
    assert len(find_communities(graph, np.arange(100), rounds, EVIDENCE, LEAD)) == 1
    assert find_communities(graph, np.arange(100), rounds, EVIDENCE, LEAD, convicted) == []


def test_attackers_known_from_many_rounds_are_found_in_one_that_is_nearly_all_theirs():
    """Four of each round are convicted attackers; in the last one there are nine, who are new."""
    rounds = np.arange(100) // 10
    members = np.where(rounds == 9, np.arange(100) % 10 < 9, np.arange(100) % 10 < 4)
    graph = planted(100, 0, (np.flatnonzero(members), 8.0))
    found = find_communities(graph, np.arange(100), rounds, EVIDENCE, LEAD, members & (rounds < 9))
    assert [indices(one.members) for one in found] == [indices(members)]
