"""The model is rolled back to one that existed, once attackers are detected whose updates had been accepted."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from g2uardfl import G2uardFL
from helpers.federations import (
    PRECISIONS,
    Federation,
    converted,
    drawn,
    first_model,
    messages,
    run_late_detection,
    widened,
)
from helpers.models import batch_norm_model, flat, same

ATTACKERS_OF_ROUND = [[0], [1], [2, 3, 4], [5, 6]]
"""Two attackers of different rounds are no community; with three more they are."""


def detected_in_round_3(guard, rounds=3, first_number=1):
    """The models before and after each round, and the results."""
    models, results = [first_model()], []
    for number, attackers in enumerate(ATTACKERS_OF_ROUND[:rounds], start=1):
        sent = messages(models[-1], 4, number, [*attackers, *range(10 * number, 10 * number + 9)])
        results.append(guard.aggregate(models[-1], sent, round_number=first_number + number - 1))
        models.append(results[-1].weights)
    return models, results


def rollbacks(results) -> list[list]:
    """For each result the rounds to which the model was rolled back."""
    return [[event.details["round"] for event in one.report.events if event.kind == "rolled_back"] for one in results]


def test_the_model_is_rolled_back_to_before_the_first_accepted_attacker():
    models, results = detected_in_round_3(G2uardFL(seed=0, eliminate=False))
    without, _ = detected_in_round_3(G2uardFL(seed=0, eliminate=False, rollback=False))
    refused = [[client for client, verdict in one.verdicts.items() if verdict.refused] for one in results]
    assert refused == [[], [], [2, 3, 4]]
    assert same(models[2], without[2])
    assert same(models[3], models[0])
    assert not same(models[2], models[0])
    assert not same(models[3], without[3])


def test_an_event_names_the_round_as_the_caller_numbers_it():
    _, results = detected_in_round_3(G2uardFL(seed=0), first_number=101)
    assert rollbacks(results) == [[], [], [101]]
    assert results[2].note == (
        "The model was rolled back to the start of round 101: attackers were detected whose updates had been accepted "
        "since."
    )


def test_updates_of_a_round_that_is_rolled_back_have_no_weight():
    _, results = detected_in_round_3(G2uardFL(seed=0))
    assert {verdict.weight for verdict in results[2].verdicts.values()} == {0.0}


def test_the_next_round_continues_from_the_restored_model():
    models, results = detected_in_round_3(G2uardFL(seed=0, eliminate=False), rounds=4)
    accepted = [flat(messages(models[3], 4, 4, [client])[client]) for client in range(40, 49)]
    moved = flat(models[4]) - flat(models[3])
    assert moved.norm() <= 1.01 * (torch.stack(accepted).mean(dim=0) - flat(models[3])).norm()
    assert rollbacks(results)[3] == []


@pytest.mark.parametrize("when", [1, 2])
def test_a_guard_that_was_saved_rolls_back_as_well(tmp_path, when):
    models, results = detected_in_round_3(G2uardFL(seed=0))
    guard = G2uardFL(seed=0)
    detected_in_round_3(guard, rounds=when)
    guard.save(tmp_path / "guard")
    guard = G2uardFL.load(tmp_path / "guard")
    for number in range(when + 1, 4):
        clients = [*ATTACKERS_OF_ROUND[number - 1], *range(10 * number, 10 * number + 9)]
        sent = messages(models[number - 1], 4, number, clients)
        result = guard.aggregate(models[number - 1], sent, round_number=number)
    assert result.note == results[2].note != ""
    assert same(result.weights, models[3])


def test_a_guard_without_rollback_does_not_roll_back_to_the_snapshots_of_a_saved_one():
    saved, guard = G2uardFL(seed=0), G2uardFL(seed=0, rollback=False)
    models, _ = detected_in_round_3(saved, rounds=2)
    guard.restore(saved.state())
    result = guard.aggregate(models[2], messages(models[2], 4, 3, [2, 3, 4, *range(30, 39)]))
    assert rollbacks([result]) == [[]]


def learning_in(rounds, guard):
    """As `detected_in_round_3`, one round later; in some of the rounds all honest updates share a direction."""
    models, results, shared = [first_model()], [], drawn(7, 7)
    for number, attackers in enumerate([[], *ATTACKERS_OF_ROUND[:3]], start=1):
        honest = 10 * (number % 3)
        sent = messages(models[-1], 4, number, [*attackers, *range(honest + 10, honest + 19)])
        for client in sent.keys() - set(attackers) if number in rounds else ():
            moved = {name: value + 0.01 * shared[name] for name, value in sent[client].items()}
            sent[client] = {name: value.astype(np.float32) for name, value in moved.items()}
        results.append(guard.aggregate(models[-1], sent))
        models.append(results[-1].weights)
    return models, results


@pytest.mark.parametrize(("rounds", "expected"), [([1, 2, 3], []), ([1, 2, 3, 4], []), ([], [1])], ids=str)
def test_the_model_is_not_rolled_back_while_all_clients_learn_the_same(rounds, expected):
    """As in training from scratch."""
    models, results = learning_in(rounds, G2uardFL(seed=0, eliminate=False))
    # By then one snapshot covers the first two rounds.
    assert rollbacks(results) == [[], [], [], expected]
    assert same(models[4], models[0]) == bool(expected)


@pytest.mark.parametrize("saved", [False, True], ids=["live", "saved"])
@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
def test_parameters_and_running_statistics_are_those_of_the_named_round_bit_for_bit(precision, saved, tmp_path):
    # The evidence is about 15, the default, in each precision.
    guard, models, results = G2uardFL(seed=0, min_evidence=10.0), [converted(batch_norm_model(), precision)], []
    for number in range(1, 5):
        if saved:
            guard.save(tmp_path / "guard")
            guard = G2uardFL.load(tmp_path / "guard")
        results += run_late_detection(guard, 1, models[-1], first=number)
        models.append(results[-1].weights)
    assert [results[1].verdicts[0].decision, results[2].verdicts[1].decision] == ["accepted", "accepted"]
    [number] = rollbacks(results)[3]
    # The first attacker is in round 2; one snapshot covers rounds 1 and 2 by then.
    assert number in (1, 2)
    expected, before, found = models[number - 1], models[3], models[4]
    assert {name: value.dtype for name, value in found.items()} == {n: v.dtype for n, v in expected.items()}
    assert same(widened(found), widened(expected))
    for name in {name for name in expected if ".running_" in name or name.endswith("weight")}:
        assert not np.array_equal(widened(before)[name], widened(expected)[name])


def test_snapshots_of_a_long_run_are_few_spaced_and_bound_the_state():
    guard, rounds = G2uardFL(seed=0, window=300, sketch_width=64), 50
    sizes = []
    for result in Federation(attackers=()).run(guard, rounds):
        assert rollbacks([result]) == [[]]
        sizes.append(sum(array.nbytes for array in guard.state().arrays.values()))
    in_window = len(set(guard.construction.window.rounds))
    kept = guard.elimination.snapshots.kept
    assert in_window == 30
    assert len(kept) <= 2 * math.log2(in_window) + 2
    ages = [rounds + 1 - one.rounds[0] for one in kept]
    assert all(older <= 2 * newer + 1 for older, newer in pairwise(ages))
    model = sum(value.nbytes for value in first_model().values())
    sketches = guard.construction.window.sketches.nbytes
    assert sizes[-1] <= sketches + (2 * math.log2(in_window) + 2) * model
    # It does not grow after the window is full.
    assert max(sizes[35:]) <= 1.2 * sizes[31]
