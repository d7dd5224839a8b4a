"""Constrain-and-scale: the constrained loss against literal SGD, and the scaling."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from g2uardfl import attacks
from g2uardfl.training.batched import BatchedEngine
from g2uardfl.training.engine import LoopEngine
from g2uardfl.training.local import Job
from helpers import attacking
from helpers.attacking import act, assert_close, distance, enlisted, parameter_keys, train_by_hand, training_turn
from helpers.models import same

RECIPE = dataclasses.replace(attacking.RECIPE, epochs=2)
ENGINES = pytest.mark.parametrize("engine", [LoopEngine, BatchedEngine])


@ENGINES
@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.9])
def test_the_gradient_of_the_distance_is_part_of_every_step(patches, start, engine, alpha):
    attack = enlisted("constrain_and_scale", patches, alpha=alpha, epoch_factor=1.0)
    turn = training_turn(attack, start, {0: 40, 1: 23}, RECIPE)
    trained, _ = act(attack, turn, engine)
    for member in turn.members:
        recipe = dataclasses.replace(RECIPE, loss_weight=alpha, distance_weight=1 - alpha)
        literal = train_by_hand(patches, start, Job(member.client, member.poisoned, recipe, member.seed))
        assert all(torch.isfinite(value).all() for value in trained[member.client].values())
        assert_close(trained[member.client], literal)
        weaker = dataclasses.replace(recipe, distance_weight=0.0)
        without = train_by_hand(patches, start, Job(member.client, member.poisoned, weaker, member.seed))
        assert distance(patches, literal, start) < 0.98 * distance(patches, without, start)


@ENGINES
def test_with_alpha_1_training_is_that_of_black_box_bit_for_bit(patches, start, engine):
    constrained = enlisted("constrain_and_scale", patches, alpha=1.0, epoch_factor=1.0)
    plain = enlisted("black_box", patches)
    first, _ = act(constrained, training_turn(constrained, start, {0: 40, 1: 23}, RECIPE), engine)
    second, _ = act(plain, training_turn(plain, start, {0: 40, 1: 23}, RECIPE), engine)
    assert all(same(first[client], weights) for client, weights in second.items())


@ENGINES
def test_with_alpha_0_the_model_stays_at_the_global_one(patches, start, engine):
    attack = enlisted("constrain_and_scale", patches, alpha=0.0)
    recipe = dataclasses.replace(RECIPE, weight_decay=0.0)
    trained, sent = act(attack, training_turn(attack, start, {0: 40, 10: 40}, recipe), engine)
    for key in parameter_keys(patches):
        assert torch.equal(trained[0][key], start[key])
        assert torch.equal(sent[0][key], start[key])


@ENGINES
@pytest.mark.parametrize("distance_weight", [1.0, 10.0, 1e4])
def test_no_weight_of_the_distance_makes_the_first_step_nan(patches, start, engine, distance_weight):
    job = Job(0, patches.samples(20, 5), dataclasses.replace(RECIPE, distance_weight=distance_weight), seed=1)
    (trained,) = engine(patches, patches.build_model()).train(start, [job])
    assert all(torch.isfinite(value).all() for value in trained.values())


def test_a_given_scale_is_used_and_not_multiplied_by_the_number_of_attackers(patches, start):
    attack = enlisted("constrain_and_scale", patches, scale=3.0)
    trained, sent = act(attack, training_turn(attack, start, {0: 40, 1: 23, 2: 5, 10: 60}))
    for client, model in trained.items():
        for key in parameter_keys(patches):
            expected = start[key].double() + 3 * (model[key].double() - start[key])
            torch.testing.assert_close(sent[client][key].double(), expected, rtol=0, atol=1e-5)


def test_epochs_and_learning_rate_are_multiples_of_the_honest_ones():
    attack = attacks.create("constrain_and_scale", epoch_factor=3, lr_factor=0.5)
    assert attack.recipe(RECIPE) == dataclasses.replace(
        RECIPE, lr=0.025, epochs=6, loss_weight=0.5, distance_weight=0.5
    )
    assert attack.recipe(dataclasses.replace(RECIPE, steps=4)).steps == 12


def test_attackers_train_for_the_originals_15_epochs_against_2_or_for_15_steps():
    attack = attacks.create("constrain_and_scale")
    assert attack.recipe(RECIPE).epochs == 15
    assert attack.recipe(dataclasses.replace(RECIPE, steps=2)).steps == 15
