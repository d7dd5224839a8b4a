"""3DFed: its trigger, training, masks, decoys and memory."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from g2uardfl import attacks
from g2uardfl.core.errors import ConfigError
from g2uardfl.core.state_files import read_state, write_state
from g2uardfl.simulation.checkpoint import read_checkpoint, write_checkpoint
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.run import Interrupted, Simulation
from g2uardfl.simulation.start import fresh_weights
from g2uardfl.tasks.base import Samples
from g2uardfl.tasks.cifar10 import Cifar10
from g2uardfl.tasks.mnist import Mnist
from g2uardfl.training.local import Job
from helpers.attacking import StopAfter
from helpers.models import Patches, same
from helpers.runs import without_times
from helpers.three_d_fed import (
    CONVOLUTION,
    COUNTS,
    OUTPUT,
    RECIPE,
    TARGET,
    TEAM,
    SmoothPatches,
    invented,
    memory,
    norm,
    play,
    three_d_fed,
    turn_of,
    unmasked,
)

# The trigger.


def test_the_trigger_is_the_originals_pattern_at_row_3_and_column_23():
    mnist = Mnist()
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(1, 255, (50, 1, 28, 28), generator=generator, dtype=torch.uint8)
    mnist.train = mnist.test = Samples(x, torch.arange(50) % 10)
    found = three_d_fed(mnist).backdoor_test()
    expected = x[torch.arange(50) % 10 != TARGET].clone()
    for row, column in [(3, 23), (3, 25), (4, 24), (6, 24), (7, 23), (7, 25)]:
        expected[:, 0, row, column] = 255
    for row, column in [(3, 24), (5, 25), (7, 24)]:
        expected[:, 0, row, column] = 0
    assert torch.equal(found.x, expected)
    assert (found.y == TARGET).all()


TRIGGER_ON_DIGITS = [
    *((3, 5, 16), (3, 6, 0), (3, 7, 16), (4, 6, 16), (5, 7, 0)),
    *((6, 6, 16), (7, 5, 16), (7, 6, 0), (7, 7, 16)),
]


def test_a_share_of_the_clients_own_pictures_has_the_trigger(digits):
    attack = three_d_fed(digits)
    clean = digits.train.take(torch.arange(40))
    mixed = attack.training_data(0, clean, 0.25, torch.Generator().manual_seed(0))
    triggered = [
        all(int(picture[0, row, column]) == value for row, column, value in TRIGGER_ON_DIGITS) for picture in mixed.x
    ]
    assert sum(triggered) == 10
    assert all(int(label) == TARGET for label, marked in zip(mixed.y, triggered, strict=True) if marked)
    own = {(image.numpy().tobytes(), int(label)) for image, label in zip(clean.x, clean.y, strict=True)}
    kept = [
        (image.numpy().tobytes(), int(label))
        for image, label, marked in zip(mixed.x, mixed.y, triggered, strict=True)
        if not marked
    ]
    assert len(set(kept)) == 30
    assert set(kept) <= own


def test_a_model_without_convolution_is_rejected():
    class Flat(Patches):
        def build_model(self):
            return nn.Sequential(nn.Flatten(), nn.Linear(36, 4))

    with pytest.raises(ConfigError, match="needs a convolution and a linear output layer"):
        three_d_fed(Flat(), target=1)


# Training.


def test_one_attacker_trains_the_backdoor_for_all_and_an_honest_reference(digits, trained_digits):
    attack = three_d_fed(digits, distance_weight=0.3, epoch_factor=2)
    turn = turn_of(attack, trained_digits, 1, COUNTS)
    jobs = attack.jobs(turn)
    assert set(jobs) == {"backdoor", "reference"}
    lead = turn.members[0]
    assert jobs["reference"] == Job(0, lead.clean, RECIPE, lead.seed)
    expected = dataclasses.replace(RECIPE, epochs=4, loss_weight=0.7, distance_weight=0.3)
    assert jobs["backdoor"] == Job(0, lead.poisoned, expected, lead.seed)


@pytest.mark.parametrize(
    ("backdoor", "reference", "sent"),
    [(0.5, 1.2, 1.2), (1.2, 0.5, 1.2), (0.1, 3.0, 0.5)],
    ids=["scaled up", "unchanged", "at most five times"],
)
def test_the_backdoor_is_scaled_up_to_the_norm_of_the_honest_reference(
    digits, trained_digits, backdoor, reference, sent
):
    attack = three_d_fed(digits, kappa=1.0, indicator_floor=0.0)
    turn = turn_of(attack, trained_digits, 1, [0, 7])
    trained = invented(digits, trained_digits, backdoor, reference)
    found = attack.submissions(turn, trained)[0]
    update = {name: found[name].double() - trained_digits[name].double() for name in trained_digits}
    assert norm(update) == pytest.approx(sent, rel=1e-4)
    for name, value in update.items():
        direction = (trained["backdoor"][name].double() - trained_digits[name].double()) / backdoor
        torch.testing.assert_close(value / sent, direction, rtol=0, atol=1e-5)


def test_the_backdoor_is_trained_for_the_originals_15_epochs_or_15_steps(digits):
    attack = three_d_fed(digits)
    assert attack.recipe(RECIPE).epochs == 15
    assert attack.recipe(dataclasses.replace(RECIPE, steps=2)).steps == 15


# The constants of the data.


def test_cifar10_has_the_originals_constants_and_other_tasks_those_of_mnist(digits):
    for task, groups, threshold in ((digits, 2, 1e-4), (Cifar10(), 5, 1e-5)):
        attack = attacks.create("three_d_fed", masked_classes=3)
        attack.enlist(task, TEAM)
        assert (attack.settings.group_size, attack.settings.threshold) == (groups, threshold)
        assert attack.settings.masked_classes == 3


def test_a_wrapped_attack_has_the_constants_of_the_data():
    attack = attacks.create("randomized(three_d_fed)")
    attack.enlist(Cifar10(), TEAM)
    assert attack.inner.settings.mask_deviation == 0.01


# Masks.


@pytest.mark.parametrize(
    ("team", "group_size", "groups"),
    [
        ((0, 1), 2, [(0, 1)]),
        ((0, 1, 2), 2, [(0, 1, 2)]),
        ((0, 1, 2, 3), 2, [(0, 1), (2, 3)]),
        ((0, 1, 2, 3, 4), 2, [(0, 1, 2), (3, 4)]),
        ((0, 1, 2), 5, [(0, 1, 2)]),
    ],
)
def test_masks_cancel_within_each_group_and_do_not_change_the_target_and_other_layers(
    digits, trained_digits, team, group_size, groups
):
    attack = three_d_fed(digits, team=team, group_size=group_size, masked_classes=4)
    round_ = play(attack, trained_digits)
    backdoor = unmasked(round_)
    masks = {client: round_.update(client, OUTPUT) - backdoor[OUTPUT] for client in team}
    touched = set()
    for client, mask in masks.items():
        rows = {int(row) for row in (mask.abs().amax(dim=1) > 1e-4).nonzero()}
        touched |= rows
        assert len(rows) == 4, client
        for name, value in backdoor.items():
            if name not in (OUTPUT, CONVOLUTION):
                torch.testing.assert_close(round_.update(client, name), value, rtol=0, atol=1e-6)
    assert TARGET not in touched
    for group in groups:
        total = sum(masks[client] for client in group)
        assert float(total.abs().max()) < 1e-5
    for alone in team:
        assert float(masks[alone].norm()) > 0.1


def test_a_single_attacker_has_no_mask(digits, trained_digits):
    round_ = play(three_d_fed(digits, team=(2,)), trained_digits)
    torch.testing.assert_close(round_.update(2, OUTPUT), unmasked(round_)[OUTPUT], rtol=0, atol=1e-6)


def test_masks_are_in_the_requested_number_of_rows_and_never_in_the_targets(digits, trained_digits):
    for requested, found in ((0, 0), (3, 3), (9, 9), (50, 9)):
        round_ = play(three_d_fed(digits, masked_classes=requested, target=4), trained_digits)
        differ = (round_.sent[0][OUTPUT] - round_.sent[1][OUTPUT]).abs().amax(dim=1) > 1e-4
        assert int(differ.sum()) == found
        assert not differ[4]


def test_masks_are_those_of_a_literal_gradient_descent(digits, trained_digits):
    attack = three_d_fed(digits, team=(0, 1), masked_classes=9)
    turn = turn_of(attack, trained_digits, 1, COUNTS)
    trained = invented(digits, trained_digits, 1.0, 1.0)
    sent = attack.submissions(turn, trained)
    alpha = float(attack.state().arrays["alphas"][0])

    generator = torch.Generator().manual_seed(1)
    assert float(torch.rand(1, generator=generator, dtype=torch.float64)) == alpha
    order = torch.randperm(9, generator=generator)
    rows = torch.tensor([row for row in range(10) if row != TARGET])[order]
    first = 0.05 * torch.randn(2, 9, 64, generator=generator).double()
    update = {name: trained["backdoor"][name].double() - trained_digits[name].double() for name in (OUTPUT, "fc2.bias")}
    masks = first - first.mean(dim=0)
    multiplier, speed = 0.0, 0.0
    for _ in range(30):
        masks.requires_grad_()
        loss = 0.0
        for mask in masks:
            for row, label in enumerate(rows.tolist()):
                energy = update["fc2.bias"][label].abs() + (update[OUTPUT][label] + mask[row]).abs().sum()
                loss = loss + alpha * 0.1 / energy
            loss = loss + (1 - alpha) * 0.08 * mask.square().sum().sqrt()
        remainder = masks.sum(dim=0).square().sum().sqrt() if multiplier else torch.zeros(())
        (gradient,) = torch.autograd.grad((loss + multiplier * 0.1 * remainder) / (1 + multiplier), masks)
        with torch.no_grad():
            multiplier += 0.1 * float(masks.sum(dim=0).norm())
            speed = 0.9 * speed + gradient + 5e-4 * masks
            masks = masks - 0.1 * speed
    masks = masks - masks.mean(dim=0)
    for client in (0, 1):
        found = sent[client][OUTPUT].double() - trained_digits[OUTPUT] - update[OUTPUT]
        torch.testing.assert_close(found[rows], masks[client], rtol=0, atol=1e-5)


# Decoys.


def test_a_decoy_is_added_if_everything_was_rejected_and_removed_if_it_was_accepted(digits, trained_digits):
    attack = three_d_fed(digits)
    round_ = play(attack, trained_digits, rejected=TEAM)
    round_ = play(attack, round_.after, 2, rejected=TEAM)
    assert attack.state().arrays["group"].tolist() == [0, 0, 0, -1]
    round_ = play(attack, round_.after, 3)
    assert memory(attack)["decoys"] == 2
    assert attack.state().arrays["group"].tolist() == [0, 0, -1, -1]
    round_ = play(attack, round_.after, 4)
    assert memory(attack)["decoys"] == 0
    assert attack.state().arrays["group"].tolist() == [0, 0, 1, 1]


def test_a_decoy_is_the_honest_reference_with_one_output_weight_moved_and_its_own_indicator(digits, trained_digits):
    attack = three_d_fed(digits, decoy_gap=7.0)
    round_ = play(attack, play(attack, trained_digits, rejected=TEAM).after, 2)
    reference = {
        name: value.double() - round_.before[name].double() for name, value in round_.trained["reference"].items()
    }
    place = int(attack.state().arrays["places"][3])
    for name, expected in reference.items():
        off = (round_.update(3, name) - expected).flatten()
        if name == OUTPUT:
            assert int((off.abs() > 1e-4).sum()) == 1
            assert float(off.max()) == pytest.approx(7.0, rel=1e-5)
            far = int(off.argmax())
            gap = (unmasked(round_)[OUTPUT] - expected).abs().flatten()
            assert float(gap[far]) <= float(gap.quantile(0.02))
        elif name == CONVOLUTION:
            assert set((off.abs() > 1e-6).nonzero().flatten().tolist()) <= {place}
        else:
            torch.testing.assert_close(round_.update(3, name), expected, rtol=0, atol=1e-6)


def test_at_least_one_attacker_sends_the_backdoor(digits, trained_digits):
    attack = three_d_fed(digits)
    attack.decoys = 9
    play(attack, trained_digits)
    assert attack.state().arrays["group"].tolist() == [0, -1, -1, -1]


def test_decoys_are_sent_by_attackers_alone(digits, trained_digits):
    attack = three_d_fed(digits)
    attack.decoys = 9
    assert set(play(attack, trained_digits, selected=[1, 3, 5, 6]).sent) == {1, 3}


# Running statistics and memory.


def test_running_statistics_are_sent_as_trained():
    task = SmoothPatches()
    start = fresh_weights(task, 0)
    attack = three_d_fed(task, target=3)
    attack.decoys = 1
    round_ = play(attack, start, selected=[0, 1, 2, 7])
    for client, source in ((0, "backdoor"), (1, "backdoor"), (2, "reference")):
        for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
            assert torch.equal(round_.sent[client][name], round_.trained[source][name])


@pytest.mark.parametrize("rejected", [(), (2, 3), TEAM])
def test_an_attack_restored_from_a_file_continues_bit_for_bit(digits, trained_digits, tmp_path, rejected):
    attack = three_d_fed(digits)
    round_ = play(attack, trained_digits, rejected=rejected)
    round_ = play(attack, round_.after, 2, rejected=rejected)
    write_state(tmp_path / "attack.state", "attack", attack.state())
    again = three_d_fed(digits)
    again.restore(read_state(tmp_path / "attack.state", "attack"))
    for number in (3, 4):
        found, expected = play(again, round_.after, number), play(attack, round_.after, number)
        for client, model in expected.sent.items():
            assert all(torch.equal(found.sent[client][name], value) for name, value in model.items())
        assert again.state().values == attack.state().values
        assert again.state().arrays.keys() == attack.state().arrays.keys()
        assert all(np.array_equal(again.state().arrays[name], value) for name, value in attack.state().arrays.items())
        round_ = expected


def test_an_attack_without_its_memory_continues_differently(digits, trained_digits):
    attack, forgetful = three_d_fed(digits), three_d_fed(digits)
    round_ = play(attack, trained_digits, rejected=TEAM)
    found, expected = play(forgetful, round_.after, 2), play(attack, round_.after, 2)
    assert any(not torch.equal(found.sent[3][name], value) for name, value in expected.sent[3].items())


RUN = RunConfig(
    task="digits", attack="three_d_fed", rounds=6, clients=40, per_round=8, pmr=0.5, start="scratch", engine="loop"
)


@pytest.mark.parametrize("name", ["three_d_fed", "randomized(model_obfuscation(three_d_fed))"])
def test_a_run_that_is_stopped_and_resumed_ends_like_an_uninterrupted_one(tmp_path, name):
    config = dataclasses.replace(RUN, attack=name)
    whole, stopped = Simulation(config), Simulation(config)
    whole.run()
    with pytest.raises(Interrupted):
        stopped.run([StopAfter(3)])
    checkpoint = stopped.checkpoint()
    assert checkpoint.attack.values["planted_in"] == 3
    write_checkpoint(tmp_path, stopped.config, checkpoint)

    resumed = Simulation(config)
    resumed.resume(read_checkpoint(tmp_path, resumed.config), list(stopped.records))
    resumed.run()
    assert list(map(without_times, resumed.records)) == list(map(without_times, whole.records))
    assert same(resumed.weights, whole.weights)
    assert resumed.attack.state().values == whole.attack.state().values


def test_in_a_run_without_defence_feedback_changes_alpha_but_no_noise_or_rejection_is_found():
    simulation = Simulation(dataclasses.replace(RUN, rounds=12))
    simulation.run()
    values = simulation.attack.state().values
    assert not values["server_adds_noise"]
    assert values["decoys"] == 0
    assert values["alpha_range"] != [0.0, 1.0]
