"""3DFed's indicators: where they are planted, and what the attack learns from the next global model."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from g2uardfl import aggregators
from g2uardfl.core.state_files import SavedState
from g2uardfl.simulation.start import fresh_weights
from helpers.three_d_fed import (
    CONVOLUTION,
    COUNTS,
    TEAM,
    SmoothPatches,
    invented,
    memory,
    observe,
    play,
    three_d_fed,
    turn_of,
    unmasked,
)


@pytest.mark.parametrize("kappa", [1e5, 1e9])
def test_each_attacker_enlarges_one_weight_of_the_last_convolution(digits, trained_digits, kappa):
    attack = three_d_fed(digits, kappa=kappa)
    round_ = play(attack, trained_digits)
    places = attack.state().arrays["places"]
    backdoor = unmasked(round_)[CONVOLUTION].flatten()
    assert len(set(places.tolist())) == 4
    for client, place in zip(TEAM, places.tolist(), strict=True):
        found = round_.update(client, CONVOLUTION).flatten()
        others = torch.arange(len(found)) != place
        torch.testing.assert_close(found[others], backdoor[others], rtol=0, atol=1e-6)
        enlarged = kappa * float(backdoor[place])
        expected = math.copysign(max(abs(enlarged), 1e-2), enlarged)
        assert float(found[place]) == pytest.approx(expected, rel=1e-2)


def test_a_weight_that_training_did_not_change_is_set_to_the_floor(digits, trained_digits):
    attack = three_d_fed(digits, team=(0,), indicator_floor=0.25)
    turn = turn_of(attack, trained_digits, 1, [0, 7])
    trained = invented(digits, trained_digits, 1.0, 1.0)
    for model in trained.values():
        model[CONVOLUTION] = trained_digits[CONVOLUTION].clone()
    change = attack.submissions(turn, trained)[0][CONVOLUTION] - trained_digits[CONVOLUTION]
    assert int((change != 0).sum()) == 1
    assert float(change.max()) == pytest.approx(0.25, rel=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_an_indicator_is_at_the_smallest_curvature_among_the_weights_that_moved_least(seed):
    task = SmoothPatches()
    start = fresh_weights(task, seed)
    attack = three_d_fed(task, team=(0,), target=3)
    turn = turn_of(attack, start, 1, [0, 7])
    trained = invented(task, start, 1.0, 1.0, seed)
    attack.submissions(turn, trained)
    (place,) = attack.state().arrays["places"].tolist()

    model = task.build_model().double().eval()
    model.load_state_dict(start)
    samples = turn.members[0].poisoned

    def loss(weight: Tensor) -> Tensor:
        outputs = torch.func.functional_call(model, {"0.weight": weight}, (task.prepare(samples.x.double()),))
        return nn.functional.cross_entropy(outputs, samples.y)

    row_sums = torch.autograd.functional.hessian(loss, start["0.weight"].double()).reshape(18, 18).sum(dim=1)
    moves = sum((trained[key]["0.weight"] - start["0.weight"]).abs().flatten() for key in ("backdoor", "reference"))
    candidates = sorted(range(18), key=lambda i: float(moves[i]))[:10]
    assert place == min(candidates, key=lambda i: abs(float(row_sums[i])))


def test_under_fedavg_the_feedback_of_each_indicator_is_the_clients_share_of_the_average(digits, trained_digits):
    attack = three_d_fed(digits)
    weights = trained_digits
    for number in (1, 2, 3):
        round_ = play(attack, weights, number)
        places = attack.state().arrays["places"].tolist()
        arrived = (round_.after[CONVOLUTION].double() - round_.before[CONVOLUTION].double()).flatten()
        for client, place in zip(TEAM, places, strict=True):
            planted = float(round_.update(client, CONVOLUTION).flatten()[place])
            share = COUNTS[client] / sum(COUNTS.values())
            assert float(arrived[place]) / planted == pytest.approx(share, rel=0.05)
        weights = round_.after
    observe(attack, weights, 4)
    assert not memory(attack)["server_adds_noise"]
    assert memory(attack)["decoys"] == 0


# Feedback.


def test_if_everything_is_accepted_the_next_alphas_are_between_the_accepted_ones(digits, trained_digits):
    attack = three_d_fed(digits)
    round_ = play(attack, trained_digits)
    alphas = sorted(attack.state().arrays["alphas"].tolist())
    assert len(alphas) == 2
    observe(attack, round_.after, 2)
    assert memory(attack)["alpha_range"] == alphas
    assert memory(attack)["decoys"] == 0


def test_a_rejected_group_is_distinguished_from_an_accepted_one(digits, trained_digits):
    attack = three_d_fed(digits)
    round_ = play(attack, trained_digits, rejected=(2, 3))
    kept = float(attack.state().arrays["alphas"][0])
    observe(attack, round_.after, 2)
    assert memory(attack)["alpha_range"] == [kept, pytest.approx(kept + 0.1)]
    assert memory(attack)["decoys"] == 0
    assert not memory(attack)["server_adds_noise"]


def test_a_clipped_group_does_not_count_as_accepted(digits, trained_digits):
    attack = three_d_fed(digits)
    round_ = play(attack, trained_digits, clipped={0: 0.4, 1: 0.4})
    kept = float(attack.state().arrays["alphas"][1])
    observe(attack, round_.after, 2)
    assert memory(attack)["alpha_range"] == [kept, pytest.approx(kept + 0.1)]


def test_if_everything_is_rejected_new_alphas_are_drawn_and_a_decoy_is_added(digits, trained_digits):
    attack = three_d_fed(digits)
    round_ = play(attack, trained_digits, rejected=TEAM)
    observe(attack, round_.after, 2)
    expected = {"decoys": 1, "alpha_range": [0.0, 1.0], "server_adds_noise": False, "planted_in": None}
    assert memory(attack) == expected


@pytest.mark.parametrize("rejected", [(), TEAM])
def test_noise_of_the_server_is_detected_permanently_and_fixes_alpha(digits, trained_digits, rejected):
    attack = three_d_fed(digits)
    round_ = play(attack, trained_digits, rejected=rejected, noise=0.025)
    round_ = play(attack, round_.after, 2)
    assert memory(attack)["server_adds_noise"]
    assert memory(attack)["decoys"] == 0
    assert attack.state().arrays["alphas"].tolist() == [0.1, 0.1]
    observe(attack, round_.after, 3)
    assert memory(attack)["server_adds_noise"]


def test_an_indicator_exceeds_the_changes_of_ordinary_training(digits, trained_digits):
    attack = three_d_fed(digits)
    trained_digits = trained_digits | {CONVOLUTION: torch.zeros_like(trained_digits[CONVOLUTION])}
    trained = invented(digits, trained_digits, 1.0, 1.0)
    for model in trained.values():
        model[CONVOLUTION] = 1e-13 * model[CONVOLUTION]
    sent = attack.submissions(turn_of(attack, trained_digits, 1, COUNTS), trained)
    ordinary = trained_digits | {CONVOLUTION: trained_digits[CONVOLUTION] - 1e-5}
    received = {client: sent.get(client, ordinary) for client in COUNTS}
    observe(attack, aggregators.create("fedavg").aggregate(trained_digits, received, COUNTS).weights, 2)
    assert not memory(attack)["server_adds_noise"]


def test_alpha_is_never_drawn_above_1(digits, trained_digits):
    attack = three_d_fed(digits)
    round_ = play(attack, trained_digits, rejected=(2, 3))
    state = attack.state()
    attack.restore(SavedState(state.values, {**state.arrays, "alphas": np.array([0.97, 0.3])}))
    observe(attack, round_.after, 2)
    assert memory(attack)["alpha_range"][0] == 0.97
    assert memory(attack)["alpha_range"][1] <= 1


def test_feedback_is_skipped_after_a_round_without_attackers(digits, trained_digits):
    attack = three_d_fed(digits)
    round_ = play(attack, trained_digits, rejected=TEAM)
    observe(attack, round_.after, 3)
    expected = {"decoys": 0, "alpha_range": [0.0, 1.0], "server_adds_noise": False, "planted_in": None}
    assert memory(attack) == expected
    observe(attack, round_.after, 2)
    assert memory(attack)["decoys"] == 0


def test_an_indicator_is_read_by_any_attacker_of_the_next_round(digits, trained_digits):
    attack = three_d_fed(digits)
    round_ = play(attack, trained_digits, selected=[0, 1, 6, 7], rejected=(0, 1))
    attack.observe(turn_of(attack, round_.after, 2, [3, 6, 7, 8]))
    assert memory(attack)["decoys"] == 1
