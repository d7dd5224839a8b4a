"""Bulyan against a slow computation on whole weights, and against the mistakes of other implementations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from g2uardfl.aggregators._distances import tolerated_clients
from g2uardfl.aggregators.bulyan import Bulyan, mean_near_median
from helpers.krum import lowest, slow_scores
from helpers.rounds import decisions, flower, rounds, send, updates_of, vector


def separated(scores):
    """Whether no two different scores are so close that rounding could swap them."""
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


@settings(max_examples=60, deadline=None)
@given(
    clients=st.integers(1, 14),
    size=st.integers(1, 6),
    f=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["random", "identical", "all zero", "huge outlier", "one zero", "clustered"]),
)
def test_bulyan_is_repeated_krum_followed_by_the_mean_near_the_median(clients, size, f, seed, kind):
    updates = updates_of(kind, clients, size, seed)
    result = send(Bulyan(malicious_clients=f), updates)
    selected, expected = slow_bulyan(updates, tolerated_clients(f, clients, 4)[0])
    assume(selected is not None)
    np.testing.assert_allclose(vector(result), expected, rtol=1e-9, atol=1e-9)
    if kind not in ("identical", "all zero"):
        assert decisions(result) == "".join("a" if i in selected else "h" for i in range(clients))


def test_bulyan_worked_by_hand():
    """Seven clients, f = 1.

    The scores of 4, 3, 2, 1 and 1 neighbours select the clients at 3, 4, 2, 5 and 1. Of {1, 2, 3, 4, 5} the three
    values nearest the median 3 are 2, 3 and 4.
    """
    result = send(Bulyan(malicious_clients=1), [[1.0], [2.0], [3.0], [4.0], [5.0], [6.0], [99.0]])
    assert vector(result).tolist() == [3.0]
    assert decisions(result) == "aaaaahh"
    assert "step 1 of 5 with the lowest Krum score, 10." in result.verdicts[2].reason
    assert result.verdicts[6].reason == "Held out: not selected in 5 steps; its Krum score in the last was 8649."


def test_bulyan_computes_new_scores_after_each_selection():
    """A single selection by the first scores would select other clients."""
    points = updates_of("clustered", 11, 3, 17)
    once = lowest(slow_scores(points.tolist(), 2), 7)
    selected, expected = slow_bulyan(points, 2)
    assert sorted(selected) != once
    result = send(Bulyan(), points)
    assert decisions(result) == "".join("a" if i in selected else "h" for i in range(11))
    np.testing.assert_allclose(vector(result), expected)


@pytest.mark.parametrize(("clients", "lowered"), [(1, 0), (6, 0), (7, 1), (10, 1), (11, 2)])
def test_bulyan_lowers_f_to_a_quarter_and_the_note_says_so(clients, lowered):
    result = send(Bulyan(), updates_of("random", clients, 3, 0))
    assert (result.note == "") == (lowered == 2)
    assert decisions(result).count("a") == clients - 2 * lowered


def test_bulyan_of_fewer_than_seven_clients_is_the_plain_mean():
    updates = updates_of("random", 6, 5, 3)
    np.testing.assert_allclose(vector(send(Bulyan(), updates)), updates.mean(axis=0))


def test_a_huge_outlier_is_held_out():
    updates = updates_of("huge outlier", 11, 6, 5)
    result = send(Bulyan(), updates)
    assert result.verdicts[10].decision == "held_out"
    assert np.abs(vector(result)).max() < 10


@settings(deadline=None)
@given(updates=rounds(), scale=st.sampled_from([0.25, 4.0, 1024.0]), f=st.integers(0, 3))
def test_scaling_every_update_scales_the_step(updates, scale, f):
    plain, scaled = (send(Bulyan(malicious_clients=f), factor * updates) for factor in (1.0, scale))
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


@pytest.mark.parametrize("seed", range(5))
def test_the_second_half_of_bulyan_agrees_with_flower(seed):
    peer = flower("bulyan")
    updates = updates_of("random", 17, 40, seed)
    expected = peer.aggregate_n_closest_weights([np.median(updates, axis=0)], [[row] for row in updates], 9)[0]
    np.testing.assert_allclose(mean_near_median(torch.from_numpy(updates), 9).numpy(), expected)
