"""Krum, Multi-Krum and Bulyan against slow computations on whole weights, and against the mistakes peers made."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from g2uardfl.aggregators._distances import krum_scores, squared_distances, tolerable, update_distances
from g2uardfl.aggregators.bulyan import Bulyan, mean_near_median
from g2uardfl.aggregators.krum import Krum
from g2uardfl.aggregators.multi_krum import MultiKrum
from g2uardfl.core.layout import ModelLayout
from g2uardfl.core.updates import SentUpdates
from helpers.models import batch_norm_model, perturbed
from helpers.rounds import assert_same_on_gpu, byzfl, decisions, flower, rounds, send, updates_of, vector


def slow_scores(points, f):
    """Krum's scores by the definition, one pair of clients at a time."""
    scores = []
    for i, point in enumerate(points):
        distances = sorted(sum((a - b) ** 2 for a, b in zip(point, other, strict=True)) for other in others(points, i))
        scores.append(sum(distances[: max(len(points) - f - 2, 1)]))
    return scores


def others(points, i):
    return [point for j, point in enumerate(points) if j != i]


def lowest(scores, count):
    return sorted(sorted(range(len(scores)), key=lambda i: scores[i])[:count])


def separated(scores):
    """Whether no two scores are so close that rounding could swap them; equal ones do not count."""
    ordered = sorted(set(scores))
    return all(b - a > 1e-9 * b for a, b in itertools.pairwise(ordered))


def slow_bulyan(points, f):
    remaining, selected = list(range(len(points))), []
    for _ in range(len(points) - 2 * f):
        scores = slow_scores([points[i] for i in remaining], f)
        if not separated(scores):
            return None, None
        selected.append(remaining.pop(scores.index(min(scores))))
    result = []
    for column in points[sorted(selected)].T:
        middle = np.median(column)
        nearest = sorted(column, key=lambda value: (abs(value - middle), value))
        result.append(np.mean(nearest[: len(selected) - 2 * f]))
    return selected, np.array(result)


@settings(deadline=None)
@given(updates=rounds(), f=st.integers(0, 4), seed=st.integers(0, 99))
def test_krum_takes_the_client_of_the_lowest_score(updates, f, seed):
    start = np.random.default_rng(seed).normal(size=updates.shape[1])
    result = send(Krum(malicious_clients=f), updates, start=start)
    scores = slow_scores((start + updates).tolist(), tolerable(f, len(updates), 2)[0])
    (taken,) = (i for i, verdict in result.verdicts.items() if verdict.decision == "accepted")
    assert scores[taken] <= min(scores) * (1 + 1e-6) + 1e-9
    np.testing.assert_allclose(vector(result), start + updates[taken], rtol=1e-12, atol=1e-12)


@settings(deadline=None)
@given(updates=rounds(), f=st.integers(0, 4), count=st.integers(0, 12))
def test_multi_krum_is_the_mean_of_the_clients_of_the_lowest_scores(updates, f, count):
    result = send(MultiKrum(malicious_clients=f, selected_clients=count), updates)
    tolerated, _ = tolerable(f, len(updates), 2)
    kept = min(count or len(updates) - tolerated, len(updates))
    accepted = [i for i, verdict in result.verdicts.items() if verdict.decision == "accepted"]
    assert len(accepted) == kept
    np.testing.assert_allclose(vector(result), updates[accepted].mean(axis=0), rtol=1e-9, atol=1e-9)
    scores = slow_scores(updates.tolist(), tolerated)
    refused = [scores[i] for i in range(len(updates)) if i not in accepted]
    assert max(scores[i] for i in accepted) <= min(refused, default=np.inf) * (1 + 1e-6) + 1e-9


@settings(max_examples=60, deadline=None)
@given(
    clients=st.integers(1, 14),
    size=st.integers(1, 6),
    f=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["random", "identical", "all zero", "huge outlier", "one idle", "clustered"]),
)
def test_bulyan_is_repeated_krum_and_then_the_mean_near_the_median(clients, size, f, seed, kind):
    updates = updates_of(kind, clients, size, seed)
    result = send(Bulyan(malicious_clients=f), updates)
    selected, expected = slow_bulyan(updates, tolerable(f, clients, 4)[0])
    assume(selected is not None)
    np.testing.assert_allclose(vector(result), expected, rtol=1e-9, atol=1e-9)
    if kind not in ("identical", "all zero"):
        assert decisions(result) == "".join("a" if i in selected else "h" for i in range(clients))


