"""NDC against a slow computation on whole weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.aggregators.ndc import NDC
from helpers.models import batch_norm_model
from helpers.rounds import (
    byzfl,
    decisions,
    rounds,
    sample_counts,
    send,
    slow_shares,
    updates_of,
    vector,
)


@settings(deadline=None)
@given(updates=rounds(), examples=sample_counts, threshold=st.floats(0.01, 100), seed=st.integers(0, 99))
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
    assert result.verdicts[0].reason == "Accepted: its norm 1 was not clipped."
    assert result.verdicts[1].reason == "Accepted: its norm 50 was clipped to 2."
    assert result.verdicts[1].weight == pytest.approx(0.5 * 2 / 50)


def test_updates_are_clipped_not_weights():
    """Compared with a model of norm 1000, updates of norm 1 are small."""
    result = send(NDC(), [[1.0, 0.0], [0.0, 1.0]], start=[1000.0, 0.0])
    assert vector(result).tolist() == [1000.5, 0.5]


def test_running_statistics_are_neither_measured_nor_clipped():
    model = batch_norm_model()
    still = {name: value.clone() for name, value in model.items()}
    far = {**still, "1.running_mean": still["1.running_mean"] + 1000}
    moved = {**far, "0.weight": still["0.weight"] + 0.1}
    result = NDC().aggregate(model, {0: moved, 1: far, 2: far})
    assert "was not clipped" in result.verdicts[0].reason
    torch.testing.assert_close(result.weights["1.running_mean"], far["1.running_mean"])
    torch.testing.assert_close(result.weights["0.weight"], still["0.weight"] + 0.1 / 3)


def test_clients_without_samples_have_weight_0_unless_no_client_has_samples():
    result = send(NDC(), [[1.0], [2.0], [30.0]], [1, 1, 0])
    assert decisions(result) == "aah"
    assert vector(result)[0] == pytest.approx(1.5)
    assert "reported no samples" in result.verdicts[2].reason
    without = send(NDC(), [[1.0], [2.0]], [0, 0])
    assert decisions(without) == "aa"
    assert vector(without)[0] == pytest.approx(1.5)
    assert vector(send(NDC(), [[1.0], [1.5]], [1, 0])).tolist() == [1.0]


@pytest.mark.parametrize("rule", [NDC])
def test_a_round_does_not_depend_on_earlier_rounds(rule):
    used = rule()
    for clients, first in ((10, 0), (3, 50), (1, 7), (6, 2)):
        model = {"w": np.zeros(4)}
        sent = {first + i: {"w": row} for i, row in enumerate(updates_of("random", clients, 4, clients))}
        np.testing.assert_array_equal(
            used.aggregate(model, sent).weights["w"], rule().aggregate(model, sent).weights["w"]
        )


@pytest.mark.parametrize("clients", [10, 11, 40])
def test_agreement_with_the_clipping_of_byzfl(clients):
    peer = byzfl()
    updates = updates_of("far apart", clients, 50, clients)
    clipped = peer.Average()(peer.Clipping(c=2.0)(updates.copy()))
    np.testing.assert_allclose(vector(send(NDC(), updates)), clipped, rtol=1e-9)
