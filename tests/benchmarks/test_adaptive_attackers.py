"""Attackers who know how the default profile detects them (`benchmarks/adaptive_attackers.py`)."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch

from adaptive_attackers import MixedDirections, OrthogonalNoise, Sleepers, TakingTurns, TwoGroups
from g2uardfl import attacks
from g2uardfl.core.state_files import SavedState
from g2uardfl.simulation.start import fresh_weights
from g2uardfl.training.local import share_predicted
from helpers.attacking import TEAM, make_turn, moved_by, simulate
from helpers.models import flat


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_noise_is_orthogonal_to_the_update_and_differs_between_attackers(patches, factor):
    attack = OrthogonalNoise("black_box", factor=factor)
    attack.enlist(patches, TEAM)
    weights = fresh_weights(patches, 0)
    turn, trained = make_turn(weights), {client: moved_by(weights, client) for client in TEAM}
    sent, names, added = attack.submissions(turn, trained), attack.parameters, []
    for client in TEAM:
        update = flat(trained[client], names) - flat(weights, names)
        noise = flat(sent[client], names) - flat(trained[client], names)
        assert noise.norm() / update.norm() == pytest.approx(factor, rel=1e-4)
        assert abs(noise @ update) < 1e-4 * noise.norm() * update.norm()
        added.append(noise / noise.norm())
    assert (torch.stack(added) @ torch.stack(added).T - torch.eye(3)).abs().max() < 0.5


def test_an_attacker_with_a_zero_update_adds_no_noise(patches):
    attack = OrthogonalNoise("black_box")
    attack.enlist(patches, TEAM)
    weights = fresh_weights(patches, 0)
    sent = attack.submissions(make_turn(weights), dict.fromkeys(TEAM, weights))
    assert all(torch.equal(sent[client][name], weights[name]) for client in TEAM for name in weights)


def test_the_sent_model_is_the_weighted_mean_of_the_honest_and_the_malicious_one(patches):
    attack = MixedDirections("black_box", share=0.25)
    attack.enlist(patches, TEAM)
    weights = fresh_weights(patches, 0)
    turn = make_turn(weights)
    jobs = attack.jobs(turn)
    assert set(jobs) == {(kind, client) for kind in ("inner", "honest") for client in TEAM}
    trained = {key: moved_by(weights, seed) for seed, key in enumerate(jobs)}
    sent = attack.submissions(turn, trained)
    for client in TEAM:
        for name in attack.parameters:
            expected = 0.25 * trained["inner", client][name] + 0.75 * trained["honest", client][name]
            torch.testing.assert_close(sent[client][name], expected)


@pytest.mark.slow
def test_attackers_that_take_turns_attack_one_at_a_time_and_equally_often():
    simulation = simulate("adaptive_attackers:TakingTurns(black_box)", rounds=16)
    attacking = [record["attacking"] for record in simulation.records]
    assert {len(clients) for clients in attacking} <= {0, 1}
    counts = Counter(client for clients in attacking for client in clients)
    assert len(counts) == len(simulation.attack.team) == 8
    assert max(counts.values()) - min(counts.values()) <= 2
    assert all(record["attacking"] or not record["malicious"] for record in simulation.records)


def test_nobody_attacks_when_the_inner_attack_does_not(patches):
    attack = TakingTurns(Sleepers("black_box", honest_rounds=2))
    attack.enlist(patches, TEAM)
    weights = fresh_weights(patches, 0)
    assert attack.attackers(make_turn(weights, number=2)) == ()
    assert [member.client for member in attack.attackers(make_turn(weights, number=3))] == [1]
    assert [member.client for member in attack.attackers(make_turn(weights, number=4))] == [4]


def test_the_order_of_turns_continues_from_a_saved_state(patches):
    weights = fresh_weights(patches, 0)
    attacks_ = [TakingTurns("black_box"), TakingTurns("black_box")]
    for attack in attacks_:
        attack.enlist(patches, TEAM)
    first, resumed = attacks_
    assert [first.attackers(make_turn(weights))[0].client for _ in range(2)] == [1, 4]
    saved = first.state()
    values = json.loads(json.dumps(saved.values))
    resumed.restore(SavedState(values, saved.arrays))
    assert [resumed.attackers(make_turn(weights))[0].client for _ in range(3)] == [6, 1, 4]


def test_sleepers_are_honest_in_the_first_rounds():
    simulation = simulate("adaptive_attackers:Sleepers(black_box)", rounds=6, attack_settings={"honest_rounds": 3})
    assert [bool(record["attacking"]) for record in simulation.records] == [False] * 3 + [True] * 3
    assert attacks.create("adaptive_attackers:Sleepers").settings.honest_rounds == 50


@pytest.mark.slow
def test_two_groups_plant_two_backdoors():
    simulation = simulate("adaptive_attackers:TwoGroups", rounds=12)
    assert isinstance(simulation.attack, TwoGroups)
    assert simulation.start_scores["asr"] < 0.1
    first, second = (group.backdoor_test() for group in simulation.attack.groups)
    assert len(simulation.attack.backdoor_test()) == len(first) + len(second)
    for backdoor in (first, second):
        assert share_predicted(simulation.task, simulation.model, backdoor) > 0.25