def test_krum_worked_by_hand():
    """Two neighbours each: 0: 1+9, 1: 1+4, 3: 4+9, 7: 16+36, 50: 43²+47²."""
    points = np.array([[0.0], [1.0], [3.0], [7.0], [50.0]])
    assert krum_scores(squared_distances(points @ points.T), 1).tolist() == [10, 5, 13, 52, 4058]
    result = send(Krum(malicious_clients=1), points)
    assert vector(result).tolist() == [1.0]
    assert decisions(result) == "hahhh"
    assert "score 5 is number 1 of 5" in result.verdicts[1].reason
    assert "score 4058 is number 5 of 5" in result.verdicts[4].reason
    assert [verdict.weight for verdict in result.verdicts.values()] == [0, 1, 0, 0, 0]


def test_multi_krum_worked_by_hand():
    result = send(MultiKrum(malicious_clients=1), [[0.0], [1.0], [3.0], [7.0], [50.0]])
    assert vector(result).tolist() == [(0 + 1 + 3 + 7) / 4]
    assert decisions(result) == "aaaah"
    assert result.verdicts[0].weight == 0.25
    assert result.verdicts[4].reason.endswith("number 5 of 5 from the lowest, and 4 could stay.")


def test_bulyan_worked_by_hand():
    """Seven clients, f = 1.

    By scores of 4, 3, 2, 1 and 1 neighbours the clients at 3, 4, 2, 5 and 1 are selected; of {1, 2, 3, 4, 5} the three
    nearest the median 3 are 2, 3 and 4.
    """
    result = send(Bulyan(malicious_clients=1), [[1.0], [2.0], [3.0], [4.0], [5.0], [6.0], [99.0]])
    assert vector(result).tolist() == [3.0]
    assert decisions(result) == "aaaaahh"
    assert "step 1 of 5 with the lowest score, 10." in result.verdicts[2].reason
    assert result.verdicts[6].reason == "Held out: never had the lowest score in 5 steps; at the last it was 8649."


def test_the_paper_settings_are_the_defaults():
    assert MultiKrum().settings.malicious_clients == Krum().settings.malicious_clients == 2
    result = send(MultiKrum(), updates_of("random", 10, 4, 0))
    assert decisions(result).count("a") == 8


def test_not_the_highest_score_as_the_papers_appendix_says():
    assert vector(send(Krum(), [[0.0], [0.1], [0.2], [0.3], [0.4], [0.5], [100.0]]))[0] < 1


def test_two_less_than_the_honest_count_as_neighbours_not_one_less():
    """With n - f - 2 = 2 neighbours 10.4 scores 0.16 + 0.16; with n - f - 1 = 3 the pair at 0 would favour 10."""
    points = np.array([[0.0], [0.1], [10.0], [10.4], [10.8]])
    products = points @ points.T
    assert krum_scores(squared_distances(products), 0).argmin() == 2
    assert vector(send(Krum(malicious_clients=1), points)).tolist() == [10.4]


def test_distances_are_squared():
    """Two neighbours each: 9 has 3 and 4, squares 25; 1 has 1 and 5, squares 26, but the smaller sum of lengths."""
    assert vector(send(Krum(malicious_clients=1), [[0.0], [1.0], [6.0], [9.0], [13.0]])).tolist() == [9.0]


def test_distance_is_over_the_whole_model_and_not_a_sum_of_layers_norms():
    """Layers apart, (3, 4) is 3 + 4 = 7 away and (0, 6) only 6; together (3, 4) is the nearer with 5."""
    points = np.array([[0.0, 0.0], [3.0, 4.0], [0.0, -6.0]])
    assert krum_scores(squared_distances(points @ points.T), 0).tolist() == [25, 25, 36]
    assert decisions(send(MultiKrum(malicious_clients=0, selected_clients=2), points)) == "aah"


