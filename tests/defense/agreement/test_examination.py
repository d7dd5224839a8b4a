"""The examination of a round: lengths and peaks by hand, suspicion, records, the length of the elimination, reasons."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.defense.agreement.agreement import Window, agreement
from g2uardfl.defense.agreement.communities import Community
from g2uardfl.defense.agreement.examination import (
    Examination,
    Judgement,
    Usual,
    common_cosine,
    elimination_length,
    examine,
    explain_examination,
    moved_scores,
    opposition,
    poisoned_before,
    shorter_ones,
    supported_length,
    suspected,
    twins_of,
    update_shapes,
)
from g2uardfl.defense.config import configure

CONFIG = configure("default", {})


def literal_excess(shapes, reference, narrowed=0.0) -> list[float]:
    columns = []
    for k in range(2):
        left, first = [row[k] for row in reference], None
        for _ in range(3):
            middle = statistics.median(left)
            spread = 1.4826 * statistics.median([abs(value - middle) for value in left])
            spread = min(spread, statistics.pstdev(left))
            first = spread if first is None else first
            left = [value for value in left if value <= middle + 2.5 * spread]
        spread = max(spread, narrowed * first)
        columns.append([(row[k] - middle) / max(spread, 0.25) / (1.5 if k else 1.0) for row in shapes])
    return [max(pair) for pair in zip(*columns, strict=True)]


def usual_of(shapes) -> Usual:
    usual = Usual()
    usual.add(np.asarray(shapes))
    return usual


def shapes_of(seed, count, length=0.0, spread=0.5):
    return np.random.default_rng(seed).normal([length, -3.0], spread, size=(count, 2))


def test_the_shape_of_an_update_is_its_log_length_and_its_log_peak_beside_it():
    rows = [[3.0, -4.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, -7.0]]
    expected = []
    for row in rows:
        length = math.sqrt(sum(x * x for x in row))
        expected.append([math.log(length), math.log(max(abs(x) for x in row) / length)])
    np.testing.assert_allclose(update_shapes(torch.tensor(rows, dtype=torch.float64)), expected, atol=1e-12)


def test_shapes_of_single_precision_updates_are_finite_and_right():
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 1000)).astype(np.float32))
    np.testing.assert_allclose(update_shapes(rows), update_shapes(rows.double()), atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(exponent=st.integers(-30, 15))
def test_the_peak_does_not_depend_on_the_scale_of_an_update(exponent):
    row = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 1000)).astype(np.float32))
    expected = update_shapes(row)[0]
    found = update_shapes(row * 10.0**exponent)[0]
    assert found[1] == pytest.approx(expected[1], abs=1e-3)
    assert found[0] == pytest.approx(expected[0] + exponent * math.log(10), abs=1e-3)


def test_an_idle_client_is_neither_long_nor_peaked():
    updates = torch.from_numpy(np.random.default_rng(0).normal(size=(10, 1000)))
    updates[3] = 0
    shapes = update_shapes(updates)
    assert np.isfinite(shapes).all()
    assert Usual().excess(shapes)[3] <= 0


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 12), known=st.integers(0, 19))
def test_with_less_than_20_accepted_updates_a_round_is_compared_with_itself_too(seed, count, known):
    past, shapes = shapes_of(1, known), shapes_of(seed, count, spread=0.1)
    together = [*past.tolist(), *shapes.tolist()]
    assert usual_of(past).excess(shapes).tolist() == pytest.approx(literal_excess(shapes, together))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(3, 12), known=st.integers(20, 60))
def test_later_it_is_compared_with_accepted_updates(seed, count, known):
    past = shapes_of(1, known)
    shapes = shapes_of(seed, count, spread=0.1)
    shapes[0, 0] = 20.0
    assert usual_of(past).excess(shapes).tolist() == pytest.approx(literal_excess(shapes, past, narrowed=0.9))


def test_shapes_that_hardly_vary_are_taken_to_vary_a_little():
    past = [[1.0, -3.0]] * 30
    shapes = np.array([[1.0, -3.0], [1.4, -3.0], [1.0, -2.2], [-0.2, -9.0]])
    assert usual_of(past).excess(shapes).tolist() == pytest.approx([0.0, 0.4 / 0.25, 0.8 / 0.25 / 1.5, -1.2 / 0.25])


def test_the_excess_of_a_single_update_of_a_round_counts_for_less():
    past, shapes = shapes_of(0, 100), shapes_of(1, 10)
    shapes[3, 0] = 20.0
    expected = literal_excess(shapes, past, narrowed=0.9)
    assert usual_of(past).excess(shapes).tolist() == pytest.approx(expected)
    expected[3] /= 1.4
    assert usual_of(past).excess(shapes, 4.0).tolist() == pytest.approx(expected)
    shapes[5, 0] = 20.0
    expected = literal_excess(shapes, past, narrowed=0.9)
    assert usual_of(past).excess(shapes, 4.0).tolist() == pytest.approx(expected)


def test_where_honest_updates_are_of_two_kinds_the_longer_ones_stay_usual():
    past = np.concatenate([shapes_of(0, 60, spread=0.2), shapes_of(1, 40, length=1.2, spread=0.2)])
    shapes = np.concatenate([shapes_of(2, 6, spread=0.2), shapes_of(3, 4, length=1.3, spread=0.1)])
    assert (usual_of(past).excess(shapes) <= CONFIG.outlier_excess).all()


def test_attackers_who_are_many_in_the_first_round_do_not_widen_what_is_usual():
    shapes = shapes_of(2, 10, length=-7.0, spread=0.9)
    shapes[:, 1] = -2.0
    shapes[[2, 5, 8], 0] = 0.0
    assert np.flatnonzero(Usual().excess(shapes) > CONFIG.outlier_excess).tolist() == [2, 5, 8]


def test_attackers_with_a_bad_record_who_are_most_of_a_round_do_not_make_themselves_usual():
    usual = usual_of(shapes_of(0, 100, spread=0.3))
    shapes = shapes_of(1, 10, spread=0.3)
    shapes[:6, 0] += 3.0
    excess = usual.excess(shapes, suspects=np.arange(10) < 3)
    assert np.flatnonzero(excess > CONFIG.outlier_excess).tolist() == list(range(6))


def test_honest_clients_are_heard_again_although_attackers_with_short_updates_were_most_of_the_first_rounds():
    usual = usual_of(shapes_of(0, 100, length=-1.0, spread=0.1))
    shapes = shapes_of(1, 10, length=1.0, spread=0.3)
    shapes[:4, 0] = -1.0
    found_out = np.arange(10) < 4
    assert (usual.excess(shapes, suspects=found_out) <= CONFIG.outlier_excess).all()


def test_attackers_under_noise_who_are_most_of_the_first_round_do_not_make_honest_clients_outliers():
    shapes = shapes_of(1, 10, length=0.5, spread=0.3)
    shapes[:7] = [3.6, -5.4]
    assert np.flatnonzero(Usual().excess(shapes) > CONFIG.outlier_excess).tolist() == list(range(7))


def test_nor_of_a_later_round():
    shapes = shapes_of(1, 10, length=0.5, spread=0.3)
    shapes[:8] = [3.6, -5.4]
    for known in (7, 100):
        usual = usual_of(shapes_of(0, known, length=0.5, spread=0.3))
        assert np.flatnonzero(usual.excess(shapes) > CONFIG.outlier_excess).tolist() == list(range(8))


@settings(max_examples=200, deadline=None)
@given(
    lower=st.lists(st.floats(-2, 0), min_size=1, max_size=8),
    upper=st.lists(st.floats(0, 2), min_size=0, max_size=8),
    apart=st.floats(0, 5),
    least=st.integers(1, 4),
)
def test_lengths_come_in_two_groups_if_nobody_is_nearer_to_the_other_than_to_all_of_its_own(lower, upper, apart, least):
    lengths = np.array([*lower, *(length + apart for length in upper)])
    expected = [True] * len(lengths)
    for border in sorted(lengths):
        short, long = lengths[lengths <= border], lengths[lengths > border]
        if len(short) < least or not len(long):
            continue
        nearest = min(abs(a - b) for a in short for b in long)
        furthest = max(abs(a - b) for group in (short, long) for a in group for b in group)
        if nearest > furthest and nearest > math.log(4):
            expected = [length <= border for length in lengths]
    assert shorter_ones(lengths, least).tolist() == expected


def test_a_whole_round_of_longer_updates_is_compared_with_itself():
    usual = usual_of(shapes_of(0, 100))
    shapes = shapes_of(1, 10, length=40.0)
    assert usual.excess(shapes).tolist() == pytest.approx(literal_excess(shapes, shapes))


def test_a_round_of_longer_updates_is_compared_with_itself_although_one_is_longer_by_far():
    # The learning rate went up threefold, and somebody attacks with an update 100 times as long.
    usual = usual_of(shapes_of(0, 100, spread=0.05))
    shapes = shapes_of(1, 10, length=math.log(3), spread=0.05)
    shapes[4, 0] += math.log(100)
    refused = usual.excess(shapes) > CONFIG.outlier_excess
    assert np.flatnonzero(refused).tolist() == [4]


def test_a_round_of_shorter_updates_exceeds_nothing():
    usual = usual_of(shapes_of(0, 100, spread=0.1))
    assert (usual.excess(shapes_of(1, 10, length=-5.0, spread=0.1)) < 3).all()


def test_only_the_last_200_accepted_updates_are_remembered():
    usual = usual_of([[float(i), 0.0] for i in range(150)])
    usual.add(np.array([[float(i), 0.0] for i in range(150, 230)]))
    assert usual.seen == [(float(i), 0.0) for i in range(30, 230)]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), known=st.integers(1, 99), count=st.integers(1, 9), longer=st.floats(-2, 3))
def test_updates_are_clipped_to_the_usual_length_and_follow_the_rounds_lower_quartile(seed, known, count, longer):
    past = shapes_of(seed, known)
    usual = usual_of(past)
    norms = np.exp(shapes_of(seed + 1, count, length=longer)[:, 0])
    median, quartile = math.exp(statistics.median(past[:, 0].tolist())), np.percentile(norms, 25)
    assert usual.length(norms) == pytest.approx(median)
    expected = 0.3 * quartile if known < 50 else sorted([median, quartile, 2 * median])[1]
    assert usual.limit(norms) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("spread", "count", "unlike"), [(0.4, 200, False), (0.7, 200, False), (1.2, 200, True), (1.2, 19, False)]
)
def test_clients_are_unlike_where_the_lengths_of_many_accepted_updates_differ_much(spread, count, unlike):
    past = shapes_of(0, count, spread=spread)
    deviation = 1.4826 * statistics.median(abs(x - statistics.median(past[:, 0])) for x in past[:, 0])
    assert usual_of(past).unlike() == unlike == (deviation > 0.9 and count >= 20)


def test_a_quarter_of_the_clients_cannot_make_the_others_look_unlike():
    past = shapes_of(0, 200, spread=0.4)
    past[:50, 0] += np.linspace(0, 20, 50)
    assert not usual_of(past).unlike()


def test_before_anything_was_accepted_the_rounds_median_is_usual():
    assert Usual().length(np.array([1.0, 2.0, 6.0])) == 2


@settings(max_examples=100, deadline=None)
@given(
    suspicion=st.lists(st.floats(0, 1), min_size=1, max_size=6),
    scores=st.lists(st.floats(-1, 1), min_size=6, max_size=6),
    weight=st.floats(0, 20),
)
def test_who_is_more_likely_than_not_an_attacker_is_taken_for_one(suspicion, scores, weight):
    expected = []
    for probability, score in zip(suspicion, scores, strict=False):
        bounded = min(max(probability, 1e-6), 1 - 1e-6)
        expected.append(math.log(bounded / (1 - bounded)) + weight * max(0.0, -score) > 0)
    found = suspected(np.array(suspicion), np.array(scores[: len(suspicion)]), weight)
    assert found.tolist() == expected


def test_a_good_record_does_not_excuse_and_a_bad_one_makes_doubt_enough():
    suspicion = np.array([0.6, 0.6, 0.4, 0.4, 0.5, 0.0])
    scores = np.array([1.0, -1.0, 1.0, -1.0, 0.0, -1.0])
    assert suspected(suspicion, scores, 3.0).tolist() == [True, True, False, True, False, False]


def test_the_worst_record_condemns_nobody_by_itself():
    assert not suspected(np.zeros(1), np.array([-1.0]), CONFIG.record_weight).any()


@given(score=st.floats(-1, 1), suspicion=st.floats(0, 1), fall=st.floats(0.01, 1), rise=st.floats(0.01, 1))
def test_scores_move_by_a_share_of_the_way_and_stay_between_minus_one_and_one(score, suspicion, fall, rise):
    goal = (1 - suspicion) * 1.0 + suspicion * -1.0
    share = fall if goal < score else rise * (1 + score) if score < 0 else rise
    moved = float(moved_scores(np.array([score]), np.array([suspicion]), fall, rise)[0])
    assert moved == pytest.approx((1 - share) * score + share * goal)
    assert -1 - 1e-12 <= moved <= 1 + 1e-12


def test_scores_by_hand():
    found = moved_scores(np.array([0.0, 0.0, 0.5, -0.8]), np.array([0.0, 1.0, 0.5, 0.25]), 0.3, 0.1)
    assert found.tolist() == pytest.approx([0.1, -0.3, 0.35, -0.774])


def length(poison=1.0, accepted=100.0, usual=2.0, left=100.0, **settings):
    return elimination_length(poison, accepted, usual, left, configure("default", settings))


def test_the_elimination_is_the_rate_of_what_already_is_in():
    # Half a usual update of at most 8: fifteen sixteenths are in.
    assert length() == pytest.approx(0.5 * (1 - 0.5 / 8) * 1.0)
    assert length(elimination_rate=0.1) == pytest.approx(0.1 * (1 - 0.5 / 8) * 1.0)


def test_the_malicious_mean_is_clipped_to_a_usual_update():
    assert length(poison=6.0) == pytest.approx(0.5 * (1 - 3 / 8) * 2.0)


def test_the_elimination_is_bounded_by_the_step_of_the_accepted():
    assert length(accepted=0.05) == pytest.approx(2 * 0.05)
    assert length(accepted=0.05, elimination_bound=1.0) == pytest.approx(0.05)
    assert length(accepted=0.0) == 0


def test_the_elimination_takes_out_no_more_than_is_left():
    assert length(poison=2.0, left=0.07) == pytest.approx(0.07)
    assert length(poison=2.0, left=0.0) == 0
    assert length(left=-5.0) == 0


@pytest.mark.parametrize(("poison", "expected"), [(0.01, 0.03), (0.02, 0.06), (1.0, 3.0), (1.5, 1.5), (1.98, 0.06)])
def test_three_steps_of_attackers_who_take_short_ones_are_taken_out_in_any_case(poison, expected):
    # A usual update is 2 long. What was taken out before counts.
    assert length(poison=poison, left=0.0, elimination_rate=1.0, far_pull=1e9) == pytest.approx(min(expected, poison))
    assert length(poison=poison, left=-expected + 0.001, elimination_rate=1.0, far_pull=1e9) == pytest.approx(0.001)
    assert length(poison=poison, left=-expected) == pytest.approx(0)


@pytest.mark.parametrize("poison", [16.0, 16.1, 1e30])
def test_nothing_is_taken_out_where_attackers_still_pull_far(poison):
    assert length(poison=poison) == 0


def test_nothing_is_taken_out_before_a_usual_length_is_known():
    assert length(usual=0.0) == 0
    assert length(usual=math.nan) == 0


@given(
    poison=st.floats(0, 1e6),
    accepted=st.floats(0, 1e6),
    usual=st.floats(0, 1e6),
    left=st.floats(-1e6, 1e6),
    rate=st.floats(0, 1),
    bound=st.floats(0, 100),
    far=st.floats(0.1, 100),
)
def test_the_elimination_keeps_all_its_limits(poison, accepted, usual, left, rate, bound, far):
    settings = {"elimination_rate": rate, "elimination_bound": bound, "far_pull": far}
    found = length(poison, accepted, usual, left, **settings)
    assert found >= 0
    assert found <= rate * min(poison, usual)
    assert found <= bound * accepted
    assert found <= max(0.0, left + 3 * max(0.0, min(poison, usual - poison))) * (1 + 1e-9)
    assert found == 0 or poison < far * usual


def before(poison=1.0, usual=2.0, alike=0.0, **settings):
    return poisoned_before(poison, usual, alike, configure("default", settings))


def test_what_came_in_before_by_hand():
    # Half a usual update of at most 3, a cosine of 0.15 of at most 0.6: five sixths of three quarters of the allowance.
    assert before(alike=0.15) == pytest.approx(20 * 2.0 * (5 / 6) * 0.75)
    assert before(alike=0.15, elimination_allowance=1.0) == pytest.approx(2.0 * (5 / 6) * 0.75)
    assert before(poison=0.0) == pytest.approx(20 * 2.0)


@pytest.mark.parametrize("case", [{"alike": 0.6}, {"alike": 1.0}, {"poison": 6.0}, {"poison": 1e30}, {"usual": 0.0}])
def test_nothing_came_in_before_where_attackers_pull_far_or_alike(case):
    assert before(**case) == 0


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(2, 6), common=st.floats(0, 3))
def test_the_common_cosine_is_that_of_updates_of_equal_length_less_the_accepted_step(seed, count, common):
    rng = np.random.default_rng(seed)
    step = rng.normal(size=500) * rng.uniform(0, 2)
    beyond = rng.normal(size=(count, 500)) + common * rng.normal(size=500)
    beyond /= np.linalg.norm(beyond, axis=1, keepdims=True)
    pairs = [beyond[i] @ beyond[j] for i in range(count) for j in range(i)]
    updates = beyond + step
    poison = torch.from_numpy(updates.mean(axis=0) - step)
    found = common_cosine(poison, torch.from_numpy(step), np.linalg.norm(updates, axis=1))
    assert found == pytest.approx(max(0.0, np.mean(pairs)), abs=1e-9)


@given(seed=st.integers(0, 2**32 - 1), shared=st.floats(-2, 2))
def test_opposition_is_the_turned_cosine_of_the_accepted_and_the_malicious_step(seed, shared):
    rng = np.random.default_rng(seed)
    malicious, noise = rng.normal(size=(2, 50))
    accepted = noise + shared * malicious
    cosine = sum(accepted * malicious) / math.sqrt(sum(accepted**2) * sum(malicious**2))
    found = opposition(torch.from_numpy(malicious - accepted), torch.from_numpy(accepted))
    assert found == pytest.approx(-cosine, abs=1e-9)


@pytest.mark.parametrize(("malicious", "accepted"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_who_sends_nothing_opposes_nobody(malicious, accepted):
    assert opposition(torch.full((3,), malicious - accepted), torch.full((3,), accepted)) == 0


@pytest.mark.parametrize(("poison", "expected"), [(0.0, 0.0), (30.0, 3.0), (200.0, 20.0), (1e30, 20.0)])
def test_with_support_a_tenth_of_the_pull_is_taken_out_but_ten_usual_updates_at_most(poison, expected):
    assert supported_length(poison, usual=2.0) == pytest.approx(expected)


def test_of_one_attacker_nothing_is_known_of_how_alike_they_are():
    assert common_cosine(torch.ones(3), torch.zeros(3), np.array([math.sqrt(3)])) == 1
    assert common_cosine(torch.zeros(3), torch.zeros(3), np.zeros(2)) == 1


def community(evidence, belonging, agreement_=3.0) -> Community:
    return Community(evidence, 0.0, np.asarray(belonging, float), agreement_)


def judgement_of(count=5, *, malicious=(), held_out=(), communities=(), twins=None, excess=None, known=9, scores=None):
    """A judgement on the last `count` submissions of a window that the communities describe."""
    inside = [next((one for one in communities if one.members[-count:][row]), None) for row in range(count)]
    suspicion = np.zeros(count)
    for one in communities:
        suspicion = np.maximum(suspicion, one.belonging[-count:])
    examination = Examination(
        suspicion,
        inside,
        list(twins or [None] * count),
        np.zeros(count) if excess is None else np.asarray(excess, float),
        list(communities),
        np.zeros(count),
        known,
        np.zeros(count, bool),
    )
    bad = np.isin(np.arange(count), malicious)
    accepted = ~bad & ~np.isin(np.arange(count), held_out)
    return Judgement(examination, bad, accepted, np.zeros(count) if scores is None else np.asarray(scores, float))


def explained(judgement, clients=("a", "b", "c", "d", "e")):
    return explain_examination(clients, judgement, np.linspace(0.1, 0.5, len(clients)), CONFIG)


def test_verdicts_carry_the_score_the_suspicion_the_weight_and_the_communitys_number():
    communities = [community(20.0, [0, 0.9, 0, 0, 0]), community(12.0, [0, 0, 0.2, 0.7, 0])]
    verdicts = explained(judgement_of(malicious=[1, 3], communities=communities, scores=[0.1, -0.2, 0.3, -0.4, 0.5]))
    assert [one.cluster for one in verdicts.values()] == [0, 1, 0, 2, 0]
    assert [one.distance for one in verdicts.values()] == [0, 0.9, 0.2, 0.7, 0]
    assert [one.benign_score for one in verdicts.values()] == [0.1, -0.2, 0.3, -0.4, 0.5]
    assert [one.weight for one in verdicts.values()] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert [one.decision[0] for one in verdicts.values()] == list("amama")


def test_two_communities_of_equal_evidence_are_told_apart():
    communities = [community(20.0, [1, 1, 0, 0, 0]), community(20.0, [0, 0, 1, 1, 0])]
    verdicts = explained(judgement_of(malicious=[0, 1, 2, 3], communities=communities))
    assert [one.cluster for one in verdicts.values()] == [1, 1, 2, 2, 0]


def test_a_reason_names_how_many_others_point_the_same_way():
    belonging = [0.9, 0.9, 0.9, 0.1, 0, 0.8, 0, 0, 0]
    reason = explained(judgement_of(malicious=[1], communities=[community(23.4, belonging, 4.56)]))["b"].reason
    assert "points the same way as 3 others" in reason
    assert "agreement 4.6" in reason
    assert "evidence 23" in reason


def test_a_reason_names_the_length_before_everything_else():
    reason = explained(
        judgement_of(
            malicious=[2],
            communities=[community(20.0, [0, 0, 1, 0, 0])],
            twins=[None, None, 0, None, None],
            excess=[0, 0, 41.3, 0, 0],
        )
    )["c"].reason
    assert "far longer or more peaked than usual (41 standard deviations)" in reason


def test_a_reason_names_the_twin():
    reason = explained(judgement_of(malicious=[4], twins=[None, None, None, None, 1]))["e"].reason
    assert "agrees almost completely with that of client 'b'" in reason


def test_a_reason_names_the_record_where_it_decided():
    judgement = judgement_of(malicious=[0], communities=[community(20.0, [0.4, 0, 0, 0, 0])])
    reason = explained(judgement)["a"].reason
    assert "probability 0.40" in reason
    assert "record is poor" in reason


def test_a_client_with_a_poor_record_is_held_out_and_told_its_score():
    verdict = explained(judgement_of(held_out=[2], scores=[0, 0, -0.49, 0, 0]))["c"]
    assert verdict.decision == "held_out"
    assert "score -0.49" in verdict.reason


def test_clients_accepted_without_anything_to_compare_with_are_told_so():
    assert "unexamined" in explained(judgement_of(2, known=2), ("a", "b"))["a"].reason
    assert "unexamined" not in explained(judgement_of(5, known=5))["a"].reason


def test_every_reason_is_a_sentence():
    judgement = judgement_of(
        malicious=[0, 1, 2], held_out=[3], twins=[None, 0, None, None, None], excess=[9, 0, 0, 0, 0]
    )
    reasons = [verdict.reason for verdict in explained(judgement).values()]
    reasons += [verdict.reason for verdict in explained(judgement_of(1, known=1), ("a",)).values()]
    assert len(set(reasons)) == 6
    for reason in reasons:
        assert reason.endswith(".")
        assert reason[0].isupper()


def window_of(*rounds) -> Window:
    window = Window(1000)
    for number, (clients, sketches) in enumerate(rounds, start=1):
        unit = sketches / np.maximum(np.linalg.norm(sketches, axis=-1, keepdims=True), 1e-12)
        window.add(number, clients, unit.astype(np.float32))
    return window


def examined(window, excess) -> Examination:
    """Of a round whose updates exceed the usual so far."""
    nobody = np.zeros(len(window.clients), dtype=bool)
    shapes = np.stack([0.25 * excess, np.full(len(excess), -3.0)], axis=1)
    return examine(window, nobody, shapes, usual_of([[0.0, -3.0]] * 30), CONFIG)


def noise(count, seed, layers=2, width=512):
    return np.random.default_rng(seed).normal(size=(count, layers, width))


@pytest.mark.parametrize(("unlike", "asked"), [(False, (15.0, 1.5)), (True, (15.0, 2.0))])
def test_where_clients_are_unlike_a_community_must_lead_by_more(monkeypatch, unlike, asked):
    seen = []
    monkeypatch.setattr(
        "g2uardfl.defense.agreement.examination.find_communities",
        lambda graph, people, rounds, evidence, lead, convicted, sketches: seen.append((evidence, lead)) or [],
    )
    window = window_of((range(6), noise(6, seed=0)))
    usual = usual_of(shapes_of(0, 100, spread=2.0 if unlike else 0.5))
    examine(window, np.zeros(6, dtype=bool), shapes_of(1, 6), usual, CONFIG)
    assert seen == [asked]


def in_pairs(*pairs, count=6):
    """The agreement graph of a round in which only these pairs of clients agree."""
    graph = np.zeros((count, count))
    for first, second in pairs:
        graph[first, second] = graph[second, first] = 5.0
    return graph


def test_twins_are_those_who_agree_with_another_client_of_the_round():
    nobody, once = np.zeros(6, dtype=bool), np.ones(6)
    assert twins_of(in_pairs((1, 4)), once, nobody, least=4.0) == [None, 4, None, None, 1, None]
    assert twins_of(in_pairs((1, 4)), once, nobody, least=6.0) == [None] * 6


@pytest.mark.parametrize(("pairs", "told"), [(0, True), (1, True), (2, False)])
def test_twins_are_nothing_unusual_if_many_others_have_one_in_another_round(pairs, told):
    """Forty submissions of four rounds, of whom some in the first two agree with each other."""
    nobody, rounds = np.zeros(40, dtype=bool), np.arange(40) // 10
    graph = in_pairs((31, 34), *((place, 10 + place) for place in range(pairs)), count=40)
    twins = [None] * 10
    if told:
        twins[1], twins[4] = 4, 1
    assert twins_of(graph, rounds, nobody, least=4.0) == twins
    # Attackers of one round agree with each other, or with those of this round.
    within = in_pairs((31, 34), (0, 1), (2, 3), (4, 31), (14, 31), count=40)
    assert twins_of(within, rounds, nobody, least=4.0)[1] == 4
    assert twins_of(graph, rounds, rounds == 1, least=4.0)[1] == 4


def test_most_of_a_round_are_not_twins_for_it_is_the_honest_who_learn_the_same():
    nobody, once = np.zeros(6, dtype=bool), np.ones(6)
    three, four = in_pairs((0, 1), (1, 2)), in_pairs((0, 1), (2, 3))
    assert twins_of(three, once, nobody, least=4.0) == [1, 0, 1, None, None, None]
    assert twins_of(four, once, nobody, least=4.0) == [None] * 6


def test_clients_with_a_bad_record_do_not_make_a_majority():
    convicted, once = np.array([True, True, False, False, False, False]), np.ones(6)
    assert twins_of(in_pairs((0, 1), (2, 3)), once, convicted, least=4.0) == [1, 0, 3, 2, None, None]
    assert twins_of(in_pairs((0, 1)), once, np.ones(6, dtype=bool), least=4.0) == [1, 0, None, None, None, None]


def test_the_examination_looks_at_the_last_round_and_marks_the_whole_window():
    backdoor = noise(1, 99)
    rounds = []
    for number in range(6):
        sketches = noise(10, number)
        sketches[:2] += 1.5 * backdoor
        rounds.append(([*range(2 * number, 2 * number + 2), *range(100 + 8 * number, 108 + 8 * number)], sketches))
    found = examined(window_of(*rounds), np.zeros(10))
    assert np.flatnonzero(found.suspicion > 0.5).tolist() == [0, 1]
    assert [one is not None for one in found.community] == [True, True] + [False] * 8
    assert np.flatnonzero(found.belonging > 0.5).tolist() == sorted([*range(0, 60, 10), *range(1, 60, 10)])
    assert found.known == 60


def test_two_clients_of_one_round_who_agree_almost_completely_are_twins():
    sketches = noise(10, 0)
    sketches[7] = sketches[2]
    window = window_of((list(range(10)), sketches))
    graph = agreement(window)
    found = examined(window, np.zeros(10))
    for row in range(10):
        agrees = {other: graph[row, other] for other in range(10) if graph[row, other] > CONFIG.twin_agreement}
        assert found.twin[row] == (max(agrees, key=agrees.get) if agrees else None)
    assert found.twin[2] == 7
    assert found.twin[7] == 2
    assert found.suspicion[[2, 7]].tolist() == [1, 1]
    assert found.suspicion.sum() == pytest.approx(2)


@pytest.mark.parametrize(("times", "suspected"), [(50, 1), (200, 0)])
def test_twins_with_next_to_nothing_to_learn_are_not_suspected(times, suspected):
    sketches = noise(10, 0)
    sketches[7] = sketches[2]
    shapes = np.full((10, 2), [1.0, -3.0])
    shapes[[2, 7], 0] -= math.log(times)
    window = window_of((list(range(10)), sketches))
    found = examine(window, np.zeros(10, dtype=bool), shapes, usual_of([[1.0, -3.0]] * 30), CONFIG)
    assert (found.twin[2], found.twin[7]) == (7, 2)
    assert found.suspicion[[2, 7]].tolist() == [suspected] * 2


def test_a_client_is_no_twin_of_its_own_past():
    sketches = noise(10, 0)
    found = examined(window_of((list(range(10)), sketches), (list(range(10)), sketches)), np.zeros(10))
    assert found.twin == [None] * 10
    assert found.suspicion.max() < 0.5


def test_the_further_beyond_the_excess_the_surer_the_suspicion():
    excess = np.array([0.0, 5.0, 3.9, -8.0, 100.0, 0, 0, 0])
    sketches = noise(8, 3)
    sketches[7] = sketches[3]
    found = examined(window_of((list(range(8)), sketches)), excess)
    np.testing.assert_allclose(found.excess, np.maximum(excess, 0))
    assert found.suspicion[[1, 4]].tolist() == pytest.approx([1 - 4.0 / (2 * 5.0), 1 - 4.0 / (2 * 100.0)])
    assert found.suspicion[[3, 7]].tolist() == [1, 1]
    assert (found.suspicion[[0, 2, 5, 6]] < 0.5).all()
    assert found.twin == [None, None, None, 7, None, None, None, 3]
    assert found.community == [None] * 8


def test_an_update_too_long_that_agrees_with_nobody_is_noise():
    sketches = noise(10, 3)
    sketches[4] = sketches[5]
    window = window_of((list(range(100, 110)), noise(10, 4)), (list(range(10)), sketches))
    excess = np.array([0.0, 9.0, 0, 0, 9.0, 9.0, 0, 0, 0, 0])
    assert np.flatnonzero(examined(window, excess).noise).tolist() == [11]
    shapes = np.stack([0.25 * excess, np.full(10, -3.0)], axis=1)
    first = examine(window, np.zeros(20, dtype=bool), shapes, usual_of([[0.0, -3.0]] * 19), CONFIG)
    assert (first.excess[[1, 4, 5]] > CONFIG.outlier_excess).all()
    assert not first.noise.any()


def test_what_is_usual_is_not_said_by_attackers_of_a_community():
    # Six of the first round's ten clients take short steps, all the same way.
    sketches = noise(10, 0)
    sketches[:6] += 3 * noise(1, 99)
    window = window_of((list(range(10)), sketches))
    shapes = shapes_of(1, 10, length=0.0, spread=0.1)
    shapes[:6, 0] = -3.0
    found = examine(window, np.zeros(10, dtype=bool), shapes, Usual(), CONFIG)
    assert (found.belonging > 0.5).tolist() == [True] * 6 + [False] * 4
    assert np.flatnonzero(found.suspicion > 0.5).tolist() == list(range(6))
    assert (Usual().excess(shapes)[6:] > CONFIG.outlier_excess).all()


def two_groups(seed, flat=-5.0, common=0.0, longer=7):
    """A round in which some take long steps, and the directions of all; the shorter ones learn the same."""
    shapes = shapes_of(seed, 10, length=0.0, spread=0.2)
    shapes[:, 1] = -3.0
    shapes[:longer] = [3.6, flat]
    sketches = noise(10, seed)
    sketches[:longer] += common * noise(1, seed + 100)
    sketches[longer:] += 3 * noise(1, seed + 200)
    return shapes, (sketches / np.linalg.norm(sketches, axis=-1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("seed", range(4))
def test_honest_clients_who_learn_the_same_are_no_community_beside_attackers_who_take_far_longer_steps(seed):
    shapes, sketches = two_groups(seed)
    found = examine(window_of((list(range(10)), sketches)), np.zeros(10, dtype=bool), shapes, Usual(), CONFIG)
    assert np.flatnonzero(found.suspicion > 0.5).tolist() == list(range(7))


@pytest.mark.parametrize(
    ("flat", "common", "accepted", "told"),
    [
        (-5.0, 0.0, [], True),  # noise: long and flat
        (-3.0, 0.0, [], False),  # who has nothing in common may be honest, and the others keep their steps short
        (-3.0, 3.0, [], True),  # no less in common than the others
        (-4.5, 0.0, [], False),  # not flat enough to be sure
        (-4.5, 0.0, [0.0], True),  # but enough where the steps of accepted clients were short
        (-5.0, 0.0, [0.0] * 8 + [3.7] * 2, False),  # so long steps have been accepted
    ],
)
def test_far_longer_steps_are_an_attack_if_they_are_flat_or_agree(flat, common, accepted, told):
    shapes, sketches = two_groups(1, flat, common)
    usual = Usual([(length, -3.0) for length in accepted])
    assert usual.far_longer(shapes, sketches).tolist() == [told] * 7 + [False] * 3


@pytest.mark.parametrize(
    ("length", "common", "accepted", "told"),
    [
        (3.6, 0.0, [], True),
        (0.5, 0.0, [], False),  # some of the others take longer steps
        (3.6, 3.0, [], False),  # the others have much in common, and may be the ones who attack
        (3.6, 3.0, [(0.0, -3.0)], True),  # who was accepted before took shorter steps, too
    ],
)
def test_noise_sets_apart_by_peaks_where_lengths_differ_much(length, common, accepted, told):
    shapes = np.stack([np.linspace(-5.0, 2.0, 10), np.full(10, -3.0)], axis=1)
    shapes[:4] = [length, -5.4]
    sketches = noise(10, 1)
    sketches[4:] += common * noise(1, 201)
    sketches /= np.linalg.norm(sketches, axis=-1, keepdims=True)
    assert Usual(accepted).far_longer(shapes, sketches.astype(np.float32)).tolist() == [told] * 4 + [False] * 6


@pytest.mark.parametrize(("longer", "told"), [(0, 0), (1, 0), (2, 2), (7, 7), (8, 0), (10, 0)])
def test_they_are_two_at_least_and_leave_three_others(longer, told):
    shapes, sketches = two_groups(1, longer=longer)
    assert np.count_nonzero(Usual().far_longer(shapes, sketches)) == told


def test_far_longer_steps_are_outliers_however_much_accepted_ones_vary():
    shapes, _ = two_groups(1)
    usual = usual_of([[length, -3.0] for length in np.linspace(-4.0, 2.0, 30)])
    assert not (usual.excess(shapes) > CONFIG.outlier_excess).any()
    excess = usual.excess(shapes, suspects=np.arange(10) < 7, longer=np.arange(10) < 7)
    assert np.flatnonzero(excess > CONFIG.outlier_excess).tolist() == list(range(7))


def test_only_members_of_communities_show_where_the_backdoor_lies():
    judgement = judgement_of(malicious=[0, 1, 4], communities=[community(20.0, [0, 1, 1, 0, 0])])
    assert judgement.colluding.tolist() == [False, True, False, False, False]


def test_where_most_clients_are_idle_the_others_are_not_called_long():
    updates = torch.zeros(10, 20)
    updates[:3] = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    usual = Usual()
    shapes = update_shapes(updates)
    for _ in range(12):
        assert usual.excess(shapes).max() < 4
        usual.add(shapes)
    assert usual.length(np.ones(1)) == pytest.approx(float(np.median(np.exp(shapes[:3, 0]))))


def test_a_round_of_idle_clients_exceeds_nothing():
    assert not Usual().excess(update_shapes(torch.zeros(4, 5))).any()
