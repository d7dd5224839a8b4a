"""Groups planted in graphs of noise: which are found, with which members and scores."""

from __future__ import annotations

import math
from statistics import NormalDist, median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.defense.agreement.groups import Group, _fitted, _leading_eigenvectors, _scores, _View, required_lead
from helpers.graphs import flagged, found_in, indices, noise, planted

# One step of the fit, and the score, in loops.


def slow_closeness(graph, people, belonging) -> list[float]:
    """For each submission the mean of its edges to the members of other clients."""
    count, result = len(graph), []
    for i in range(count):
        others = [j for j in range(count) if people[j] != people[i]]
        weight = sum(belonging[j] for j in others)
        result.append(sum(graph[i, j] * belonging[j] for j in range(count)) / weight)
    return result


def slow_step(graph, people, convictions, belonging) -> list[float]:
    """Bayes' rule with two normal distributions of one variance, and each client's rate from its other submissions."""
    count, closeness = len(graph), slow_closeness(graph, people, belonging)
    share = sum(belonging) / count
    inside = sum(b * c for b, c in zip(belonging, closeness, strict=True)) / sum(belonging)
    outside = sum((1 - b) * c for b, c in zip(belonging, closeness, strict=True)) / (count - sum(belonging))
    pairs = list(zip(belonging, closeness, strict=True))
    variance = sum(b * (c - inside) ** 2 + (1 - b) * (c - outside) ** 2 for b, c in pairs) / count
    result = []
    for i in range(count):
        own = [j for j in range(count) if people[j] == people[i] and j != i]
        # A beta distribution that counts for two submissions, and those that are known.
        malicious = 2 * share + sum(belonging[j] for j in own) + convictions[i]
        benign = 2 * (1 - share) + sum(1 - belonging[j] for j in own)
        likelihoods = [math.exp(-((closeness[i] - mean) ** 2) / (2 * variance)) for mean in (inside, outside)]
        joint = likelihoods[0] * malicious, likelihoods[1] * benign
        result.append(joint[0] / sum(joint))
    return result


def fitted(graph, people, convictions, start) -> np.ndarray:
    """The fit from that start, which does not depend on other starts."""
    starts = np.stack([np.roll(start, 3), start, 1.0 - start])
    view = _View.of(graph, people, convictions)
    [alone], together = _fitted(view, start[None] * 1.0), _fitted(view, starts)
    np.testing.assert_allclose(together[1], alone, atol=1e-9)
    return alone


def score(graph, people, belonging, largest) -> float:
    """The score of that group, which does not depend on other candidates."""
    candidates = np.stack([belonging, 1.0 - belonging])
    found, _ = _scores(_View.of(graph, people, np.zeros(len(people))), candidates, largest)
    return float(found)


def small_case():
    """Ten submissions of seven clients, of whom two send similar updates and one was convicted."""
    people = np.array([0, 1, 2, 3, 4, 5, 6, 0, 1, 2])
    graph = planted(10, 0, (np.flatnonzero(people < 2), 2.0), people=people)
    convictions = np.where(people == 2, 1.5, 0.0)
    return graph, people, convictions, np.where(people < 2, 0.8, 0.3)


def test_a_step_of_the_fit_is_that_of_loops_over_submissions(monkeypatch):
    monkeypatch.setattr("g2uardfl.defense.agreement.groups._STEPS", 1)
    case = small_case()
    found = fitted(*case)
    np.testing.assert_allclose(found, slow_step(*case), atol=1e-9)
    assert 0.01 < found.min() < found.max() < 0.999


def test_a_fit_that_ends_no_longer_changes():
    people, convictions = np.arange(40) % 20, np.zeros(40)
    graph = planted(40, 0, (people < 6, 3.0), people=people)
    found = fitted(graph, people, convictions, (np.arange(40) < 5) * 1.0)
    np.testing.assert_allclose(found, slow_step(graph, people, convictions, found), atol=0.01)
    assert np.array_equal(found > 0.5, people < 6)