def test_tiny_updates_of_a_large_float32_model_are_told_apart():
    """||x||² + ||y||² - 2xy on float32 weights errs by as much as the scores of updates this small differ."""
    rng = np.random.default_rng(0)
    start = rng.normal(size=200_000)
    start = (50 * start / np.linalg.norm(start)).astype(np.float32)
    updates = rng.normal(size=(10, 200_000)) * np.linspace(0.5, 1.5, 10)[::-1, None]
    updates = (0.02 * updates / np.sqrt(200_000)).astype(np.float32)
    sent = np.stack([start + update for update in updates])
    exact = sent.astype(np.float64) - start.astype(np.float64)
    expected = krum_scores(squared_distances(exact @ exact.T), 2)
    naive_norms = np.square(sent).sum(axis=1)
    naive = naive_norms[:, None] + naive_norms[None, :] - 2 * sent @ sent.T
    assert np.abs(krum_scores(naive.astype(np.float64), 2) - expected).max() > 0.2 * np.ptp(expected)
    result = send(Krum(), updates, start=start)
    assert result.verdicts[int(expected.argmin())].decision == "accepted"


@pytest.mark.parametrize("clients", [2, 10, 33])
def test_distances_of_near_twins_far_from_the_start_keep_their_digits(clients):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1, 100_000, generator=generator).repeat(clients, 1)
    rows[:, ::7] += 1e-3 * torch.randn(clients, 14_286, generator=generator)
    exact = rows.double().numpy()
    expected = [[((first - second) ** 2).sum() for second in exact] for first in exact]
    np.testing.assert_allclose(update_distances(rows), expected, rtol=1e-5)


@pytest.mark.parametrize("clients", [6, 40])
@pytest.mark.parametrize("size", [1e-15, 1e-18, 1e-20, 1e-25, 1e-40])
def test_distances_keep_their_digits_where_squares_do_not_fit_into_float32(size, clients):
    updates = (size * np.random.default_rng(0).normal(size=(clients, 70_000))).astype(np.float32)
    updates[5] = 1
    if clients == 6:
        updates[4] = updates[1]
    exact = np.array([np.square(update.astype(np.float64) - updates).sum(axis=1) for update in updates])
    np.testing.assert_allclose(update_distances(torch.from_numpy(updates)), exact, rtol=1e-5, atol=0)


def test_distances_of_many_clients_keep_their_digits_near_and_far():
    draw = np.random.default_rng(0)
    updates = draw.normal(size=(60, 30_000))
    updates[10:20] = updates[10] + 1e-4 * updates[10:20]
    updates[20:25] += 5
    updates[25:30] *= 1e6
    updates[30:40] = 3 + 0.2 * updates[30:40]
    updates[40] = updates[0]
    updates = updates.astype(np.float32)
    exact = np.array([np.square(update.astype(np.float64) - updates).sum(axis=1) for update in updates])
    found = update_distances(torch.from_numpy(updates))
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-9)
    model = {"w": np.zeros(30_000, np.float32)}
    sent = SentUpdates(ModelLayout.of(model), torch.zeros(30_000), [{"w": update} for update in updates], check=True)
    assert np.array_equal(update_distances(sent), found)
    assert not sent.checks


@pytest.mark.parametrize("clients", [10, 40])
def test_distances_are_the_same_bit_for_bit_on_any_number_of_threads(clients):
    rows = torch.randn(clients, 300_000, generator=torch.Generator().manual_seed(0))
    rows[3] = rows[2] + 1e-3 * rows[3]
    found, threads = [], torch.get_num_threads()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(update_distances(rows))
    torch.set_num_threads(threads)
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_a_client_is_no_neighbour_of_itself_even_among_copies():
    """With itself left in, or the first of equals left out, a copy's nearest would be counted wrongly."""
    points = np.array([[0.0], [0.0], [0.0], [5.0], [6.0]])
    assert krum_scores(squared_distances(points @ points.T), 0).tolist() == [25, 25, 25, 1 + 25 + 25, 1 + 36 + 36]


def test_multi_krum_keeps_all_but_f_and_not_a_fixed_share():
    for clients in (5, 8, 20):
        assert decisions(send(MultiKrum(), updates_of("random", clients, 4, 1))).count("h") == (
            1 if clients == 5 else 2
        )


