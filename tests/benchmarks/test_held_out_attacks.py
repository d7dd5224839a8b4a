"""Attacks that are not in the paper (`benchmarks/held_out_attacks.py`)."""

from __future__ import annotations

import json

import pytest
import torch

from g2uardfl.core.state_files import SavedState
from g2uardfl.simulation.start import fresh_weights
from g2uardfl.tasks.base import Samples
from held_out_attacks import LabelFlipping, LittleIsEnough, Neurotoxin, Patch, SignFlipping
from helpers.attacking import TEAM, make_turn, moved_by, simulate
from helpers.models import flat


def enlisted(attack, task):
    attack.enlist(task, TEAM)
    return attack


def test_neurotoxin_does_not_change_the_parameters_that_changed_most(patches):
    attack = enlisted(Neurotoxin("black_box", masked=0.2), patches)
    before, now = fresh_weights(patches, 0), fresh_weights(patches, 1)
    trained = {client: moved_by(now, client) for client in TEAM}
    attack.observe(make_turn(before))
    assert attack.submissions(make_turn(before), trained) == trained
    attack.observe(make_turn(now))
    sent = attack.submissions(make_turn(now), trained)
    steps = (flat(now, attack.parameters) - flat(before, attack.parameters)).abs()
    busiest = set(steps.argsort(descending=True)[: round(0.2 * len(steps))].tolist())
    for client in TEAM:
        kept = flat(sent[client], attack.parameters) == flat(now, attack.parameters)
        assert set(torch.nonzero(kept).flatten().tolist()) == busiest
        as_trained = flat(sent[client], attack.parameters) == flat(trained[client], attack.parameters)
        assert as_trained[~kept].all()


def test_neurotoxin_continues_from_a_saved_state(patches):
    first, resumed = (enlisted(Neurotoxin("black_box"), patches) for _ in range(2))
    before, now = fresh_weights(patches, 0), fresh_weights(patches, 1)
    for weights in (before, now):
        first.observe(make_turn(weights))
    saved = first.state()
    resumed.restore(SavedState(json.loads(json.dumps(saved.values)), saved.arrays))
    trained = {client: moved_by(now, client) for client in TEAM}
    one, other = (attack.submissions(make_turn(now), trained) for attack in (first, resumed))
    assert all(torch.equal(one[client][name], other[client][name]) for client in TEAM for name in now)
    assert not torch.equal(flat(one[1], first.parameters), flat(trained[1], first.parameters))


def test_little_is_enough_stays_within_the_range_of_honest_models(patches):
    attack = enlisted(LittleIsEnough("black_box", deviations=1.5), patches)
    weights = fresh_weights(patches, 0)
    turn = make_turn(weights)
    trained = {key: moved_by(weights, seed) for seed, key in enumerate(attack.jobs(turn))}
    sent = attack.submissions(turn, trained)
    clamped = 0
    for name in attack.parameters:
        honest = torch.stack([trained["honest", client][name] for client in TEAM]).double()
        low, high = (honest.mean(dim=0) + sign * 1.5 * honest.std(dim=0) for sign in (-1, 1))
        target = torch.stack([trained["inner", client][name] for client in TEAM]).double().mean(dim=0)
        expected = torch.minimum(torch.maximum(target, low), high)
        clamped += int((expected != target).sum())
        for client in TEAM:
            torch.testing.assert_close(sent[client][name].double(), expected, rtol=1e-5, atol=1e-5)
    assert clamped > 0


def test_a_single_attacker_sends_its_malicious_model(patches):
    attack = enlisted(LittleIsEnough("black_box"), patches)
    weights = fresh_weights(patches, 0)
    turn = make_turn(weights, clients=(4,))
    trained = {key: moved_by(weights, seed) for seed, key in enumerate(attack.jobs(turn))}
    assert attack.submissions(turn, trained) == {4: trained["inner", 4]}


def test_the_patch_is_the_same_white_square_for_all_attackers():
    attack = simulate("held_out_attacks:Patch", rounds=1).attack
    assert isinstance(attack, Patch)
    clean = attack.task.test
    for client in attack.team[:2]:
        pictures = clean.x.clone()
        attack.draw(pictures, client)
        assert (pictures[..., -3:, -3:] == attack.pixels.white).all()
        assert torch.equal(pictures[..., :-3, :], clean.x[..., :-3, :])
        assert torch.equal(pictures[..., -3:, :-3], clean.x[..., -3:, :-3])
    assert (attack.backdoor_test().y == 0).all()


def test_one_class_is_labelled_as_another():
    attack = simulate("held_out_attacks:LabelFlipping", rounds=1).attack
    assert isinstance(attack, LabelFlipping)
    clean = Samples(torch.zeros(4, 1, 8, 8), torch.tensor([1, 7, 1, 3]))
    assert attack.training_data(0, clean, 0.5, torch.Generator()).y.tolist() == [7, 7, 7, 3]
    backdoor = attack.backdoor_test()
    assert len(backdoor) == int((attack.task.test.y == 1).sum()) > 0
    assert set(backdoor.y.tolist()) == {7}


def test_sign_flipping_sends_the_negative_update(patches):
    attack = enlisted(SignFlipping(factor=2.0), patches)
    weights = fresh_weights(patches, 0)
    trained = {client: moved_by(weights, client) for client in TEAM}
    sent = attack.submissions(make_turn(weights), trained)
    for client in TEAM:
        honest, flipped = (
            flat(models[client], attack.parameters) - flat(weights, attack.parameters) for models in (trained, sent)
        )
        torch.testing.assert_close(flipped, -2.0 * honest, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["Neurotoxin(black_box)", "Patch"])
def test_without_a_defence_the_backdoor_is_planted(attack):
    simulation = simulate(f"held_out_attacks:{attack}", rounds=15)
    assert simulation.start_scores["asr"] < 0.05
    assert max(record["asr"] for record in simulation.records) > 0.1
