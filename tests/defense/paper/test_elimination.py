"""Aggregation and adaptive poison eliminating in whole rounds, and what the stage says it did."""

from __future__ import annotations

import numpy as np
import pytest

from g2uardfl.defense.g2uardfl import G2uardFL
from helpers.models import federation, odd_mlp
from helpers.paper_rounds import Both, assert_rounds_agree, decisions_of, first_round, model_vector


def test_without_elimination_the_new_model_is_the_normal_one():
    assert "malicious" in assert_rounds_agree(Both(eliminate=False))


def test_a_strong_elimination_is_the_papers():
    both = Both(elimination_rate=1.0)
    both.literal.gamma = 1.0
    assert "malicious" in assert_rounds_agree(both)


def test_the_weight_of_a_verdict_is_the_clients_share_in_the_new_model():
    both, (model, clients) = Both(), first_round()
    result = both.guard.aggregate(model, clients)
    start = model_vector(model)
    moved = sum(result.verdicts[client].weight * (model_vector(clients[client]) - start) for client in clients)
    np.testing.assert_allclose(model_vector(result.weights), start + moved, atol=1e-5)


@pytest.mark.parametrize("rate", [0.01, 0.2])
def test_an_elimination_is_an_event_with_the_number_of_flagged_clients_and_its_strength(rate):
    both = Both(elimination_rate=rate)
    both.literal.gamma = rate
    for result, _, decisions in both.rounds():
        flagged = [client for client, decision in decisions.items() if decision == "malicious"]
        eliminated = [event for event in result.report.events if event.kind == "eliminated"]
        if not flagged:
            assert not eliminated
            continue
        [event] = eliminated
        blame = sum(abs(both.literal.raw_scores[client]) for client in flagged)
        blame /= sum(abs(both.literal.raw_scores[client]) for client in decisions)
        limit = float(np.mean(both.literal.medians))
        assert event.details["clients"] == len(flagged)
        assert event.details["strength"] == pytest.approx(rate * blame * np.log(1 + limit), rel=1e-5)


def test_without_elimination_there_is_no_event():
    found = [result for result, _, _ in Both(eliminate=False).rounds()]
    assert any("malicious" in decisions_of(result).values() for result in found)
    assert {event.kind for result in found for event in result.report.events} == {"not_compared"}


def test_rejected_clients_have_no_weight_without_elimination_and_malicious_ones_a_negative_one_with_it():
    model = odd_mlp()
    for eliminate in (False, True):
        guard = G2uardFL("paper", seed=0, eliminate=eliminate, elimination_rate=1.0, cluster_epochs=5)
        result = guard.aggregate(model, federation(model, 10, 3))
        assert "malicious" in decisions_of(result).values()
        for verdict in result.verdicts.values():
            if verdict.decision == "accepted":
                assert verdict.weight > 0
            elif verdict.decision == "held_out" or not eliminate:
                assert verdict.weight == 0
            else:
                assert verdict.weight < 0
