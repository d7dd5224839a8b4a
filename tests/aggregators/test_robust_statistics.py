"""Median, trimmed mean, RFA and NDC against slow computations on whole weights, and against peers' mistakes."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.aggregators._coordinates import in_order
from g2uardfl.aggregators._distances import update_norms
from g2uardfl.aggregators.median import Median
from g2uardfl.aggregators.ndc import NDC
from g2uardfl.aggregators.rfa import RFA
from g2uardfl.aggregators.trimmed_mean import TrimmedMean, trimmed_clients
from g2uardfl.core.errors import ConfigError
from g2uardfl.core.updates import each_block
from helpers.models import batch_norm_model, perturbed
from helpers.rounds import assert_same_on_gpu, byzfl, decisions, flower, rounds, send, updates_of, vector

counts = st.lists(st.integers(0, 50), min_size=12, max_size=12)


def slow_trimmed_mean(points, trimmed):
    return [statistics.fmean(sorted(column)[trimmed : len(column) - trimmed]) for column in points.T.tolist()]


def slow_shares(examples):
    return [n / sum(examples) if sum(examples) else 1 / len(examples) for n in examples]


def slow_weiszfeld(points, shares, nu, most, tolerance):
    """The smoothed Weiszfeld algorithm on whole vectors."""

    def objective(z):
        return sum(share * np.linalg.norm(z - point) for share, point in zip(shares, points, strict=True))

    z = sum(share * point for share, point in zip(shares, points, strict=True))
    value = objective(z)
    for _ in range(most):
        weights = [share / max(nu, np.linalg.norm(z - point)) for share, point in zip(shares, points, strict=True)]
        z = sum(weight * point for weight, point in zip(weights, points, strict=True)) / sum(weights)
        before, value = value, objective(z)
        if abs(before - value) <= tolerance * value:
            break
    return z


@pytest.mark.parametrize("clients", range(1, 17))
def test_any_order_of_zeros_and_ones_is_sorted_and_so_is_everything_else(clients):
    """The zero-one principle: a network of comparisons that sorts all zeros and ones sorts all numbers."""
    numbers = torch.arange(2**clients)
    block = torch.stack([(numbers >> i) & 1 for i in range(clients)]).float()
    ones = block.sum(dim=0)
    expected = torch.stack([ones > clients - 1 - i for i in range(clients)]).float()
    assert torch.equal(in_order(block), expected)


@pytest.mark.parametrize("clients", [2, 16, 17, 100])
def test_sorting_leaves_the_updates_as_they_were(clients):
    for columns in (1, 5):
        block = torch.randn(clients, columns, generator=torch.Generator().manual_seed(0))
        before = block.clone()
        in_order(block)
        assert torch.equal(block, before)


def test_blocks_cover_every_column_once():
    updates = torch.arange(3.0 * 700_001).reshape(3, -1)
    assert torch.equal(each_block(updates, lambda block: block[2] - block[0]), updates[2] - updates[0])


@settings(deadline=None)
@given(updates=rounds(most=40), seed=st.integers(0, 99))
def test_median_is_the_median_of_each_parameter(updates, seed):
    start = np.random.default_rng(seed).normal(size=updates.shape[1])
    expected = [statistics.median(column) for column in (start + updates).T.tolist()]
    np.testing.assert_allclose(vector(send(Median(), updates, start=start)), expected, rtol=1e-9, atol=1e-9)


@settings(deadline=None)
@given(updates=rounds(most=40), share=st.floats(0, 0.5))
def test_trimmed_mean_leaves_out_both_ends_of_each_parameter(updates, share):
    trimmed = min(math.floor(share * len(updates) + 1e-9), (len(updates) - 1) // 2)
    result = send(TrimmedMean(trimmed_share=share), updates)
    np.testing.assert_allclose(vector(result), slow_trimmed_mean(updates, trimmed), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("clients", [9, 10, 33, 34])
def test_median_and_trimmed_mean_over_many_blocks_of_either_precision(dtype, clients):
    updates = updates_of("far apart", clients, 100_003, 1).astype(dtype)
    np.testing.assert_allclose(vector(send(Median(), updates)), np.median(updates.astype(float), axis=0), rtol=1e-6)
    ordered = np.sort(updates.astype(float), axis=0)
    expected = ordered[clients // 5 : clients - clients // 5].mean(axis=0)
    atol = 1e-5 * np.abs(updates).max() if dtype == np.float32 else 1e-9
    np.testing.assert_allclose(vector(send(TrimmedMean(), updates)), expected, rtol=1e-5, atol=atol)


def test_median_and_trimmed_mean_worked_by_hand():
    updates = [[1.0, -9.0], [2.0, 0.0], [4.0, 1.0], [900.0, 3.0]]
    assert vector(send(Median(), updates)).tolist() == [3.0, 0.5]
    assert vector(send(Median(), updates[:3])).tolist() == [2.0, 0.0]
    assert vector(send(TrimmedMean(trimmed_share=0.25), updates)).tolist() == [3.0, 0.5]
    assert vector(send(TrimmedMean(), [*updates, [5.0, 2.0]])).tolist() == [11 / 3, 1.0]


def test_an_even_median_lies_between_the_middle_two_and_not_at_the_lower():
    assert vector(send(Median(), [[1.0], [2.0]])).tolist() == [1.5]


def test_a_huge_value_that_is_trimmed_leaves_no_trace():
    """A sum of everything minus the extremes would lose the small numbers beside 1e15."""
    updates = np.array([[0.125], [0.25], [0.375], [0.5], [1e15]], dtype=np.float32)
    assert vector(send(TrimmedMean(), updates)).tolist() == [0.375]


def test_a_share_that_binary_numbers_miss_trims_the_full_count():
    assert int(0.29 * 100) == 28
    assert trimmed_clients(0.29, 100) == 29
    assert trimmed_clients(0.2, 10) == 2


@pytest.mark.parametrize("clients", range(1, 9))
def test_trimming_half_is_the_median_and_never_leaves_nothing(clients):
    updates = updates_of("random", clients, 4, clients)
    np.testing.assert_allclose(
        vector(send(TrimmedMean(trimmed_share=0.5), updates)), np.median(updates, axis=0), rtol=1e-12
    )


def test_where_nothing_can_be_trimmed_the_round_says_so():
    result = send(TrimmedMean(), [[1.0], [2.0], [9.0]])
    assert result.note == "Nothing was trimmed: 0.2 of 3 is less than one."
    assert vector(result).tolist() == [4.0]
    assert send(TrimmedMean(), np.ones((5, 2))).note == ""


@pytest.mark.parametrize("rule", [Median, TrimmedMean])
def test_claimed_samples_do_not_count_in_the_median_and_the_trimmed_mean(rule):
    updates = updates_of("random", 7, 3, 0)
    plain, claimed = send(rule(), updates), send(rule(), updates, [10**9, 0, 1, 1, 1, None, -3])
    np.testing.assert_array_equal(vector(plain), vector(claimed))
    assert decisions(claimed) == "aaaaaaa"


@settings(deadline=None)
@given(
    updates=rounds(),
    examples=counts,
    most=st.integers(1, 30),
    tolerance=st.sampled_from([0.1, 1e-3, 1e-6]),
    seed=st.integers(0, 99),
)
def test_rfa_is_the_smoothed_weiszfeld_algorithm_on_whole_vectors(updates, examples, most, tolerance, seed):
    start = np.random.default_rng(seed).normal(size=updates.shape[1])
    examples = examples[: len(updates)]
    rule = RFA(iterations=most, tolerance=tolerance)
    expected = slow_weiszfeld(start + updates, slow_shares(examples), 1e-5, most, tolerance)
    scale = 1 + np.median(np.linalg.norm(updates, axis=1))
    np.testing.assert_allclose(vector(send(rule, updates, examples, start)), expected, rtol=1e-4, atol=1e-4 * scale)


def test_rfa_worked_by_hand():
    """From the mean 2 of 0, 1 and 5 the distances are 2, 1, 3, so the weights are 1/2, 1, 1/3 over 11/6."""
    result = send(RFA(iterations=1), [[0.0], [1.0], [5.0]])
    assert [verdict.weight for verdict in result.verdicts.values()] == pytest.approx([3 / 11, 6 / 11, 2 / 11])
    assert vector(result)[0] == pytest.approx(16 / 11)
    assert result.verdicts[2].distance == pytest.approx(5 - 16 / 11)
    assert "it lies 3.545 from the geometric median" in result.verdicts[2].reason


def test_the_papers_settings_of_rfa_and_ndc_are_the_defaults():
    chosen = RFA().settings
    assert (chosen.smoothing, chosen.iterations, chosen.tolerance) == (1e-5, 500, 0.1)
    assert NDC().settings.threshold == 2.0


@settings(deadline=None)
@given(updates=rounds(), examples=counts)
def test_nothing_is_closer_to_all_than_the_geometric_median(updates, examples):
    shares = np.array(slow_shares(examples[: len(updates)]))
    z = vector(send(RFA(tolerance=0.0, iterations=2000), updates, examples[: len(updates)]))

    def objective(point):
        return shares @ np.linalg.norm(updates - point, axis=1)

    slack = 1e-3 * objective(z) + 1e-4
    assert objective(z) <= objective(shares @ updates) + slack
    assert all(objective(z) <= objective(update) + slack for update in updates)


def test_equal_sample_counts_do_not_collapse_into_one():
    """A set of the counts {3, 3, 1} would have two members, and the shares would not sum to 1."""
    result = send(RFA(iterations=1), [[0.0], [1.0], [5.0]], [3, 3, 1])
    weights = [verdict.weight for verdict in result.verdicts.values()]
    mean = (3 * 0 + 3 * 1 + 5) / 7
    expected = np.array([3 / mean, 3 / (mean - 1), 1 / (5 - mean)])
    assert weights == pytest.approx(expected / expected.sum())


def test_rfa_starts_from_the_weighted_mean_and_not_from_the_global_model():
    """One step from zero would weigh by 1/|x_i|, and give 3 / (1/1 + 1/2 + 1/9)."""
    assert vector(send(RFA(iterations=1), [[1.0], [2.0], [9.0]]))[0] != pytest.approx(3 / (1 + 1 / 2 + 1 / 9))
    distances = np.array([3.0, 2.0, 5.0])
    assert vector(send(RFA(iterations=1), [[1.0], [2.0], [9.0]]))[0] == pytest.approx(
        (np.array([1.0, 2.0, 9.0]) / distances).sum() / (1 / distances).sum()
    )


def test_rfa_sees_one_vector_and_not_a_geometric_median_for_each_layer():
    """The first layer alone would go to 0, where two of three agree."""
    updates = np.array([[0.0, 0.0], [0.0, 10.0], [6.0, 5.0]])
    z = vector(send(RFA(tolerance=1e-12, iterations=5000), updates))
    assert z[0] > 1
    np.testing.assert_allclose(z, slow_weiszfeld(updates, [1 / 3] * 3, 1e-5, 5000, 1e-12), rtol=1e-6)


def test_rfa_stops_when_the_objective_settles():
    updates = updates_of("random", 10, 20, 4)
    lax, strict = vector(send(RFA(tolerance=0.5), updates)), vector(send(RFA(tolerance=1e-12), updates))
    np.testing.assert_allclose(lax, vector(send(RFA(iterations=1, tolerance=0.0), updates)), rtol=1e-12)
    assert np.abs(lax - strict).max() > 1e-6


def test_rfa_gives_a_huge_outlier_next_to_no_weight():
    updates = updates_of("huge outlier", 11, 6, 5)
    result = send(RFA(tolerance=0.0), updates)
    assert result.verdicts[10].weight < 1e-10
    assert np.linalg.norm(vector(result)) < 10


def test_the_papers_tolerance_stops_before_a_huge_outlier_has_lost_its_pull():
    """One part in ten of an objective that the outlier makes huge is far more than the others are apart."""
    updates = updates_of("huge outlier", 11, 6, 5)
    z = vector(send(RFA(), updates))
    np.testing.assert_allclose(z, slow_weiszfeld(updates, [1 / 11] * 11, 1e-5, 500, 0.1), rtol=1e-9)
    assert np.linalg.norm(z) > 1e6


def test_rfa_tells_tiny_updates_of_a_large_float32_model_apart():
    rng = np.random.default_rng(0)
    start = (rng.normal(size=50_000) * 0.2).astype(np.float32)
    updates = (1e-4 * rng.normal(size=(5, 50_000)) * np.array([1, 1, 1, 1, 30])[:, None]).astype(np.float32)
    result = send(RFA(), updates, start=start)
    sent = np.stack([start + update for update in updates]).astype(float) - start
    expected = slow_weiszfeld(sent, [0.2] * 5, 1e-5, 500, 0.1)
    np.testing.assert_allclose(vector(result).astype(float) - start, expected, atol=6e-8)


def test_clients_without_samples_carry_no_weight():
    for rule in (RFA(), NDC()):
        result = send(rule, [[1.0], [2.0], [30.0]], [1, 1, 0])
        assert decisions(result) == "aah"
        assert vector(result)[0] == pytest.approx(1.5)
        assert "no samples" in result.verdicts[2].reason
        everybody = send(rule, [[1.0], [2.0]], [0, 0])
        assert decisions(everybody) == "aa"
        assert vector(everybody)[0] == pytest.approx(1.5)


def test_a_single_sample_anywhere_outweighs_those_who_have_none():
    for rule in (RFA(), NDC()):
        assert vector(send(rule, [[1.0], [1.5]], [1, 0])).tolist() == [1.0]


@settings(deadline=None)
@given(updates=rounds(), examples=counts, threshold=st.floats(0.01, 100), seed=st.integers(0, 99))
def test_ndc_clips_each_update_and_averages_by_samples(updates, examples, threshold, seed):
    start = np.random.default_rng(seed).normal(size=updates.shape[1])
    examples = examples[: len(updates)]
    expected = start.copy()
    for share, update in zip(slow_shares(examples), updates, strict=True):
        expected += share * update / max(1, math.sqrt(sum(x * x for x in update)) / threshold)
    got = vector(send(NDC(threshold=threshold), updates, examples, start))
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-3 if np.abs(updates).max() > 1e6 else 1e-9)


def test_ndc_worked_by_hand():
    result = send(NDC(), [[1.0, 0.0], [30.0, 40.0]])
    np.testing.assert_allclose(vector(result), [(1 + 1.2) / 2, 0.8])
    assert result.verdicts[0].reason == "Accepted: its norm 1 was left as it was."
    assert result.verdicts[1].reason == "Accepted: its norm 50 was clipped to 2."
    assert result.verdicts[1].weight == pytest.approx(0.5 * 2 / 50)


def test_ndc_neither_measures_nor_clips_running_statistics():
    model = batch_norm_model()
    still = {name: value.clone() for name, value in model.items()}
    far = {**still, "1.running_mean": still["1.running_mean"] + 1000}
    moved = {**far, "0.weight": still["0.weight"] + 0.1}
    result = NDC().aggregate(model, {0: moved, 1: far})
    assert "left as it was" in result.verdicts[0].reason
    torch.testing.assert_close(result.weights["1.running_mean"], far["1.running_mean"])
    torch.testing.assert_close(result.weights["0.weight"], still["0.weight"] + 0.05)


@pytest.mark.parametrize("size", [1, 255, 256, 257, 3_000_001])
def test_norms_of_float32_updates_do_not_lose_digits_with_length(size):
    updates = torch.randn(2, size, generator=torch.Generator().manual_seed(0)) + 1
    exact = np.linalg.norm(updates.double().numpy(), axis=1)
    np.testing.assert_allclose(update_norms(updates), exact, rtol=1e-7)


@pytest.mark.parametrize("rule", [Median, TrimmedMean, RFA, NDC])
def test_other_clients_every_round_leave_no_trace(rule):
    used = rule()
    for clients, first in ((10, 0), (3, 50), (1, 7), (6, 2)):
        model = {"w": np.zeros(4)}
        sent = {first + i: {"w": row} for i, row in enumerate(updates_of("random", clients, 4, clients))}
        np.testing.assert_array_equal(
            used.aggregate(model, sent).weights["w"], rule().aggregate(model, sent).weights["w"]
        )


@settings(deadline=None)
@given(updates=rounds(), move=st.floats(-100, 100))
def test_all_of_them_follow_when_everybody_moves_by_the_same(updates, move):
    for rule in (Median(), TrimmedMean()):
        np.testing.assert_allclose(
            vector(send(rule, updates + move)), vector(send(rule, updates)) + move, rtol=1e-9, atol=1e-9
        )


@settings(deadline=None)
@given(updates=rounds())
def test_results_stay_between_the_smallest_and_the_largest_value_of_each_parameter(updates):
    for rule in (Median(), TrimmedMean(), RFA()):
        result = vector(send(rule, updates))
        slack = 1e-9 * (1 + np.abs(updates).max(axis=0))
        assert (result >= updates.min(axis=0) - slack).all()
        assert (result <= updates.max(axis=0) + slack).all()


def test_running_statistics_are_weighed_like_the_updates():
    model = batch_norm_model()
    clients = {i: perturbed(model, i, shift=9.0 if i == 4 else 0.0) for i in range(5)}
    result = RFA().aggregate(model, clients)
    weights = [result.verdicts[i].weight for i in range(5)]
    slow = sum(weights[i] * clients[i]["1.running_mean"].double() for i in range(5))
    torch.testing.assert_close(result.weights["1.running_mean"].double(), slow, rtol=1e-5, atol=1e-6)
    result = Median().aggregate(model, clients)
    slow = sum(clients[i]["1.running_mean"].double() for i in range(5)) / 5
    torch.testing.assert_close(result.weights["1.running_mean"].double(), slow, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        (TrimmedMean, {"trimmed_share": 0.6}),
        (RFA, {"smoothing": 0}),
        (RFA, {"iterations": 0}),
        (NDC, {"threshold": 0}),
    ],
)
def test_settings_that_make_no_sense_are_refused(rule, settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        rule(**settings)


@pytest.mark.parametrize("rule", [Median, TrimmedMean, RFA, NDC])
def test_a_gpu_gives_the_same_result(rule):
    assert_same_on_gpu(rule)


@pytest.mark.parametrize("clients", [10, 11, 40])
def test_agreement_with_the_median_the_trimmed_mean_and_the_clipping_of_byzfl(clients):
    peer = byzfl()
    updates = updates_of("far apart", clients, 50, clients)
    np.testing.assert_allclose(vector(send(Median(), updates)), peer.Median()(updates), rtol=1e-12)
    np.testing.assert_allclose(vector(send(TrimmedMean(), updates)), peer.TrMean(clients // 5)(updates), rtol=1e-9)
    clipped = peer.Average()(peer.Clipping(c=2.0)(updates.copy()))
    np.testing.assert_allclose(vector(send(NDC(), updates)), clipped, rtol=1e-9)


@pytest.mark.parametrize("clients", [10, 11, 40])
def test_agreement_with_the_geometric_median_of_byzfl_once_both_have_converged(clients):
    peer = byzfl()
    updates = updates_of("random", clients, 50, clients)
    expected = peer.GeometricMedian(nu=1e-5, T=300)(updates)
    np.testing.assert_allclose(vector(send(RFA(tolerance=0.0), updates)), expected, atol=1e-7)


@pytest.mark.parametrize("clients", [10, 11, 40])
def test_agreement_with_the_trimmed_mean_of_flower(clients):
    peer = flower("fedtrimmedavg")
    updates = updates_of("far apart", clients, 50, clients)
    np.testing.assert_allclose(vector(send(TrimmedMean(), updates)), peer.trim_mean(updates, 0.2), rtol=1e-9)
