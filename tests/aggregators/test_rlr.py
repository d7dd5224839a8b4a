"""RLR against a slow computation on whole weights, and against the mistakes of other implementations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.aggregators.fedavg import FedAvg
from g2uardfl.aggregators.rlr import RLR
from helpers.models import batch_norm_model, perturbed
from helpers.rounds import (
    decisions,
    rounds,
    sample_counts,
    send,
    slow_shares,
    updates_of,
    vector,
    weights_of,
)


def slow_rlr(start, updates, examples, threshold, rate):
    new = start.copy()
    shares = slow_shares(examples)
    for k in range(len(start)):
        votes = sum(1 if update[k] > 0 else -1 if update[k] < 0 else 0 for update in updates)
        mean = sum(share * update[k] for share, update in zip(shares, updates, strict=True))
        new[k] += (rate if abs(votes) >= threshold else -rate) * mean
    return new


@settings(deadline=None)
@given(
    updates=rounds(),
    examples=sample_counts,
    threshold=st.integers(0, 6),
    rate=st.sampled_from([1.0, 0.5, 0.0]),
    seed=st.integers(0, 99),
)
def test_parameters_with_too_few_agreeing_votes_are_reversed(updates, examples, threshold, rate, seed):
    start = np.random.default_rng(seed).normal(size=updates.shape[1])
    examples = examples[: len(updates)]
    sent = (start + updates) - start
    expected = slow_rlr(start, sent, examples, min(threshold, len(updates)), rate)
    got = vector(send(RLR(threshold=threshold, learning_rate=rate), updates, examples, start))
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9 * (1 + np.abs(updates).max()))


def test_rlr_worked_by_hand():
    """The vote margins are 3, 0 and 2: only the first reaches θ = 3, the others are reversed."""
    updates = [[1.0, 1.0, 4.0], [1.0, -3.0, 4.0], [2.0, -1.0, 0.0], [0.0, 5.0, 0.0]]
    result = send(RLR(), np.array(updates))
    assert vector(result).tolist() == [1.0, -0.5, -2.0]
    assert result.note == "The step of 66.7% of the parameters was reversed: their vote margin is below 3."
    assert result.verdicts[0].reason == "Accepted: one vote of 4, weight 0.25."


def test_votes_are_signs_of_updates_not_of_weights():
    """All weights are positive here; half of the updates are not."""
    start = np.full(1, 10.0)
    result = send(RLR(), [[1.0], [1.0], [-0.5], [-0.5]], start=start)
    assert vector(result).tolist() == [10 - 0.25]


def test_a_zero_update_is_not_a_vote():
    """If 0 counted as a positive vote, three would agree."""
    assert vector(send(RLR(), [[1.0], [1.0], [0.0]])).tolist() == [pytest.approx(-2 / 3)]
    assert vector(send(RLR(), [[1.0], [1.0], [-0.0]])).tolist() == [pytest.approx(-2 / 3)]


def test_as_many_votes_as_the_threshold_suffice():
    assert vector(send(RLR(threshold=3), [[1.0], [1.0], [1.0]])).tolist() == [1.0]
    assert vector(send(RLR(threshold=4), [[1.0], [1.0], [1.0], [0.0]])).tolist() == [-0.75]


def test_a_client_with_many_samples_has_one_vote():
    result = send(RLR(), [[-1.0], [1.0], [1.0], [1.0]], [8, 1, 1, 1])
    assert vector(result)[0] == pytest.approx(-((-8 + 3) / 11))


def test_a_client_without_samples_votes_with_weight_0():
    result = send(RLR(), [[1.0], [1.0], [7.0]], [1, 1, 0])
    assert vector(result).tolist() == [1.0]
    assert decisions(result) == "aaa"
    assert weights_of(result)[2] == 0


@pytest.mark.parametrize(
    ("updates", "expected"), [([[2.0, 3.0]], [2.0, 3.0]), ([[2.0, 12.0], [2.0, -6.0]], [2.0, -3.0])]
)
def test_with_fewer_clients_than_the_threshold_unanimity_suffices(updates, expected):
    """Otherwise every parameter would be reversed."""
    result = send(RLR(), updates)
    assert vector(result).tolist() == expected
    assert "θ was lowered from 3 to the number of clients" in result.note


def test_the_number_of_clients_is_that_of_the_round():
    rule = RLR()
    for clients in (10, 2, 5, 1):
        updates = updates_of("random", clients, 40, clients)
        expected = slow_rlr(np.zeros(40), updates, [1] * clients, min(3, clients), 1.0)
        np.testing.assert_allclose(vector(send(rule, updates)), expected, rtol=1e-9, atol=1e-12)


def test_running_statistics_are_averaged_and_never_reversed():
    model = batch_norm_model()
    clients = {i: perturbed(model, i) for i in range(2)}
    result = RLR().aggregate(model, clients)
    slow = (clients[0]["1.running_var"] + clients[1]["1.running_var"]) / 2
    torch.testing.assert_close(result.weights["1.running_var"], slow)


@settings(deadline=None)
@given(updates=rounds())
def test_every_step_has_the_magnitude_of_fedavgs(updates):
    np.testing.assert_allclose(
        np.abs(vector(send(RLR(), updates))), np.abs(vector(send(FedAvg(), updates))), rtol=1e-12
    )
