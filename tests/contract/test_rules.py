"""Every rule keeps the contract, and each check notices a rule that breaks it."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from g2uardfl.aggregators.base import Outcome
from g2uardfl.aggregators.fedavg import FedAvg
from g2uardfl.contract.rules import CHECKS
from g2uardfl.core.state_files import SavedState
from helpers.rules import RULES, make

TITLES = {check.title: check for check in CHECKS}


@pytest.mark.parametrize("title", TITLES)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_keeps_the_contract(rule, title):
    assert TITLES[title].problem(lambda: make(rule)) == ""


class Forgetful(FedAvg):
    """Has a verdict on the first client only."""

    def combine(self, round_):
        outcome = super().combine(round_)
        return Outcome(outcome.step, outcome.shares, dict(list(outcome.verdicts.items())[:1]))


class Random(FedAvg):
    """Adds noise from torch's global generator."""

    def combine(self, round_):
        outcome = super().combine(round_)
        return Outcome(outcome.step + torch.rand(()), outcome.shares, outcome.verdicts)


class Dividing(FedAvg):
    """Divides each update by its norm, which may be 0."""

    def combine(self, round_):
        shares = np.full(len(round_.clients), 1 / len(round_.clients))
        step = (round_.updates / round_.updates.norm(dim=1, keepdim=True)).mean(dim=0)
        return Outcome(step, shares, super().combine(round_).verdicts)


class Remembering(FedAvg):
    """Moves further in every round, and does not save how many there were."""

    rounds = 0

    def combine(self, round_):
        self.rounds += 1
        outcome = super().combine(round_)
        return Outcome(self.rounds * outcome.step, outcome.shares, outcome.verdicts)


class Unsaveable(FedAvg):
    """Saves something that is not a plain value."""

    def state(self):
        return SavedState({"something": object()})


class Scribbling(FedAvg):
    """Changes the models that clients sent."""

    def aggregate(self, global_weights, client_weights, *rest, **named):
        result = super().aggregate(global_weights, client_weights, *rest, **named)
        for weights in client_weights.values():
            for value in (weights or {}).values():
                value += 1
        return result


class Terse(FedAvg):
    """Gives no reasons."""

    def combine(self, round_):
        outcome = super().combine(round_)
        verdicts = {client: type(verdict)(verdict.decision, "") for client, verdict in outcome.verdicts.items()}
        return Outcome(outcome.step, outcome.shares, verdicts)


@pytest.mark.parametrize(
    ("rule", "beginning", "problem"),
    [
        (Forgetful, "Every client has a verdict", "gives no verdict on client 1"),
        (Terse, "Every client has a verdict", "the reason of client 0 is not a sentence"),
        (Random, "The same seed", "changes the new model"),
        (Random, "The global random generators", "torch's global generator is used"),
        (Dividing, "Updates of zero", "not finite"),
        (Dividing, "Clients that send huge", "with a client that sends the model unchanged"),
        (Remembering, "A rule restored", "restoring the state after 1 rounds changes the new model"),
        (Unsaveable, "A rule restored", "Error"),
        (Scribbling, "What is passed in", "is changed"),
    ],
)
def test_a_rule_that_breaks_the_contract_is_noticed(rule, beginning, problem):
    (check,) = (check for check in CHECKS if check.title.startswith(beginning))
    logging.getLogger("g2uardfl").addHandler(logging.NullHandler())
    assert problem in check.problem(rule)
