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
"""Events of rounds in which the new model is not the step of the accepted updates."""
QUICK = {"default": {"sketch_width": 64}, "paper": {"pretrain_epochs": 3, "cluster_epochs": 3}}
each_profile = pytest.mark.parametrize("profile", names())


def kinds(result) -> list[str]:
    return [event.kind for event in result.report.events]


def unexplained(model, sent, result, guard: G2uardFL) -> float:
    """How far the new model is from the global one plus the step of the accepted updates, as a share.

    That is their mean by weights. In the default profile it is so as far as clients learn the same; else each parameter
    moves by the smallest change that all but 15 % of the accepted clients support, or all of them in the first rounds.
    """
    updates = {client: flat(weights) - flat(model) for client, weights in sent.items()}
    accepted = [client for client, verdict in result.verdicts.items() if verdict.decision == "accepted"]
    moved = flat(result.weights) - flat(model)
    mean = sum((result.verdicts[client].weight * updates[client] for client in accepted), 0 * moved)
    expected = mean
    if guard.profile == "default":
        learning = guard.filtering.learning.share
        clipped = [len(accepted) * result.verdicts[client].weight * updates[client] for client in accepted]
        ordered = torch.stack(clipped).sort(dim=0).values
        dissenting = int(0.15 * len(accepted)) if guard.round >= 5 else 0
        consensus = ordered[dissenting].clamp(min=0) + ordered[-1 - dissenting].clamp(max=0)
        expected = learning * mean + (1 - learning) * consensus
    return float((moved - expected).norm() / max(update.norm() for update in updates.values()))


@pytest.mark.parametrize(
    ("profile", "settings", "event"),
    [
        ("default", {}, "rolled_back"),
        ("default", {"rollback": False}, None),
        ("paper", {}, "eliminated"),
        ("paper", {"eliminate": False}, None),
    ],
)
def test_every_other_change_of_the_model_than_the_step_of_the_accepted_updates_is_an_event(profile, settings, event):
    guard, model = G2uardFL(profile, seed=0, **settings, **QUICK[profile]), first_model()
    seen, unchanged = set(), 0
    for number in range(1, 41):
        sent = Federation().messages(model, number)
        result = guard.aggregate(model, sent)
        changed = CHANGES & set(kinds(result))
        seen |= changed
        unchanged += not changed
        difference = unexplained(model, sent, result, guard)
        assert (difference > 1e-5) == bool(changed)
        if "rolled_back" in changed:
            assert {verdict.weight for verdict in result.verdicts.values()} == {0.0}
        model = result.weights
    assert seen == ({event} if event else set())
    # The paper's profile flags the worst cluster of every round.
    assert unchanged > 3 or event == "eliminated"


def test_a_rollback_is_an_event():
    found = [kinds(result) for result in run_late_detection(G2uardFL(seed=0, sketch_width=64), 6)]
    assert found[:3] == [[], [], []]
    assert "rolled_back" in found[3]


@each_profile
def test_running_statistics_are_the_robust_mean_of_the_accepted_clients_unless_an_event_says_otherwise(profile):
    guard, model, compared = G2uardFL(profile, seed=0, **QUICK[profile]), batch_norm_model(), 0
    for number in range(1, 13):
        clients = [*range(3 if number % 2 else 0), *range(10 * number, 10 * number + 8)]
        sent = {client: trained(model, 100 * number + client, client < 3) for client in clients}
        result = guard.aggregate(model, sent)
        if not kinds(result):
            compared += 1
            voting = {client: verdict for client, verdict in result.verdicts.items() if verdict.decision != "malicious"}
            shares = [verdict.weight if verdict.decision == "accepted" else 0.0 for verdict in voting.values()]
            for name in ("1.running_mean", "1.running_var"):
                for place, found in enumerate(result.weights[name].tolist()):
                    values = [sent[client][name][place].item() for client in voting]
                    expected = slow_mean(values, shares, 0.0, name.endswith("var"))
                    assert found == pytest.approx(expected, rel=1e-5)
        model = result.weights
    assert compared >= (3 if profile == "default" else 0)


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
