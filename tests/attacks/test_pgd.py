"""PGD: the projection, in the loop and in one batched model."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from g2uardfl import attacks, tasks
from g2uardfl.core.errors import ConfigError
from g2uardfl.training.batched import BatchedEngine
from g2uardfl.training.engine import LoopEngine
from g2uardfl.training.local import Job
from helpers import attacking
from helpers.attacking import act, assert_close, distance, enlisted, parameter_keys, train_by_hand, training_turn

RECIPE = dataclasses.replace(attacking.RECIPE, epochs=2)
ENGINES = pytest.mark.parametrize("engine", [LoopEngine, BatchedEngine])


@ENGINES
@pytest.mark.parametrize("radius", [None, 0.05])
@pytest.mark.parametrize("steps", [1, 7])
def test_a_model_that_would_leave_the_ball_ends_on_its_surface(patches, start, engine, radius, steps):
    recipe = dataclasses.replace(RECIPE, lr=0.5, steps=steps)
    counts = {0: 40, 1: 23, 2: 9}
    pgd, free = enlisted("pgd", patches, radius=radius), enlisted("black_box", patches)
    _, sent = act(pgd, training_turn(pgd, start, counts, recipe), engine)
    _, unbound = act(free, training_turn(free, start, counts, recipe), engine)
    for client in counts:
        assert distance(patches, unbound[client], start) > 1.5 * (radius or 0.3)
        assert distance(patches, sent[client], start) == pytest.approx(radius or 0.3, rel=1e-5)


@ENGINES
def test_a_model_inside_the_ball_is_not_changed(patches, start, engine):
    pgd, free = enlisted("pgd", patches, radius=50.0), enlisted("black_box", patches)
    _, sent = act(pgd, training_turn(pgd, start, {0: 40}, RECIPE), engine)
    _, unbound = act(free, training_turn(free, start, {0: 40}, RECIPE), engine)
    for name, value in unbound[0].items():
        assert torch.equal(sent[0][name], value)


@ENGINES
def test_every_step_is_projected_onto_one_ball_over_all_parameters(patches, start, engine):
    pgd = enlisted("pgd", patches, radius=0.1)
    turn = training_turn(pgd, start, {0: 40, 1: 23}, RECIPE)
    _, sent = act(pgd, turn, engine)
    for member in turn.members:
        job = Job(member.client, member.poisoned, dataclasses.replace(RECIPE, radius=0.1), member.seed)
        assert_close(sent[member.client], train_by_hand(patches, start, job))
        layers = [float((sent[member.client][name] - start[name]).norm()) for name in parameter_keys(patches)]
        assert max(layers) < 0.099


@ENGINES
def test_running_statistics_are_not_projected(patches, start, engine):
    pgd = enlisted("pgd", patches, radius=1e-3)
    _, sent = act(pgd, training_turn(pgd, start, {0: 40}, RECIPE), engine)
    assert float((sent[0]["1.running_var"] - start["1.running_var"]).norm()) > 0.1
    assert sent[0]["1.num_batches_tracked"] == 6


def test_the_default_radius_is_the_tasks():
    radii = {name: tasks.find(name).pgd_radius for name in ("mnist", "cifar10", "sentiment140", "reddit")}
    assert radii == {"mnist": 0.2, "cifar10": 1.0, "sentiment140": 2.0, "reddit": 2.0}
    pgd = enlisted("pgd", tasks.create("mnist"))
    assert pgd.recipe(RECIPE) == dataclasses.replace(RECIPE, radius=0.2)
    with pytest.raises(ConfigError, match="radius=-1"):
        attacks.create("pgd", radius=-1)
