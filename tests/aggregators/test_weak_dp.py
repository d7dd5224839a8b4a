"""Weak DP: the distribution of its noise, FedAvg and NDC without noise, and the mistakes of other implementations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.aggregators.fedavg import FedAvg
from g2uardfl.aggregators.ndc import NDC
from g2uardfl.aggregators.weak_dp import WeakDP
from g2uardfl.core.errors import StateError
from g2uardfl.core.state_files import SavedState
from helpers.models import batch_norm_model, federation
from helpers.rounds import rounds, sample_counts, send, vector

SIZE = 200_000
"""The number of parameters: enough for tests of the noise's distribution."""


def noise_of(rule, clients=1, examples=None):
    """What a round of zero updates adds to the model."""
    return vector(send(rule, np.zeros((clients, SIZE), np.float32), examples)).astype(float)


@settings(deadline=None)
@given(updates=rounds(), examples=sample_counts)
def test_without_noise_weak_dp_is_fedavg(updates, examples):
    examples = examples[: len(updates)]
    np.testing.assert_allclose(
        vector(send(WeakDP(seed=0, noise=0), updates, examples)), vector(send(FedAvg(), updates, examples)), rtol=1e-12
    )


@settings(deadline=None)
@given(updates=rounds(), examples=sample_counts, limit=st.floats(0.1, 10))
def test_with_clipping_and_without_noise_weak_dp_is_ndc(updates, examples, limit):
    examples = examples[: len(updates)]
    clipped, ndc = (
        send(rule, updates, examples) for rule in (WeakDP(seed=0, noise=0, clip_norm=limit), NDC(threshold=limit))
    )
    np.testing.assert_array_equal(vector(clipped), vector(ndc))
    assert clipped.verdicts == ndc.verdicts


def test_nothing_is_clipped_by_default():
    result = send(WeakDP(seed=0, noise=0), [[300.0, 400.0]])
    assert result.verdicts[0].reason == "Accepted: its norm 500 was not clipped."
    assert vector(result).tolist() == [300, 400]


def test_the_noise_is_normal_with_the_given_standard_deviation():
    noise = noise_of(WeakDP(seed=0, noise=0.3)) / 0.3
    # Five standard errors of the mean, the variance and the tails of 200,000 normal numbers.
    assert abs(noise.mean()) < 5 / np.sqrt(SIZE)
    assert abs(noise.var() - 1) < 5 * np.sqrt(2 / SIZE)
    assert abs((np.abs(noise) > 1.959964).mean() - 0.05) < 5 * np.sqrt(0.05 * 0.95 / SIZE)
    assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < 5 / np.sqrt(SIZE)


@pytest.mark.parametrize("clients", [1, 2, 25])
def test_the_noise_is_added_to_the_average_not_to_each_client(clients):
    """Added to each of 25 clients it would be five times weaker, added to their sum before the division 25 times."""
    assert noise_of(WeakDP(seed=0, noise=0.3), clients).std() == pytest.approx(0.3, rel=0.02)


def test_the_noise_does_not_depend_on_sample_counts():
    assert noise_of(WeakDP(seed=0, noise=0.3), 3, [1, 1000, 0]).std() == pytest.approx(0.3, rel=0.02)


def test_the_same_seed_gives_the_same_noise_and_each_round_and_seed_its_own():
    first, again, other = WeakDP(seed=1), WeakDP(seed=1), WeakDP(seed=2)
    drawn = [noise_of(first), noise_of(first), noise_of(other)]
    np.testing.assert_array_equal(drawn[0], noise_of(again))
    np.testing.assert_array_equal(drawn[1], noise_of(again))
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert abs(np.corrcoef(drawn[i], drawn[j])[0, 1]) < 5 / np.sqrt(SIZE)


def test_running_statistics_and_counters_receive_no_noise():
    model = batch_norm_model()
    clients = federation(model)
    noisy, plain = WeakDP(seed=0, noise=5.0).aggregate(model, clients), FedAvg().aggregate(model, clients)
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(noisy.weights[name], plain.weights[name])
    assert not torch.equal(noisy.weights["1.weight"], plain.weights["1.weight"])


@pytest.mark.parametrize("values", [{}, {"round": None}, {"round": "many"}])
def test_a_state_without_rounds_is_a_clear_error(values):
    with pytest.raises(StateError, match="weak_dp"):
        WeakDP().restore(SavedState(values))
