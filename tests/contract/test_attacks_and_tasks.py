"""Attacks and tasks keep the contract, and each check notices one that breaks it."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from g2uardfl import attacks, tasks
from g2uardfl.attacks.black_box import BlackBox
from g2uardfl.contract import attacks as of_attacks
from g2uardfl.contract import tasks as of_tasks
from g2uardfl.tasks.base import Samples
from helpers.models import Patches

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("check", of_attacks.CHECKS, ids=lambda check: check.title)
@pytest.mark.parametrize("attack", ["black_box", "randomized(dba)"])
def test_an_attack_keeps_the_contract(attack, check):
    assert check.problem(lambda: attacks.create(attack)) == ""


class Short(BlackBox):
    """Omits one array."""

    def submissions(self, turn, trained):
        return {m.client: dict(list(trained[m.client].items())[1:]) for m in turn.members}


class Drawing(BlackBox):
    """Sends noise from torch's global generator."""

    def submissions(self, turn, trained):
        return {m.client: {n: torch.randn(v.shape) for n, v in trained[m.client].items()} for m in turn.members}


class Growing(BlackBox):
    """Scales its updates by the number of rounds, which it does not save."""

    rounds = 0

    def observe(self, turn):
        self.rounds += 1

    def recipe(self, honest):
        return dataclasses.replace(honest, lr=honest.lr / self.rounds)


class Mislabelling(BlackBox):
    """Has labels that are not classes."""

    def training_data(self, client, clean, pdr, generator):
        return Samples(clean.x, clean.y + 10)


@pytest.mark.parametrize(
    ("attack", "beginning", "problem"),
    [
        (Short, "Every attacker sends", "sends other names than the model's"),
        (Drawing, "The same seed", "differ in round 1"),
        (Growing, "A run that is resumed", "ends with another model"),
        (Mislabelling, "Its samples have", "training_data with pdr=0.0 returns labels that are not classes"),
    ],
)
def test_an_attack_that_breaks_the_contract_is_noticed(attack, beginning, problem):
    (check,) = (check for check in of_attacks.CHECKS if check.title.startswith(beginning))
    assert problem in check.problem(attack)


class Whole(Patches):
    """A task that keeps the contract: its backdoored test samples are not those of the attacker."""

    summary = "random pictures"

    def load_backdoor_test(self):
        return Samples(self.samples(30, 9).x, torch.ones(30, dtype=torch.int64))


@pytest.mark.parametrize("check", of_tasks.CHECKS, ids=lambda check: check.title)
@pytest.mark.parametrize("task", [Whole, lambda: tasks.create("digits", wrong_labels=0.1)], ids=["own", "digits"])
def test_a_task_keeps_the_contract(task, check):
    assert check.problem(task) == ""


class Restless(Whole):
    """Draws other samples each time."""

    def load_train(self):
        return Samples(torch.randint(0, 255, (50, 1, 6, 6), dtype=torch.uint8), torch.zeros(50, dtype=torch.int64))


class Offset(Whole):
    """Counts its labels from 1."""

    def load_test(self):
        samples = super().load_test()
        return Samples(samples.x, samples.y + 1)


class Narrow(Whole):
    """Has a model with too few outputs."""

    def build_model(self):
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 2))


class Jittering(Whole):
    """Augments with numbers from torch's global generator."""

    def augment(self, x, generator):
        return x + torch.randint(0, 200, x.shape, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("task", "beginning", "problem"),
    [
        (Offset, "Samples have one form", "test has labels outside 0 to 3"),
        (Restless, "Two loads", "two loads of train differ"),
        (Patches, "No sample of backdoor_test", "60 of the 60 samples of backdoor_test are in backdoor_train"),
        (Narrow, "Every model", "shape (8, 2), not (8, 4)"),
        (Jittering, "Augmentation", "the same generator augments differently"),
    ],
)
def test_a_task_that_breaks_the_contract_is_noticed(task, beginning, problem):
    (check,) = (check for check in of_tasks.CHECKS if check.title.startswith(beginning))
    assert problem in check.problem(task)
