"""FedAvg, and what all rules do with sample counts and running statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from g2uardfl.aggregators.fedavg import FedAvg
from helpers.models import batch_norm_model, federation, numpy_model, odd_mlp, perturbed
from helpers.rounds import decisions


def test_fedavg_is_the_mean_weighted_by_samples():
    model = numpy_model()
    clients = {i: perturbed(model, i) for i in range(4)}
    examples = {0: 1, 1: 5, 2: 0, 3: 10}
    result = FedAvg().aggregate(model, clients, examples)
    for name in model:
        slow = sum(examples[i] * clients[i][name].astype(np.float64) for i in range(4)) / 16
        np.testing.assert_allclose(result.weights[name], slow, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("examples", [-1, float("nan"), "many", None, 1e300])
def test_an_impossible_sample_count_makes_a_message_invalid_if_counts_are_used(examples):
    model = odd_mlp()
    result = FedAvg().aggregate(model, federation(model, 3, 0), {0: 5, 1: examples, 2: 5})
    assert decisions(result) == "aia"


def test_counters_and_running_statistics_are_averaged_and_keep_their_dtype():
    model = batch_norm_model()
    clients = {i: {**perturbed(model, i), "1.running_mean": torch.full((4,), float(i))} for i in range(3)}
    result = FedAvg().aggregate(model, clients, {0: 1, 1: 1, 2: 8})
    np.testing.assert_allclose(result.weights["1.running_mean"].numpy(), 1.7, rtol=1e-6)
    assert int(result.weights["1.num_batches_tracked"]) == 12
    assert result.weights["1.num_batches_tracked"].dtype == torch.int64


def counted(*counts):
    """The weights that FedAvg gives clients with these sample counts, and the note of the round."""
    model = {"w": np.zeros(1, np.float64)}
    sent = {client: {"w": np.ones(1)} for client in range(len(counts))}
    result = FedAvg().aggregate(model, sent, dict(enumerate(counts)))
    return [verdict.weight for verdict in result.verdicts.values()], result.note


def test_one_of_ten_that_reports_any_number_of_samples_has_less_than_half_of_the_average():
    weights, note = counted(*[100] * 9, 9 * 10**14)
    assert weights == pytest.approx([1 / 17] * 9 + [8 / 17])
    assert note == "Client 9 reports 9e+14 samples, which count as 800."


def test_the_limit_depends_on_the_honest_majority():
    weights, _ = counted(100, 110, 120, 130, 0, 10**14, 10**14)
    assert weights[-1] == pytest.approx(960 / (460 + 2 * 960))


@pytest.mark.parametrize("counts", [(1, 10**6), (10, 20, 50, 40), (0, 0, 0), (7,)])
def test_counts_within_the_limit_or_without_a_majority_are_used_unchanged(counts):
    weights, note = counted(*counts)
    total = sum(counts)
    assert weights == pytest.approx([count / total if total else 1 / len(counts) for count in counts])
    assert not note
