"""Communities: the two humps against scikit-learn's mixture and a literal EM, and planted groups among noise."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.mixture import GaussianMixture

from g2uardfl.defense.agreement import communities
from g2uardfl.defense.agreement.communities import FEWEST_CLIENTS, Community, find_communities, two_humps

ENOUGH, LEAD = 10.0, 1.5
SEEDS = range(40)


def noise(size: int, seed: int) -> np.ndarray:
    """The agreement of submissions that have nothing to do with each other."""
    upper = np.triu(np.random.default_rng(seed).normal(size=(size, size)), 1)
    return upper + upper.T


def planted(size: int, seed: int, *groups: tuple[range, float]) -> np.ndarray:
    """Noise, and groups whose members agree with each other by so many standard deviations more."""
    graph = noise(size, seed)
    for members, strength in groups:
        graph[np.ix_(members, members)] += strength
    np.fill_diagonal(graph, 0)
    return graph


def spread(count: int) -> np.ndarray:
    """Rounds of about ten submissions each, so that neighbours are not of the same round."""
    return np.arange(count) % max(1, count // 10)


def found_in(graph, people, least_evidence, least_lead=LEAD) -> list[Community]:
    return find_communities(graph, people, spread(len(people)), least_evidence, least_lead)


def indices(mask) -> list[int]:
    return [i for i, inside in enumerate(mask) if inside]


def mixed(seed: int, least: float = 4.0) -> np.ndarray:
    """Values of two humps at least so many standard deviations apart, of any scale and place."""
    rng = np.random.default_rng(seed)
    size, share, apart = int(rng.integers(20, 200)), rng.uniform(0.05, 0.4), rng.uniform(least, 10)
    values = rng.normal(size=size) + apart * (rng.random(size) < share)
    return values * 10.0 ** rng.integers(-3, 4) + rng.normal()


def literal_humps(values) -> tuple[float, list[float]]:
    """Expectation maximisation value by value, with the standard deviation of the values as the unit.

    The better of two fits: one begins with the highest tenth, the other with the best cut, if that is a good one.
    """
    count = len(values)
    mean = sum(values) / count
    unit = math.sqrt(sum((value - mean) ** 2 for value in values) / count)
    x = sorted((value - mean) / unit for value in values)
    middle = (x[(count - 1) // 2] + x[count // 2]) / 2
    top = x[-max(1, count // 10) :]
    begins = [([middle, sum(top) / len(top)], [0.9, 0.1])]
    cuts = []
    for cut in range(1, count):
        means = [statistics.fmean(x[:cut]), statistics.fmean(x[cut:])]
        shares = [cut / count, 1 - cut / count]
        cuts.append((shares[0] * means[0] ** 2 + shares[1] * means[1] ** 2, means, shares))
    explained, means, shares = max(cuts)
    if explained > 0.85:
        begins.append((means, shares))
    x = [(value - mean) / unit for value in values]
    return max((literal_fit(x, *begin) for begin in begins), key=lambda fit: fit[0])


def literal_fit(x, means, shares) -> tuple[float, list[float]]:
    count, variance = len(x), 0.5

    def density(value, k):
        return shares[k] * math.exp(-((value - means[k]) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)

    last = -math.inf
    for _ in range(communities._EM_STEPS):
        both = [[density(value, 0), density(value, 1)] for value in x]
        upper = [pair[1] / sum(pair) for pair in both]
        likelihood = sum(math.log(sum(pair)) for pair in both) / count
        if likelihood - last < communities._EM_TOLERANCE:
            break
        last = likelihood
        high = sum(upper)
        means = [
            sum((1 - p) * value for p, value in zip(upper, x, strict=True)) / (count - high),
            sum(p * value for p, value in zip(upper, x, strict=True)) / high,
        ]
        shares = [1 - high / count, high / count]
        spread = [
            (1 - p) * (value - means[0]) ** 2 + p * (value - means[1]) ** 2 for p, value in zip(upper, x, strict=True)
        ]
        variance = sum(spread) / count
    single = sum(-0.5 * value**2 - 0.5 * math.log(2 * math.pi) for value in x) / count
    return likelihood - single, upper if means[1] > means[0] else [1 - p for p in upper]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_two_humps_are_the_literal_expectation_maximisation(seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=int(rng.integers(6, 60)))
    values[: len(values) // 4] += rng.uniform(0, 6)
    gain, upper = two_humps(values)
    expected_gain, expected_upper = literal_humps(values.tolist())
    assert gain == pytest.approx(expected_gain, abs=1e-6)
    np.testing.assert_allclose(upper, expected_upper, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_two_humps_are_scikit_learns_mixture_of_two_tied_normals(seed):
    values = mixed(seed)
    x = ((values - values.mean()) / values.std())[:, None]
    tenth = max(1, len(x) // 10)
    two = GaussianMixture(
        2,
        covariance_type="tied",
        means_init=[[np.median(x)], [np.sort(x[:, 0])[-tenth:].mean()]],
        weights_init=[0.9, 0.1],
        precisions_init=[[2.0]],
        reg_covar=1e-9,
        tol=1e-10,
        max_iter=5000,
    ).fit(x)
    one = GaussianMixture(1, reg_covar=0).fit(x)
    gain, upper = two_humps(values)
    assert gain == pytest.approx(two.score(x) - one.score(x), abs=1e-3)
    expected = two.predict_proba(x)[:, int(np.argmax(two.means_))]
    np.testing.assert_allclose(upper, expected, atol=0.05)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), order=st.randoms(use_true_random=False))
def test_two_humps_do_not_depend_on_scale_place_or_order(seed, order):
    values = mixed(seed)
    gain, upper = two_humps(values)
    turned = list(range(len(values)))
    order.shuffle(turned)
    other_gain, other_upper = two_humps(values[turned] * 7.0 - 3.0)
    assert other_gain == pytest.approx(gain, abs=1e-6)
    np.testing.assert_allclose(other_upper, upper[turned], atol=1e-4)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1e-20])
@pytest.mark.parametrize("count", [1, 10, 300])
def test_equal_values_are_one_hump(value, count):
    gain, upper = two_humps(np.full(count, value))
    assert gain == 0
    assert not upper.any()


def test_values_that_differ_by_rounding_alone_are_one_hump():
    values = np.array([0.1 + 0.2] * 6 + [0.3] * 4)
    gain, upper = two_humps(values)
    assert gain == 0
    assert not upper.any()


def test_a_single_outlier_is_the_upper_hump():
    values = np.append(np.linspace(-1, 1, 30), 50.0)
    gain, upper = two_humps(values)
    assert gain > 1
    assert indices(upper > 0.5) == [30]


@pytest.mark.parametrize("upper", [1, 2, 4, 8, 10, 12, 16, 19])
def test_an_upper_hump_of_any_size_is_found(upper):
    values = np.concatenate([np.linspace(-0.1, 0.1, 20 - upper), 10 + np.linspace(-0.1, 0.1, upper)])
    assert indices(two_humps(values)[1] > 0.5) == list(range(20 - upper, 20))


def test_one_normal_hump_gains_next_to_nothing():
    # Measured: at most 0.03 in 200 draws of 300 values.
    gains = [two_humps(np.random.default_rng(seed).normal(size=300))[0] for seed in range(50)]
    assert max(gains) < 0.06


def test_members_rather_belong_than_not():
    assert Community(0.0, 0.0, np.array([0.2, 0.5, 0.51, 1.0]), 0.0).members.tolist() == [False, False, True, True]


@pytest.mark.parametrize("size", [12, 40, 150])
def test_a_planted_group_is_found_with_its_members(size):
    members = range(2, 2 + max(4, size // 8))
    for seed in range(10):
        found = found_in(planted(size, seed, (members, 5.0)), np.arange(size), ENOUGH)
        assert indices(found[0].members) == list(members)
        assert found[0].evidence > ENOUGH


def test_in_a_federation_of_40_clients_noise_is_rarely_a_community():
    # Measured: 1 of the 40 seeds, and 5 of 100.
    alarms = sum(bool(found_in(noise(40, seed), np.arange(40), ENOUGH)) for seed in SEEDS)
    assert alarms <= 4


def test_in_repeated_submissions_of_40_clients_noise_is_rarely_a_community():
    people = np.arange(120) % 40
    alarms = 0
    for seed in SEEDS:
        graph = noise(120, seed)
        graph[np.equal.outer(people, people)] = 0
        alarms += bool(found_in(graph, people, ENOUGH))
    assert alarms <= 4


def test_in_a_window_of_300_strangers_noise_is_rarely_a_community():
    alarms = sum(bool(found_in(noise(300, seed), np.arange(300), ENOUGH)) for seed in range(10))
    assert alarms <= 2


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("attackers", "others"), [(1.5, 0.4), (2.0, 1.0), (3.0, 1.5)])
def test_attackers_are_told_though_all_others_agree_a_little_as_they_pull_the_other_way(seed, attackers, others):
    attack = np.arange(120) < 20
    both, one = attack[:, None] & attack[None, :], attack[:, None] ^ attack[None, :]
    graph = noise(120, seed) + np.where(both, attackers, np.where(one, -others, others))
    np.fill_diagonal(graph, 0)
    (found,) = found_in(graph, np.arange(120), ENOUGH)
    assert np.array_equal(found.members, attack)


def test_two_planted_groups_are_both_found_the_clearer_first():
    for seed in range(10):
        graph = planted(80, seed, (range(8), 9.0), (range(20, 32), 5.0))
        found = found_in(graph, np.arange(80), ENOUGH)
        assert {tuple(indices(one.members)) for one in found[:2]} == {tuple(range(8)), tuple(range(20, 32))}
        assert not (found[0].members & found[1].members).any()


def test_a_submission_belongs_to_one_community_at_most():
    graph = planted(60, 0, (range(8), 6.0), (range(6, 14), 6.0))
    found = found_in(graph, np.arange(60), ENOUGH)
    assert found
    assert max(np.sum([one.members for one in found], axis=0)) <= 1


def test_communities_of_clients_who_send_often_hold_all_their_submissions():
    people = np.arange(120) % 40
    attackers = np.isin(people, [3, 8, 21, 30])
    for seed in range(10):
        graph = noise(120, seed)
        graph[np.ix_(attackers, attackers)] += 4
        graph[np.equal.outer(people, people)] = 0
        found = found_in(graph, people, ENOUGH)
        assert np.array_equal(found[0].members, attackers)


def test_many_submissions_of_two_clients_are_no_community():
    people = np.concatenate([np.zeros(20, int), np.ones(20, int), np.arange(2, 12)])
    graph = planted(50, 0, (range(40), 6.0))
    graph[np.equal.outer(people, people)] = 0
    assert not any(one.members[:40].all() for one in found_in(graph, people, 0.0))
    assert not found_in(graph, people, ENOUGH)


def test_what_few_clients_send_again_is_no_new_evidence():
    graph = planted(12, 0, (range(4), 5.0))
    once = found_in(graph, np.arange(12), 0.0)[0]
    people = np.repeat(np.arange(12), 6)
    repeated = np.kron(graph, np.ones((6, 6)))
    again = found_in(repeated, people, 0.0)[0]
    assert indices(again.members) == list(range(24))
    assert again.evidence == pytest.approx(once.evidence, rel=0.05)


@pytest.mark.parametrize("people", [np.arange(40), np.arange(40) % 30], ids=["each once", "ten of thirty twice"])
def test_evidence_is_the_bic_of_each_clients_closeness_to_the_members(people):
    graph = planted(40, 1, (range(2, 7), 6.0))
    graph[np.equal.outer(people, people)] = 0
    found = found_in(graph, people, ENOUGH)[0]
    members = indices(found.members)
    assert set(range(2, 7)) <= set(members)
    closeness = []
    for i in range(40):
        strangers = [j for j in members if people[j] != people[i]]
        closeness.append(sum(graph[i, j] for j in strangers) / max(1, len(strangers)))
    clients = sorted(set(people.tolist()))
    of_client = [[closeness[i] for i in range(40) if people[i] == client] for client in clients]
    gain, _ = two_humps(np.array([sum(values) / len(values) for values in of_client]))
    assert found.evidence == pytest.approx(2 * gain * len(clients) - 2 * math.log(len(clients)))
    np.testing.assert_allclose(found.belonging, two_humps(np.array(closeness))[1])
    assert found.agreement == pytest.approx(sum(closeness[i] for i in members) / len(members))


def test_evidence_below_the_least_is_no_community():
    graph = planted(40, 0, (range(2, 7), 5.0))
    evidence = found_in(graph, np.arange(40), 0.0)[0].evidence
    assert found_in(graph, np.arange(40), evidence - 0.01)
    assert not found_in(graph, np.arange(40), evidence + 0.01)


def test_strength_is_the_mean_sum_of_a_members_edges_and_no_more_than_the_largest_eigenvalue():
    for seed in range(10):
        graph = planted(40, seed, (range(2, 9), 5.0))
        [found] = found_in(graph, np.arange(40), ENOUGH)
        members = indices(found.members)
        expected = sum(graph[i, j] for i in members for j in members) / len(members)
        assert found.strength == pytest.approx(expected)
        assert found.strength <= np.linalg.eigvalsh(graph).max() + 1e-9


def test_noise_is_as_strong_as_its_largest_eigenvalue():
    for seed in range(5):
        graph = noise(300, seed)
        assert communities._noise(graph, np.arange(300)) == pytest.approx(np.linalg.eigvalsh(graph).max(), rel=0.06)


def kinds(size: int, count: int, strength: float) -> list[tuple[range, float]]:
    """Groups of equal size that hold all submissions: clients with as many kinds of data."""
    each = size // count
    return [(range(i * each, (i + 1) * each), strength) for i in range(count)]


@pytest.mark.parametrize("count", [5, 6, 10])
def test_communities_of_which_there_are_many_alike_are_kinds_of_data(count):
    for seed in range(10):
        assert found_in(planted(120, seed, *kinds(120, count, 3.0)), np.arange(120), ENOUGH) == []
    # Without having to lead they would all be refused, as far as half of the clients goes.
    assert found_in(planted(120, 0, *kinds(120, count, 3.0)), np.arange(120), ENOUGH, 0.0)


@pytest.mark.parametrize("count", [5, 6, 10])
def test_attackers_stand_out_among_kinds_of_data(count):
    attackers = range(3, 120, 5)
    for seed in range(10):
        graph = planted(120, seed, *kinds(120, count, 2.0), (attackers, 4.0))
        [found] = found_in(graph, np.arange(120), ENOUGH)
        assert indices(found.members) == list(attackers)


def test_two_groups_of_attackers_are_both_believed_though_neither_leads_the_other():
    for seed in range(10):
        graph = planted(120, seed, (range(10), 5.0), (range(30, 40), 5.0))
        assert {tuple(indices(one.members)) for one in found_in(graph, np.arange(120), ENOUGH)} == {
            tuple(range(10)),
            tuple(range(30, 40)),
        }


def test_groups_that_together_hold_more_than_half_of_the_clients_are_not_all_attackers():
    for seed in range(5):
        graph = planted(60, seed, (range(18), 6.0), (range(20, 38), 6.0))
        assert found_in(graph, np.arange(60), ENOUGH) == []


@pytest.mark.parametrize("attackers", [30, 33, 38])
def test_attackers_who_become_the_majority_after_they_were_convicted_are_still_told(attackers):
    for seed in range(5):
        graph = planted(60, seed, (range(attackers), 6.0))
        convicted = np.arange(60) < 20
        assert found_in(graph, np.arange(60), ENOUGH) == [] or attackers == 30
        [one] = find_communities(graph, np.arange(60), spread(60), ENOUGH, LEAD, convicted)
        assert indices(one.members) == list(range(attackers))


def test_those_without_a_bad_record_are_no_attackers_if_they_are_most_of_them():
    convicted = np.arange(60) >= 55
    assert find_communities(planted(60, 0, (range(35), 6.0)), np.arange(60), spread(60), ENOUGH, LEAD, convicted) == []


@pytest.mark.parametrize(("in_common", "told"), [(0.0, True), (0.2, True), (0.6, False), (1.0, False)])
def test_most_clients_are_attackers_only_if_the_others_have_far_less_in_common(in_common, told):
    """`in_common` is what the others' directions share, beside what the community's do."""
    graph, everybody = planted(60, 0, (range(36), 6.0)), np.arange(60)
    random = np.random.default_rng(0)
    shared = np.where(everybody[:, None, None] < 36, random.normal(size=512), in_common * random.normal(size=512))
    sketches = shared + random.normal(size=(60, 1, 512))
    sketches /= np.linalg.norm(sketches, axis=-1, keepdims=True)
    found = find_communities(graph, everybody, spread(60), ENOUGH, LEAD, sketches=sketches.astype(np.float32))
    assert [indices(one.members) for one in found] == ([list(range(36))] if told else [])


def test_two_others_do_not_say_that_most_clients_are_attackers():
    graph = planted(40, 0, (range(38), 6.0))
    sketches = np.random.default_rng(0).normal(size=(40, 1, 64)).astype(np.float32)
    sketches[:38] = 1.0
    assert find_communities(graph, np.arange(40), np.arange(40), ENOUGH, LEAD, sketches=sketches) == []


@pytest.mark.parametrize(("of_ten", "believed"), [(2, True), (6, True), (8, True), (9, False), (10, False)])
def test_a_community_of_nearly_everybody_in_its_rounds_is_what_those_rounds_have_in_common(of_ten, believed):
    rounds = np.arange(100) // 10
    members = np.isin(rounds, [3, 7]) & (np.arange(100) % 10 < of_ten)
    graph = planted(100, 0, (np.flatnonzero(members), 8.0))
    found = find_communities(graph, np.arange(100), rounds, ENOUGH, LEAD)
    assert [indices(one.members) for one in found] == ([indices(members)] if believed else [])


def test_who_was_convicted_before_does_not_leave_anybody_of_a_round():
    """Three attackers of each round are convicted; the community takes in everybody else of two rounds."""
    rounds, convicted = np.arange(100) // 10, np.arange(100) % 10 < 3
    members = np.isin(rounds, [3, 7]) & ~convicted
    graph = planted(100, 0, (np.flatnonzero(members), 8.0))
    assert len(find_communities(graph, np.arange(100), rounds, ENOUGH, LEAD)) == 1
    assert find_communities(graph, np.arange(100), rounds, ENOUGH, LEAD, convicted) == []


def test_attackers_known_from_many_rounds_are_believed_in_one_that_is_nearly_all_theirs():
    """Four of each round are convicted attackers; in the last one it is nine, who are new."""
    rounds = np.arange(100) // 10
    members = np.where(rounds == 9, np.arange(100) % 10 < 9, np.arange(100) % 10 < 4)
    graph = planted(100, 0, (np.flatnonzero(members), 8.0))
    found = find_communities(graph, np.arange(100), rounds, ENOUGH, LEAD, members & (rounds < 9))
    assert [indices(one.members) for one in found] == [indices(members)]


@pytest.mark.parametrize("clients", range(FEWEST_CLIENTS))
def test_among_fewer_than_five_clients_there_is_no_community(clients):
    people = np.arange(8 * clients) % max(1, clients)
    graph = np.where(np.equal.outer(people, people), 0.0, 12.0)
    assert found_in(graph, people, 0.0) == []


def test_more_than_half_of_the_clients_are_no_community():
    found = found_in(planted(30, 0, (range(3, 27), 5.0)), np.arange(30), 0.0)
    assert all(one.members.sum() <= 15 for one in found)


def test_a_graph_without_edges_has_no_community():
    assert found_in(np.zeros((20, 20)), np.arange(20), 0.0) == []


@pytest.mark.parametrize("value", [12.0, 0.1, -6.0])
def test_if_all_agree_equally_there_is_no_community(value):
    graph = np.full((20, 20), value)
    np.fill_diagonal(graph, 0)
    assert found_in(graph, np.arange(20), ENOUGH) == []


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(40)), seed=st.integers(0, 5))
def test_the_order_of_submissions_does_not_matter(order, seed):
    order = np.array(order)
    graph = planted(40, seed, (range(3, 9), 5.0), (range(20, 25), 8.0))
    plain = found_in(graph, np.arange(40), ENOUGH)
    turned = found_in(graph[np.ix_(order, order)], np.arange(40)[order], ENOUGH)
    assert len(turned) == len(plain) >= 2
    for first, second in zip(plain, turned, strict=True):
        assert np.array_equal(first.members[order], second.members)
        assert second.evidence == pytest.approx(first.evidence, rel=1e-3)


def test_the_same_graph_gives_the_same_communities_every_time():
    # A graph of low rank, as idle clients make it, leaves an iterative solver without a direction to go on in.
    rng = np.random.default_rng(593)
    size = int(rng.integers(8, 40))
    graph = np.zeros((size, size))
    for _ in range(rng.integers(1, 4)):
        members = rng.choice(size, rng.integers(2, 5), replace=False)
        graph[np.ix_(members, members)] += rng.integers(1, 6)
    np.fill_diagonal(graph, 0)
    outcomes = {
        tuple((one.evidence, one.belonging.tobytes()) for one in found_in(graph, np.arange(size), ENOUGH))
        for _ in range(100)
    }
    assert len(outcomes) == 1