def test_multi_krum_scores_once_and_not_anew_on_a_shrinking_set():
    """Three neighbours each; scored anew after each choice, 0 would come in for 10."""
    points = np.array([[0.0], [5.0], [10.0], [15.0], [20.0], [21.0]])
    scores = krum_scores(squared_distances(points @ points.T), 1)
    assert scores.tolist() == [25 + 100 + 225, 25 + 25 + 100, 25 + 25 + 100, 25 + 25 + 36, 1 + 25 + 100, 1 + 36 + 121]
    result = send(MultiKrum(malicious_clients=1, selected_clients=4), points)
    assert decisions(result) == "haaaah"


def test_bulyan_scores_anew_on_the_shrinking_set_unlike_one_selection_of_theta():
    """One selection of five by the first scores would be another five."""
    points = updates_of("clustered", 11, 3, 17)
    once = lowest(slow_scores(points.tolist(), 2), 7)
    selected, expected = slow_bulyan(points, 2)
    assert sorted(selected) != once
    result = send(Bulyan(), points)
    assert decisions(result) == "".join("a" if i in selected else "h" for i in range(11))
    np.testing.assert_allclose(vector(result), expected)


def test_the_number_of_clients_is_what_came_and_not_what_came_before():
    rule = MultiKrum()
    for clients in (10, 4, 7, 1, 12):
        updates = updates_of("random", clients, 3, clients)
        f = tolerable(2, clients, 2)[0]
        chosen = lowest(slow_scores(updates.tolist(), f), clients - f)
        np.testing.assert_allclose(vector(send(rule, updates)), updates[chosen].mean(axis=0))


