"""Whole rounds of the paper's profile against a literal second implementation of the paper's algorithm."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from g2uardfl.defense.g2uardfl import G2uardFL
from helpers.paper_rounds import (
    GROUPS,
    Both,
    assert_rounds_agree,
    decisions_of,
    first_round,
    model_vector,
    random_model,
    trained,
)

PRINTED = {
    "edge_scaling": "printed",
    "momentum": "printed",
    "fade_absent": True,
    "distance_weighting": "printed",
    "score_init": "deviation",
}


@pytest.mark.parametrize("seed", [0, 1])
def test_models_and_decisions_are_those_of_the_papers_algorithm(seed):
    assert assert_rounds_agree(Both(), seed) == {"accepted", "held_out", "malicious"}


def test_with_every_printed_switch_models_and_decisions_are_the_papers():
    assert "malicious" in assert_rounds_agree(Both(**PRINTED))


@pytest.mark.parametrize("name", PRINTED)
def test_with_one_printed_switch_models_and_decisions_are_the_papers(name):
    assert "malicious" in assert_rounds_agree(Both(**{name: PRINTED[name]}))


def test_with_signed_scores_models_and_decisions_are_those_of_the_literal_rule():
    assert "malicious" in assert_rounds_agree(Both(score_update="signed"))


def test_running_statistics_are_averaged_over_accepted_clients_by_their_shares():
    both, (model, clients) = Both(), first_round()

    def with_buffers(weights, mean: float, count: int):
        return {**weights, "bn.running_mean": np.full(2, mean, np.float32), "bn.num_batches_tracked": np.array(count)}

    result = both.guard.aggregate(
        with_buffers(model, 0.0, 0), {c: with_buffers(w, 10.0 * c, 100 * c) for c, w in clients.items()}
    )
    both.literal.round(model_vector(model), {client: model_vector(sent) for client, sent in clients.items()})
    shares = both.literal.shares
    expected = sum(share * client for client, share in shares.items()) / sum(shares.values())
    np.testing.assert_allclose(result.weights["bn.running_mean"], [10 * expected] * 2, rtol=1e-5)
    assert result.weights["bn.num_batches_tracked"] == round(100 * expected)


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float64, 1e-9)])
def test_models_of_other_precisions_agree_to_that_precision(dtype, precision):
    both = Both()
    rng = np.random.default_rng(0)
    model = {name: torch.from_numpy(value).to(dtype) for name, value in random_model(rng).items()}
    for group in (GROUPS[0], [2, 3, 4, 5, 7]):
        wide = {name: value.double().numpy() for name, value in model.items()}
        clients = {
            c: {name: torch.from_numpy(value).to(dtype) for name, value in trained(wide, c, rng).items()} for c in group
        }
        result = both.guard.aggregate(model, clients)
        widened = {c: model_vector(w) for c, w in clients.items()}
        expected, decisions = both.literal.round(model_vector(wide), widened)
        np.testing.assert_allclose(model_vector(result.weights), expected, rtol=precision, atol=precision)
        assert decisions_of(result) == decisions
        assert all(value.dtype == dtype for value in result.weights.values())
        model = result.weights


@pytest.mark.parametrize("group", [[5], [5, 6]])
def test_one_or_two_clients_give_the_mean_of_their_clipped_models_and_an_event_says_so(group):
    for result, expected, decisions in Both().rounds(groups=[group, group]):
        np.testing.assert_allclose(model_vector(result.weights), expected, rtol=1e-5, atol=1e-5)
        assert decisions_of(result) == decisions
        assert [(event.kind, event.details["clients"]) for event in result.report.events] == [
            ("not_compared", len(group))
        ]


def test_identical_clients_move_the_model_to_their_own():
    rng = np.random.default_rng(0)
    model = random_model(rng)
    one = trained(model, 0, rng)
    result = G2uardFL(profile="paper", seed=0).aggregate(model, dict.fromkeys(range(5), one))
    np.testing.assert_allclose(model_vector(result.weights), model_vector(one), atol=1e-5)
    assert "malicious" not in decisions_of(result).values()


def test_zero_updates_leave_the_model_as_it_was():
    model = random_model(np.random.default_rng(0))
    result = G2uardFL(profile="paper", seed=0).aggregate(model, dict.fromkeys(range(5), model))
    assert np.array_equal(model_vector(result.weights), model_vector(model))