def test_convictions_raise_the_probability_to_belong():
    graph = planted(40, 1, (range(2, 8), 4.0))
    graph[8, 2:8] = graph[2:8, 8] = 2.0
    start = np.isin(np.arange(40), range(2, 8)) * 1.0
    once, often = (fitted(graph, np.arange(40), (np.arange(40) == 8) * count, start)[8] for count in (0.0, 5.0))
    assert once < often - 0.1


def slow_score(graph, people, members) -> float:
    """Strength times separation, over the root of the number of submissions."""
    rows = indices(members)
    strength = sum(graph[i, j] for i in rows for j in rows) / len(rows)
    closeness = slow_closeness(graph, people, members.astype(float))
    of_client = {c: [closeness[i] for i in indices(people == c)] for c in set(people.tolist())}
    means = {client: sum(values) / len(values) for client, values in of_client.items()}
    inside = [means[c] for c in means if 2 * members[people == c].sum() > len(of_client[c])]
    outside = [means[c] for c in means if 2 * members[people == c].sum() <= len(of_client[c])]
    squares = sum((x - sum(side) / len(side)) ** 2 for side in (inside, outside) for x in side)
    deviation = math.sqrt(squares / (len(means) - 2))
    separation = (sum(inside) / len(inside) - sum(outside) / len(outside)) / deviation
    # The halves of a standard normal distribution have the means ±sqrt(2 / pi).
    chance = 2 * math.sqrt(2 / math.pi) / math.sqrt(1 - 2 / math.pi)
    return strength * min(max(separation, chance), 4 * chance) / math.sqrt(len(graph))


@pytest.mark.parametrize("strength", [0.5, 2.0, 9.0])
def test_the_score_is_strength_times_separation(strength):
    people = np.arange(40) % 15
    members = np.isin(people, [1, 5, 9, 14])
    graph = planted(40, 0, (members, strength), people=people)
    belonging = members * 0.9
    assert score(graph, people, belonging, 7) == pytest.approx(slow_score(graph, people, members))
    assert score(graph, people, belonging, 7) > 0


@pytest.mark.parametrize(
    ("clients", "largest", "scored"), [(1, 20, False), (2, 20, True), (5, 5, True), (5, 4, False), (20, 20, False)]
)
def test_a_group_has_two_clients_and_not_more_than_allowed(clients, largest, scored):
    members = np.arange(20) < clients
    assert (score(planted(20, 0, (members, 9.0)), np.arange(20), members * 1.0, largest) > 0) == scored


