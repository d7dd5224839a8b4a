"""Round reports of both profiles: events say what the guard did to the model, and nothing is done silently."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from g2uardfl import G2uardFL
from g2uardfl.defense.profiles import names
from helpers.buffers import slow_mean
from helpers.federations import Federation, first_model, messages, run_late_detection, trained
from helpers.models import batch_norm_model, flat, same

CHANGES = {"rolled_back", "eliminated"}
"""Events of rounds in which the new model is not the mean of accepted updates."""
QUICK = {"default": {"sketch_width": 64}, "paper": {"pretrain_epochs": 3, "cluster_epochs": 3}}
each_profile = pytest.mark.parametrize("profile", names())


def kinds(result) -> list[str]:
    return [event.kind for event in result.report.events]


def unexplained(model, sent, result) -> float:
    """How far the new model is from the global one plus the accepted updates by their weights, as a share."""
    updates = {client: flat(weights) - flat(model) for client, weights in sent.items()}
    accepted = [client for client, verdict in result.verdicts.items() if verdict.decision == "accepted"]
    moved = flat(result.weights) - flat(model)
    expected = sum((result.verdicts[client].weight * updates[client] for client in accepted), 0 * moved)
    return float((moved - expected).norm() / max(update.norm() for update in updates.values()))


def replayed_models(results):
    """The model before each round of a run, and its result."""
    model = first_model()
    for number, result in enumerate(results, start=1):
        yield number, model, result
        model = result.weights


@each_profile
@pytest.mark.parametrize("eliminate", [True, False])
def test_every_other_change_of_the_model_than_the_weighted_mean_is_an_event(profile, eliminate):
    federation, seen, unchanged = Federation(), set(), 0
    results = federation.run(G2uardFL(profile, eliminate=eliminate, **QUICK[profile]), 40)
    for number, model, result in replayed_models(results):
        changed = CHANGES & set(kinds(result))
        seen |= changed
        unchanged += not changed
        difference = unexplained(model, federation.messages(model, number), result)
        assert (difference > 1e-5) == bool(changed)
        if "rolled_back" in changed:
            assert {verdict.weight for verdict in result.verdicts.values()} == {0.0}
    assert ("eliminated" in seen) == eliminate
    # The paper's profile flags the worst cluster of every round.
    assert unchanged > 3 or (profile == "paper" and eliminate)


def test_a_rollback_and_the_small_steps_of_the_first_rounds_are_events():
    found = [kinds(result) for result in run_late_detection(G2uardFL(seed=0, sketch_width=64), 6)]
    assert found[0] == ["small_steps"]
    assert "rolled_back" in found[3]
    assert sum("small_steps" in of_round for of_round in found) == 1


def slow_statistics(name, model, sent, result) -> list[float]:
    """The robust mean that docs/defences.md describes, value by value.

    Flagged clients do not vote about what is usual. The others count as much as their updates do.
    """
    voting = {client: verdict for client, verdict in result.verdicts.items() if verdict.decision != "malicious"}
    shares = [verdict.weight if verdict.decision == "accepted" else 0.0 for verdict in voting.values()]
    return [
        slow_mean([sent[client][name][k].item() for client in voting], shares, value.item(), name.endswith("var"))
        for k, value in enumerate(model[name])
    ]


@each_profile
def test_running_statistics_are_the_robust_mean_of_the_accepted_clients_unless_an_event_says_otherwise(profile):
    guard, model, compared = G2uardFL(profile, seed=0, eliminate=False, **QUICK[profile]), batch_norm_model(), 0
    for number in range(1, 13):
        clients = [*range(3 if number % 2 else 0), *range(10 * number, 10 * number + 8)]
        sent = {client: trained(model, 100 * number + client, client < 3) for client in clients}
        for client in clients:
            sent[client]["1.running_var"] *= torch.from_numpy(np.random.default_rng(client).uniform(0.5, 2, 4)).float()
        result = guard.aggregate(model, sent)
        if not kinds(result) or kinds(result) == ["small_steps"]:
            compared += 1
            for name in ("1.running_mean", "1.running_var"):
                expected = slow_statistics(name, model, sent, result)
                np.testing.assert_allclose(result.weights[name].numpy(), expected, rtol=1e-5)
        model = result.weights
    assert compared > 2


@each_profile
def test_events_are_sentences_with_details_that_json_can_hold(profile):
    events = [
        event
        for run in (Federation(1).run, run_late_detection)
        for result in run(G2uardFL(profile, seed=0, **QUICK[profile]), 14)
        for event in result.report.events
    ]
    assert events
    for event in events:
        assert event.kind.isidentifier()
        assert event.message[0].isupper()
        assert event.message.endswith(".")
        assert "\n" not in event.message
        assert json.loads(json.dumps(event.as_dict())) == event.as_dict()
        assert event.as_dict().keys() == {"kind", "message", *event.details}


@each_profile
def test_a_report_has_the_seconds_of_each_stage_in_order_and_the_messages_in_its_note(profile):
    for result in Federation().run(G2uardFL(profile, seed=0, **QUICK[profile]), 8):
        seconds = result.report.seconds
        stages = ["construction", "clustering", "filtering", "elimination"]
        assert list(seconds) == ["reading", "observation", *stages, "building the model"]
        assert all(isinstance(value, float) and value >= 0 for value in seconds.values())
        assert result.note == " ".join(event.message for event in result.report.events)
        assert json.dumps(result.report.as_dict())


@each_profile
def test_a_round_with_too_few_updates_keeps_the_model_and_the_memory(profile):
    guard, model = G2uardFL(profile, seed=0, **QUICK[profile]), first_model()
    Federation().run(guard, 2)
    before = guard.state()
    result = guard.aggregate(model, messages(model, 0, 3, [1, 2, 3]), min_updates=4)
    assert not result.decided
    assert same(result.weights, model)
    assert kinds(result) == ["model_kept"]
    assert guard.round == 2
    after = guard.state()
    assert after.values == before.values
    assert all(np.array_equal(after.arrays[name], array) for name, array in before.arrays.items())
    assert guard.aggregate(model, messages(model, 0, 3, [1, 2, 3, 4]), min_updates=4).decided


@each_profile
def test_verdicts_of_invalid_clients_are_in_the_report_and_change_nothing(profile):
    model = first_model()
    sent = Federation().messages(model, 1)
    plain, other = (G2uardFL(profile, seed=0, **QUICK[profile]) for _ in range(2))
    expected = plain.aggregate(model, sent)
    result = other.aggregate(model, {"broken": {}, **sent, "empty": None})
    assert list(result.verdicts) == ["broken", *sent, "empty"]
    assert {result.verdicts[client].decision for client in ("broken", "empty")} == {"invalid"}
    assert {client: result.verdicts[client] for client in sent} == expected.verdicts
    assert same(result.weights, expected.weights)