@pytest.mark.parametrize(("clients", "lowered"), [(1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (6, 1), (7, 2)])
@pytest.mark.parametrize("kind", [Krum, MultiKrum])
def test_with_too_few_clients_f_is_lowered_and_that_is_said(kind, clients, lowered):
    result = send(kind(), updates_of("random", clients, 3, 0))
    if lowered == 2:
        assert result.note == ""
    else:
        assert f"f was lowered from 2 to {lowered}." in result.note
    assert decisions(result).count("a") == (1 if kind is Krum else clients - lowered)


@pytest.mark.parametrize(("clients", "lowered"), [(1, 0), (6, 0), (7, 1), (10, 1), (11, 2)])
def test_bulyan_lowers_f_to_a_quarter_and_says_so(clients, lowered):
    result = send(Bulyan(), updates_of("random", clients, 3, 0))
    assert (result.note == "") == (lowered == 2)
    assert decisions(result).count("a") == clients - 2 * lowered


def test_bulyan_of_fewer_than_seven_is_the_plain_mean():
    updates = updates_of("random", 6, 5, 3)
    np.testing.assert_allclose(vector(send(Bulyan(), updates)), updates.mean(axis=0))


def test_of_two_clients_krum_takes_the_first_and_of_one_that_one():
    assert vector(send(Krum(), [[3.0, 1.0], [2.0, 5.0]])).tolist() == [3.0, 1.0]
    assert vector(send(Krum(), [[2.0, 5.0]])).tolist() == [2.0, 5.0]


def test_a_huge_outlier_is_held_out_by_all_three():
    updates = updates_of("huge outlier", 11, 6, 5)
    for rule in (Krum(), MultiKrum(), Bulyan()):
        result = send(rule, updates)
        assert result.verdicts[10].decision == "held_out"
        assert np.abs(vector(result)).max() < 10


def test_claimed_samples_buy_nothing_unless_they_are_asked_for():
    updates, claims = [[1.0], [2.0], [3.0], [4.0], [900.0]], [1, 10**9, 1, 1, 1]
    assert vector(send(MultiKrum(malicious_clients=1), updates, claims)).tolist() == [2.5]
    weighed = send(MultiKrum(malicious_clients=1, weigh_by_samples=True), updates, [1, 5, 0, 4, 99])
    assert vector(weighed)[0] == pytest.approx((1 + 2 * 5 + 4 * 4) / 10)
    assert weighed.verdicts[1].weight == 0.5


def test_a_missing_count_is_no_fault_where_counts_are_not_used():
    rule = MultiKrum()
    model = {"w": np.zeros(2)}
    result = rule.aggregate(model, {i: {"w": np.full(2, float(i))} for i in range(3)}, {0: 5})
    assert {verdict.decision for verdict in result.verdicts.values()} == {"accepted"}


def test_without_any_samples_the_weighed_mean_is_plain():
    result = send(MultiKrum(malicious_clients=0, weigh_by_samples=True), [[1.0], [2.0], [6.0]], [0, 0, 0])
    assert vector(result).tolist() == [3.0]


def test_running_statistics_come_from_the_chosen_clients_alone():
    model = batch_norm_model()
    clients = {i: perturbed(model, i, shift=3.0 if i == 4 else 0.0) for i in range(5)}
    result = Krum(malicious_clients=1).aggregate(model, clients)
    (taken,) = (i for i, verdict in result.verdicts.items() if verdict.decision == "accepted")
    torch.testing.assert_close(result.weights["1.running_mean"], clients[taken]["1.running_mean"])
    result = MultiKrum(malicious_clients=1).aggregate(model, clients)
    slow = torch.stack([clients[i]["1.running_mean"] for i in range(4)]).mean(dim=0)
    torch.testing.assert_close(result.weights["1.running_mean"], slow)


@settings(deadline=None)
@given(updates=rounds(), scale=st.sampled_from([0.25, 4.0, 1024.0]), f=st.integers(0, 3))
def test_scaling_every_update_scales_the_step(updates, scale, f):
    for kind in (Krum, MultiKrum, Bulyan):
        plain, scaled = (send(kind(malicious_clients=f), factor * updates) for factor in (1.0, scale))
        np.testing.assert_allclose(vector(scaled), scale * vector(plain), rtol=1e-9)


@settings(deadline=None)
@given(
    values=st.lists(st.integers(-50, 50), min_size=1, max_size=40),
    share=st.floats(0.05, 1),
)
def test_the_mean_near_the_median_of_any_values(values, share):
    nearest = max(1, round(share * len(values)))
    middle = np.median(values)
    ordered = sorted(values, key=lambda value: (abs(value - middle), value))
    got = mean_near_median(torch.tensor(values, dtype=torch.float64).unsqueeze(1), nearest)
    assert float(got) == pytest.approx(np.mean(ordered[:nearest]))


@pytest.mark.parametrize("rule", [Krum, MultiKrum, Bulyan])
def test_a_gpu_gives_the_same_result(rule):
    assert_same_on_gpu(rule)


@pytest.mark.parametrize("seed", range(5))
def test_krum_agrees_with_byzfl_which_counts_one_neighbour_more(seed):
    peer = byzfl()
    updates = updates_of("clustered", 12, 30, seed)
    np.testing.assert_allclose(vector(send(Krum(malicious_clients=2), updates)), peer.Krum(3)(updates))
    kept = MultiKrum(malicious_clients=2, selected_clients=9)
    np.testing.assert_allclose(vector(send(kept, updates)), peer.MultiKrum(3)(updates))


@pytest.mark.parametrize("seed", range(5))
def test_multi_krum_selects_whom_flower_selects_where_float32_suffices(seed):
    select = flower("multikrum").select_multikrum
    from flwr.app import Array, ArrayRecord, RecordDict

    updates = updates_of("clustered", 12, 30, seed)
    contents = [RecordDict({"arrays": ArrayRecord({"w": Array(row)})}) for row in updates]
    chosen = select(contents, num_malicious_nodes=2, num_nodes_to_select=10)
    expected = "".join("a" if any(content is one for one in chosen) else "h" for content in contents)
    assert decisions(send(MultiKrum(), updates)) == expected


@pytest.mark.parametrize("seed", range(5))
def test_the_second_half_of_bulyan_agrees_with_flower(seed):
    peer = flower("bulyan")
    updates = updates_of("random", 17, 40, seed)
    expected = peer.aggregate_n_closest_weights([np.median(updates, axis=0)], [[row] for row in updates], 9)[0]
    np.testing.assert_allclose(mean_near_median(torch.from_numpy(updates), 9).numpy(), expected)