@pytest.mark.parametrize(("size", "removed"), [(40, 0), (40, 7), (120, 0), (120, 30)])
def test_leading_eigenvectors_are_those_of_the_whole_matrix(size, removed):
    people, members = np.arange(size) % (size // 2), np.arange(size) % 5 == 4
    graph, gone = planted(size, 0, (members, 5.0), people=people), np.arange(size) < removed
    view = _View.of(graph, people, np.zeros(size))
    view = view.without(gone) if removed else view
    rest = np.where(gone | gone[:, None] | np.equal.outer(people, people), 0.0, graph - view.usual)
    exact = np.linalg.eigh(rest).eigenvectors[:, -1]
    assert abs(exact @ _leading_eigenvectors(view)[-1]) > 0.99


def test_the_parts_of_a_large_graph_are_multiplied_as_the_whole(monkeypatch):
    graph = planted(100, 0, (range(20), 5.0))
    whole = found_in(graph)
    monkeypatch.setattr("g2uardfl.defense.agreement.groups._COLUMNS", 7)
    [part] = found_in(graph)
    np.testing.assert_allclose(part.belonging, whole[0].belonging, atol=1e-9)
    assert part.lead == pytest.approx(whole[0].lead)


def test_the_usual_similarity_of_a_large_graph_is_estimated_from_some_of_its_edges(monkeypatch):
    graph, people = planted(100, 0, (range(20, 100), 3.0)), np.arange(100)
    view = _View.of(graph, people, np.zeros(100))
    exact = view.without(people < 20).usual
    monkeypatch.setattr("g2uardfl.defense.agreement.groups._MAX_EDGES", 1000)
    estimated = view.without(people < 20).usual
    assert exact == median(graph[20:, 20:][np.triu_indices(80, 1)].tolist())
    assert estimated == pytest.approx(exact, abs=0.5)
    assert estimated != exact


def test_members_belong_with_a_probability_above_one_half():
    assert Group(np.array([0.2, 0.5, 0.51, 1.0]), 1.0).members.tolist() == [False, False, True, True]


# Planted groups.


@pytest.mark.parametrize(
    ("size", "members", "strength"), [(12, range(2, 6), 8.0), (40, range(2, 10), 4.0), (150, range(0, 150, 8), 2.0)]
)
def test_a_planted_group_is_found_with_its_members(size, members, strength):
    for seed in range(8):
        [found] = found_in(planted(size, seed, (members, strength)))
        assert indices(found.members) == list(members)


def test_all_submissions_of_clients_that_send_often_are_found():
    people = np.arange(120) % 40
    attackers = np.isin(people, [3, 8, 21, 30])
    for seed in range(5):
        [found] = found_in(planted(120, seed, (attackers, 3.0), people=people), people)
        assert np.array_equal(found.members, attackers)


@pytest.mark.parametrize(("strengths", "seeds"), [((5.0, 9.0), 5), ((5.0, 5.0), 3)])
def test_two_planted_groups_are_flagged_together(strengths, seeds):
    """Also where neither leads the other."""
    members = range(10), range(30, 40)
    for seed in range(seeds):
        graph = planted(120, seed, *zip(members, strengths, strict=True))
        assert flagged(found_in(graph)) == [*members[0], *members[1]]


def test_of_one_to_three_groups_as_many_are_flagged_as_have_the_highest_lead():
    """The second group would be found alone; together they lead the rest by less than the first leads the second."""
    weak = range(30, 40), 2.5
    for seed in range(3):
        assert flagged(found_in(planted(120, seed, weak))) == list(weak[0])
        assert flagged(found_in(planted(120, seed, (range(12), 15.0), weak))) == list(range(12))


def test_a_submission_belongs_to_at_most_one_group():
    found = found_in(planted(80, 0, (range(8), 6.0), (range(6, 14), 6.0)))
    assert found
    assert max(np.sum([one.members for one in found], axis=0)) == 1


def test_the_lead_is_the_ratio_of_the_scores_of_the_group_and_of_the_best_group_without_it():
    graph = planted(120, 0, (range(12), 4.0))
    [found] = found_in(graph)
    rest = graph[12:, 12:]
    usual = median(rest[np.triu_indices(108, 1)].tolist())
    rest = np.where(np.eye(108, dtype=bool), 0.0, rest - max(0.0, usual))
    # Each cut by a leading eigenvector is a candidate; vectors are computed to one percent.
    vectors = np.linalg.eigh(rest).eigenvectors[:, -3:]
    ends = [end for vector in vectors.T for end in (vector, -vector)]
    cuts = [slow_score(rest, np.arange(108), end > end.max() / 2) for end in ends]
    assert found.score / found.lead >= max(3.0, *cuts) * 0.98


# No group.


@pytest.mark.parametrize(("size", "repeats", "graphs"), [(10, 1, 60), (40, 1, 40), (120, 3, 20)])
def test_noise_is_flagged_at_most_as_often_as_allowed(size, repeats, graphs):
    people = np.arange(size) % (size // repeats)
    alarms = sum(bool(found_in(planted(size, seed, people=people), people, rate=0.05)) for seed in range(graphs))
    # The 99 % quantile of so many graphs at a rate of 0.05.
    assert alarms <= 0.05 * graphs + 2.33 * math.sqrt(0.05 * 0.95 * graphs)


@pytest.mark.parametrize("kinds", [3, 4, 5, 8])
@pytest.mark.parametrize("strength", [1.0, 3.0])
def test_honest_clients_in_equal_groups_are_not_flagged(kinds, strength):
    """As many kinds of data, with equally many clients each."""
    groups = [(range(kind, 120, kinds), strength) for kind in range(kinds)]
    for seed in range(4):
        assert found_in(planted(120, seed, *groups)) == []


@pytest.mark.parametrize("kinds", [5, 8])
def test_attackers_stand_out_among_kinds_of_data(kinds):
    groups = [(range(first, first + 120 // kinds), 2.0) for first in range(0, 120, 120 // kinds)]
    for seed in range(4):
        [found] = found_in(planted(120, seed, *groups, (range(3, 120, 5), 4.0)))
        assert indices(found.members) == list(range(3, 120, 5))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.7])
def test_groups_together_have_at_most_max_malicious_share_of_the_clients(share):
    for first, second in ((10, 0), (13, 0), (31, 0), (36, 0), (45, 0), (18, 18), (25, 25)):
        graph = planted(60, first, (range(first), 6.0), (range(first, first + second), 6.0))
        found = flagged(found_in(graph, share=share))
        assert len(found) <= share * 60 + 1e-9
        if first + second <= share * 60:
            assert found == list(range(first + second))


def test_a_majority_is_flagged_only_if_the_setting_allows_it():
    graph = planted(60, 0, (range(36), 6.0))
    assert found_in(graph) == []
    assert flagged(found_in(graph, share=0.6)) == list(range(36))


@pytest.mark.parametrize(
    ("clients", "attackers", "found"), [(3, 1, 0), (6, 2, 0), (7, 2, 2), (8, 4, 0), (9, 4, 4), (12, 8, 0)]
)
def test_five_other_clients_at_least_must_remain(clients, attackers, found):
    for seed in range(5):
        graph = planted(clients, seed, (range(attackers), 40.0))
        assert flagged(found_in(graph, share=1.0)) == list(range(found))


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_few_clients_that_send_often_have_no_group(clients):
    people = np.arange(8 * clients) % clients
    assert found_in(np.where(np.equal.outer(people, people), 0.0, 12.0), people) == []


@pytest.mark.parametrize("value", [12.0, 0.1, 0.0, -6.0])
def test_a_graph_of_equal_edges_has_no_group(value):
    assert found_in(np.full((20, 20), value) * ~np.eye(20, dtype=bool)) == []


# Settings and properties.


@pytest.mark.parametrize("rate", [0.4, 0.05, 0.001])
def test_the_required_lead_is_a_quantile_of_a_log_normal_distribution(rate):
    leads = [required_lead(clients, rate) for clients in (7, 30, 100, 1000)]
    assert leads == sorted(leads, reverse=True)
    # One standard deviation above the median.
    centre, deviation = required_lead(100, 0.5), required_lead(100, 1 - NormalDist().cdf(1.0)) / required_lead(100, 0.5)
    assert leads[2] == pytest.approx(centre * deviation ** NormalDist().inv_cdf(1 - rate))


def test_the_lower_the_false_alarm_rate_the_stronger_a_group_must_be():
    least = []
    for rate in (0.3, 0.01, 0.0001):
        strengths = np.arange(1.0, 8.0, 0.5)
        least.append(next(s for s in strengths if found_in(planted(40, 0, (range(2, 8), s)), rate=rate)))
    assert least == sorted(set(least))


@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(40)), numbers=st.permutations(range(20)), seed=st.integers(0, 5))
def test_order_and_numbers_of_submissions_and_clients_do_not_matter(order, numbers, seed):
    order, people = np.array(order), np.arange(40) % 20
    graph = planted(40, seed, (people < 4, 5.0), people=people)
    plain = found_in(graph, people)
    permuted = found_in(graph[np.ix_(order, order)], np.array(numbers)[people][order])
    assert len(permuted) == len(plain) == 1
    assert np.array_equal(plain[0].members[order], permuted[0].members)
    assert permuted[0].lead == pytest.approx(plain[0].lead, rel=0.05)


def test_the_same_graph_gives_the_same_groups_every_time():
    # A graph of low rank, as idle clients make it, would make an iterative eigenvalue solver restart at random.
    rng, size = np.random.default_rng(593), 30
    graph = np.zeros((size, size))
    for _ in range(3):
        members = rng.choice(size, 4, replace=False)
        graph[np.ix_(members, members)] += rng.integers(1, 6)
    np.fill_diagonal(graph, 0)
    outcomes = {tuple((one.score, one.belonging.tobytes()) for one in found_in(graph, rate=0.4)) for _ in range(20)}
    assert len(outcomes) == 1
    assert outcomes != {()}


def test_a_graph_of_noise_has_groups_if_nearly_every_one_is_flagged():
    assert any(found_in(noise(20, seed), rate=0.5) for seed in range(30))
