"""3DFed: masks that cancel, indicators that report back, decoys, and a memory that survives a restart."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from g2uardfl import aggregators, attacks, tasks
from g2uardfl.attacks.base import Member, Turn
from g2uardfl.attacks.three_d_fed import ThreeDFed
from g2uardfl.core.errors import ConfigError
from g2uardfl.core.state_files import SavedState, read_state, write_state
from g2uardfl.simulation.checkpoint import read_checkpoint, write_checkpoint
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.run import Simulation
from g2uardfl.simulation.start import fresh_weights
from g2uardfl.tasks.base import Samples, Task
from g2uardfl.tasks.mnist import Mnist
from g2uardfl.training.engine import LoopEngine
from g2uardfl.training.local import Job, Recipe, train_locally
from helpers.models import Patches

RECIPE = Recipe(lr=0.05, batch_size=16, epochs=2, steps=0, momentum=0.9, weight_decay=1e-4)
COUNTS = dict(enumerate([31, 28, 33, 30, 25, 30, 36, 27, 38, 24]))
TEAM = (0, 1, 2, 3)
TARGET = 8
CONVOLUTION, OUTPUT = "conv2.weight", "fc2.weight"


class SmoothPatches(Patches):
    """With second derivatives, and a convolution of 18 weights."""

    channels = 2
    activation = nn.Tanh


@dataclass
class Round:
    """What happened in a round."""

    turn: Turn
    before: dict[str, Tensor]
    trained: dict
    sent: dict[int, dict[str, Tensor]]
    after: dict[str, Tensor]

    def update(self, client: int, name: str) -> Tensor:
        return self.sent[client][name].double() - self.before[name].double()


@pytest.fixture(scope="module")
def digits() -> Task:
    return tasks.create("digits")


@pytest.fixture(scope="module")
def start(digits) -> dict[str, Tensor]:
    """A model trained for a few epochs."""
    recipe = dataclasses.replace(RECIPE, epochs=6, batch_size=32)
    return train_locally(digits, digits.build_model(), fresh_weights(digits, 0), Job(0, digits.train, recipe, 0))


def enlisted(task: Task, team=TEAM, **settings) -> ThreeDFed:
    attack = attacks.create("three_d_fed", **settings)
    attack.enlist(task, team)
    return attack


def data_of(task: Task, client: int) -> Samples:
    return task.train.take(torch.arange(COUNTS[client]) + sum(COUNTS[other] for other in range(client)))


def make_turn(attack: ThreeDFed, weights: dict[str, Tensor], number: int, selected) -> Turn:
    members = []
    for client in selected:
        if client in attack.team:
            clean = data_of(attack.task, client)
            poisoned = attack.training_data(client, clean, 0.5, torch.Generator().manual_seed(client))
            members.append(Member(client, clean, poisoned, RECIPE, seed=1000 * number + client))
    total = sum(COUNTS[client] for client in selected)
    return Turn(number, weights, tuple(members), total, torch.Generator().manual_seed(number))


def play(attack, weights, number=1, *, selected=tuple(COUNTS), refused=(), clipped=None, noise=0.0) -> Round:
    """One round of FedAvg on digits in which the server leaves out, clips or drowns what it likes."""
    task = attack.task
    turn = make_turn(attack, weights, number, selected)
    attack.observe(turn)
    jobs = attack.jobs(turn)
    honest = {client: Job(client, data_of(task, client), RECIPE, 1000 * number + client) for client in selected}
    for client in attack.team:
        honest.pop(client, None)
    made = LoopEngine(task, task.build_model()).train(weights, [*jobs.values(), *honest.values()])
    trained = dict(zip(jobs, made, strict=False))
    sent = dict(attack.submissions(turn, trained))
    received = sent | dict(zip(honest, made[len(jobs) :], strict=True))
    for client, factor in (clipped or {}).items():
        received[client] = {
            name: value + (factor - 1) * (value - weights[name]) for name, value in received[client].items()
        }
    received = {client: model for client, model in received.items() if client not in refused}
    after = aggregators.create("fedavg").aggregate(weights, received, COUNTS).weights
    generator = torch.Generator().manual_seed(99)
    if noise:
        after = {name: value + noise * torch.randn(value.shape, generator=generator) for name, value in after.items()}
    return Round(turn, weights, trained, sent, after)


def memory(attack: ThreeDFed) -> dict:
    return dict(attack.state().values)


def look(attack: ThreeDFed, weights: dict[str, Tensor], number: int) -> None:
    """Let the attacker see the global model of a round."""
    attack.observe(make_turn(attack, weights, number, COUNTS))


def norm(update: dict[str, Tensor]) -> float:
    return sum(float(value.double().square().sum()) for value in update.values()) ** 0.5


def invented(task: Task, start, backdoor_size: float, reference_size: float, seed: int = 0) -> dict:
    """Made-up results of training, with updates of given lengths."""
    generator = torch.Generator().manual_seed(seed)
    trained = {}
    for key, size in (("backdoor", backdoor_size), ("reference", reference_size)):
        update = {
            name: torch.randn(value.shape, generator=generator) for name, value in task.build_model().named_parameters()
        }
        factor = size / norm(update)
        trained[key] = {
            name: value + factor * update[name] if name in update else value for name, value in start.items()
        }
    return trained


# The trigger


def test_the_trigger_is_the_originals_pattern_at_row_3_and_column_23():
    mnist = Mnist()
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(1, 255, (50, 1, 28, 28), generator=generator, dtype=torch.uint8)
    mnist.train = mnist.test = Samples(x, torch.arange(50) % 10)
    found = enlisted(mnist).backdoor_test()
    expected = x[torch.arange(50) % 10 != TARGET].clone()
    for row, column in [(3, 23), (3, 25), (4, 24), (6, 24), (7, 23), (7, 25)]:
        expected[:, 0, row, column] = 255
    for row, column in [(3, 24), (5, 25), (7, 24)]:
        expected[:, 0, row, column] = 0
    assert torch.equal(found.x, expected)
    assert (found.y == TARGET).all()


def test_a_share_of_the_own_pictures_gets_the_trigger(digits):
    attack = enlisted(digits)
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


TRIGGER_ON_DIGITS = [
    *((3, 5, 16), (3, 6, 0), (3, 7, 16), (4, 6, 16), (5, 7, 0)),
    *((6, 6, 16), (7, 5, 16), (7, 6, 0), (7, 7, 16)),
]


def test_a_model_without_convolution_is_refused():
    class Flat(Patches):
        def build_model(self):
            return nn.Sequential(nn.Flatten(), nn.Linear(36, 4))

    with pytest.raises(ConfigError, match="needs a convolution and a linear output layer"):
        enlisted(Flat(), target=1)


# Training


def test_one_attacker_trains_the_backdoor_for_all_and_an_honest_reference(digits, start):
    attack = enlisted(digits, distance_weight=0.3, epoch_factor=2)
    turn = make_turn(attack, start, 1, COUNTS)
    jobs = attack.jobs(turn)
    assert set(jobs) == {"backdoor", "reference"}
    lead = turn.members[0]
    assert jobs["reference"] == Job(0, lead.clean, RECIPE, lead.seed)
    expected = dataclasses.replace(RECIPE, epochs=4, loss_weight=0.7, distance_weight=0.3)
    assert jobs["backdoor"] == Job(0, lead.poisoned, expected, lead.seed)


@pytest.mark.parametrize(
    ("backdoor", "reference", "sent"),
    [(0.5, 1.2, 1.2), (1.2, 0.5, 1.2), (0.1, 3.0, 0.5)],
    ids=["lengthened", "left as it is", "at most five times"],
)
def test_the_backdoor_is_scaled_up_to_the_length_of_the_honest_reference(digits, start, backdoor, reference, sent):
    attack = enlisted(digits, kappa=1.0, indicator_floor=0.0)
    turn = make_turn(attack, start, 1, [0, 7])
    trained = invented(digits, start, backdoor, reference)
    found = attack.submissions(turn, trained)[0]
    update = {name: found[name].double() - start[name].double() for name in start}
    assert norm(update) == pytest.approx(sent, rel=1e-4)
    for name, value in update.items():
        direction = (trained["backdoor"][name].double() - start[name].double()) / backdoor
        torch.testing.assert_close(value / sent, direction, rtol=0, atol=1e-5)


# Masks


def unmasked(round_: Round) -> dict[str, Tensor]:
    """The backdoor's update as every attacker would send it without mask and indicator, in float64."""
    updates = {
        key: {name: model[name].double() - round_.before[name].double() for name in model}
        for key, model in round_.trained.items()
    }
    factor = min(max(norm(updates["reference"]) / norm(updates["backdoor"]), 1), 5)
    return {name: factor * value for name, value in updates["backdoor"].items()}


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
def test_masks_cancel_in_the_sum_of_each_group_and_leave_the_target_and_other_layers_alone(
    digits, start, team, group_size, groups
):
    attack = enlisted(digits, team=team, group_size=group_size, masked_classes=4)
    round_ = play(attack, start)
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


def test_a_lone_attacker_wears_no_mask(digits, start):
    round_ = play(enlisted(digits, team=(2,)), start)
    torch.testing.assert_close(round_.update(2, OUTPUT), unmasked(round_)[OUTPUT], rtol=0, atol=1e-6)


def test_masks_lie_in_as_many_rows_as_asked_for_but_never_in_the_targets(digits, start):
    for wanted, found in ((0, 0), (3, 3), (9, 9), (50, 9)):
        round_ = play(enlisted(digits, masked_classes=wanted, target=4), start)
        differ = (round_.sent[0][OUTPUT] - round_.sent[1][OUTPUT]).abs().amax(dim=1) > 1e-4
        assert int(differ.sum()) == found
        assert not differ[4]


def test_masks_are_optimised_as_a_literal_gradient_descent_says(digits, start):
    attack = enlisted(digits, team=(0, 1), masked_classes=9)
    turn = make_turn(attack, start, 1, COUNTS)
    trained = invented(digits, start, 1.0, 1.0)
    sent = attack.submissions(turn, trained)
    alpha = float(attack.state().arrays["alphas"][0])

    generator = torch.Generator().manual_seed(1)
    assert float(torch.rand(1, generator=generator, dtype=torch.float64)) == alpha
    order = torch.randperm(9, generator=generator)
    rows = torch.tensor([row for row in range(10) if row != TARGET])[order]
    first = 0.05 * torch.randn(2, 9, 64, generator=generator).double()
    update = {name: trained["backdoor"][name].double() - start[name].double() for name in (OUTPUT, "fc2.bias")}
    masks = first - first.mean(dim=0)
    multiplier = 0.0
    for _ in range(30):
        masks.requires_grad_()
        loss = 0.0
        for mask in masks:
            for row, wanted in enumerate(rows.tolist()):
                energy = update["fc2.bias"][wanted].abs() + (update[OUTPUT][wanted] + mask[row]).abs().sum()
                loss = loss + alpha * 0.1 / energy
            loss = loss + (1 - alpha) * 0.08 * mask.square().sum().sqrt()
        remainder = masks.sum(dim=0).square().sum().sqrt() if multiplier else torch.zeros(())
        (gradient,) = torch.autograd.grad((loss + multiplier * 0.1 * remainder) / (1 + multiplier), masks)
        with torch.no_grad():
            multiplier += 0.1 * float(masks.sum(dim=0).norm())
            masks = masks - 0.1 * gradient
    masks = masks - masks.mean(dim=0)
    for client in (0, 1):
        found = sent[client][OUTPUT].double() - start[OUTPUT] - update[OUTPUT]
        torch.testing.assert_close(found[rows], masks[client], rtol=0, atol=1e-5)


# Indicators


@pytest.mark.parametrize("kappa", [1e5, 1e9])
def test_each_attacker_blows_up_one_weight_of_the_last_convolution(digits, start, kappa):
    attack = enlisted(digits, kappa=kappa)
    round_ = play(attack, start)
    places = attack.state().arrays["places"]
    backdoor = unmasked(round_)[CONVOLUTION].flatten()
    assert len(set(places.tolist())) == 4
    for client, place in zip(TEAM, places.tolist(), strict=True):
        found = round_.update(client, CONVOLUTION).flatten()
        others = torch.arange(len(found)) != place
        torch.testing.assert_close(found[others], backdoor[others], rtol=0, atol=1e-6)
        blown_up = kappa * float(backdoor[place])
        wanted = math.copysign(max(abs(blown_up), 1e-2), blown_up)
        assert float(found[place]) == pytest.approx(wanted, rel=1e-2)


def test_a_weight_that_training_left_exactly_alone_is_set_to_the_floor(digits, start):
    attack = enlisted(digits, team=(0,), indicator_floor=0.25)
    turn = make_turn(attack, start, 1, [0, 7])
    trained = invented(digits, start, 1.0, 1.0)
    for model in trained.values():
        model[CONVOLUTION] = start[CONVOLUTION].clone()
    change = attack.submissions(turn, trained)[0][CONVOLUTION] - start[CONVOLUTION]
    assert int((change != 0).sum()) == 1
    assert float(change.max()) == pytest.approx(0.25, rel=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_an_indicator_sits_where_training_moved_little_and_the_hessians_row_sum_is_smallest(seed):
    task = SmoothPatches()
    start = fresh_weights(task, seed)
    attack = enlisted(task, team=(0,), target=3)
    turn = make_turn(attack, start, 1, [0, 7])
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


def test_under_fedavg_each_indicator_comes_back_as_the_clients_share_of_the_average(digits, start):
    attack = enlisted(digits)
    weights = start
    for number in (1, 2, 3):
        round_ = play(attack, weights, number)
        places = attack.state().arrays["places"].tolist()
        arrived = (round_.after[CONVOLUTION].double() - round_.before[CONVOLUTION].double()).flatten()
        for client, place in zip(TEAM, places, strict=True):
            planted = float(round_.update(client, CONVOLUTION).flatten()[place])
            share = COUNTS[client] / sum(COUNTS.values())
            assert float(arrived[place]) / planted == pytest.approx(share, rel=0.05)
        weights = round_.after
    look(attack, weights, 4)
    assert not memory(attack)["server_adds_noise"]
    assert memory(attack)["decoys"] == 0


def test_when_everything_arrives_the_next_alphas_lie_between_those_that_worked(digits, start):
    attack = enlisted(digits)
    round_ = play(attack, start)
    alphas = sorted(attack.state().arrays["alphas"].tolist())
    assert len(alphas) == 2
    look(attack, round_.after, 2)
    assert memory(attack)["alpha_range"] == alphas
    assert memory(attack)["decoys"] == 0


def test_a_group_that_was_refused_is_told_from_one_that_was_accepted(digits, start):
    attack = enlisted(digits)
    round_ = play(attack, start, refused=(2, 3))
    kept = float(attack.state().arrays["alphas"][0])
    look(attack, round_.after, 2)
    assert memory(attack)["alpha_range"] == [kept, pytest.approx(kept + 0.1)]
    assert memory(attack)["decoys"] == 0
    assert not memory(attack)["server_adds_noise"]


def test_a_group_that_was_clipped_does_not_count_as_accepted(digits, start):
    attack = enlisted(digits)
    round_ = play(attack, start, clipped={0: 0.4, 1: 0.4})
    kept = float(attack.state().arrays["alphas"][1])
    look(attack, round_.after, 2)
    assert memory(attack)["alpha_range"] == [kept, pytest.approx(kept + 0.1)]


def test_when_everything_was_refused_alphas_are_drawn_anew_and_there_is_one_decoy_more(digits, start):
    attack = enlisted(digits)
    round_ = play(attack, start, refused=TEAM)
    look(attack, round_.after, 2)
    expected = {"decoys": 1, "alpha_range": [0.0, 1.0], "server_adds_noise": False, "planted_in": None}
    assert memory(attack) == expected


@pytest.mark.parametrize("refused", [(), TEAM])
def test_noise_of_the_server_is_noticed_for_good_and_fixes_alpha(digits, start, refused):
    attack = enlisted(digits)
    round_ = play(attack, start, refused=refused, noise=0.025)
    round_ = play(attack, round_.after, 2)
    assert memory(attack)["server_adds_noise"]
    assert memory(attack)["decoys"] == 0
    assert attack.state().arrays["alphas"].tolist() == [0.1, 0.1]
    look(attack, round_.after, 3)
    assert memory(attack)["server_adds_noise"]


def test_an_indicator_is_large_enough_to_be_told_from_ordinary_training(digits, start):
    attack = enlisted(digits)
    start = start | {CONVOLUTION: torch.zeros_like(start[CONVOLUTION])}
    trained = invented(digits, start, 1.0, 1.0)
    for model in trained.values():
        model[CONVOLUTION] = 1e-13 * model[CONVOLUTION]
    sent = attack.submissions(make_turn(attack, start, 1, COUNTS), trained)
    ordinary = start | {CONVOLUTION: start[CONVOLUTION] - 1e-5}
    received = {client: sent.get(client, ordinary) for client in COUNTS}
    look(attack, aggregators.create("fedavg").aggregate(start, received, COUNTS).weights, 2)
    assert not memory(attack)["server_adds_noise"]


def test_alpha_is_never_drawn_above_1(digits, start):
    attack = enlisted(digits)
    round_ = play(attack, start, refused=(2, 3))
    state = attack.state()
    attack.restore(SavedState(state.values, {**state.arrays, "alphas": np.array([0.97, 0.3])}))
    look(attack, round_.after, 2)
    assert memory(attack)["alpha_range"][0] == 0.97
    assert memory(attack)["alpha_range"][1] <= 1


def test_feedback_is_skipped_after_a_round_without_attackers(digits, start):
    attack = enlisted(digits)
    round_ = play(attack, start, refused=TEAM)
    look(attack, round_.after, 3)
    expected = {"decoys": 0, "alpha_range": [0.0, 1.0], "server_adds_noise": False, "planted_in": None}
    assert memory(attack) == expected
    look(attack, round_.after, 2)
    assert memory(attack)["decoys"] == 0


def test_another_attacker_than_the_one_who_sent_it_reads_the_indicator(digits, start):
    attack = enlisted(digits)
    round_ = play(attack, start, selected=[0, 1, 6, 7], refused=(0, 1))
    attack.observe(make_turn(attack, round_.after, 2, [3, 6, 7, 8]))
    assert memory(attack)["decoys"] == 1


# Decoys


def test_decoys_come_when_everything_was_refused_and_go_when_they_are_accepted(digits, start):
    attack = enlisted(digits)
    round_ = play(attack, start, refused=TEAM)
    round_ = play(attack, round_.after, 2, refused=TEAM)
    assert attack.state().arrays["group"].tolist() == [0, 0, 0, -1]
    round_ = play(attack, round_.after, 3)
    assert memory(attack)["decoys"] == 2
    assert attack.state().arrays["group"].tolist() == [0, 0, -1, -1]
    round_ = play(attack, round_.after, 4)
    assert memory(attack)["decoys"] == 0
    assert attack.state().arrays["group"].tolist() == [0, 0, 1, 1]


def test_a_decoy_is_the_honest_reference_far_off_in_one_weight_of_the_output_with_its_own_indicator(digits, start):
    attack = enlisted(digits, decoy_gap=7.0)
    round_ = play(attack, play(attack, start, refused=TEAM).after, 2)
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


def test_there_is_always_one_who_sends_the_backdoor(digits, start):
    attack = enlisted(digits)
    attack.decoys = 9
    play(attack, start)
    assert attack.state().arrays["group"].tolist() == [0, -1, -1, -1]


def test_decoys_are_sent_by_attackers_alone(digits, start):
    attack = enlisted(digits)
    attack.decoys = 9
    assert set(play(attack, start, selected=[1, 3, 5, 6]).sent) == {1, 3}


# Running statistics


def test_running_statistics_are_sent_as_trained():
    task = SmoothPatches()
    start = fresh_weights(task, 0)
    attack = enlisted(task, target=3)
    attack.decoys = 1
    round_ = play(attack, start, selected=[0, 1, 2, 7])
    for client, source in ((0, "backdoor"), (1, "backdoor"), (2, "reference")):
        for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
            assert torch.equal(round_.sent[client][name], round_.trained[source][name])


# Memory


@pytest.mark.parametrize("refused", [(), (2, 3), TEAM])
def test_an_attack_restored_from_a_file_goes_on_bit_for_bit(digits, start, tmp_path, refused):
    attack = enlisted(digits)
    round_ = play(attack, start, refused=refused)
    round_ = play(attack, round_.after, 2, refused=refused)
    write_state(tmp_path / "attack.state", "attack", attack.state())
    again = enlisted(digits)
    again.restore(read_state(tmp_path / "attack.state", "attack"))
    for number in (3, 4):
        found, expected = play(again, round_.after, number), play(attack, round_.after, number)
        for client, model in expected.sent.items():
            assert all(torch.equal(found.sent[client][name], value) for name, value in model.items())
        assert again.state().values == attack.state().values
        assert again.state().arrays.keys() == attack.state().arrays.keys()
        assert all(np.array_equal(again.state().arrays[name], value) for name, value in attack.state().arrays.items())
        round_ = expected


def test_an_attack_that_forgot_goes_on_differently(digits, start):
    attack, forgetful = enlisted(digits), enlisted(digits)
    round_ = play(attack, start, refused=TEAM)
    found, expected = play(forgetful, round_.after, 2), play(attack, round_.after, 2)
    assert any(not torch.equal(found.sent[3][name], value) for name, value in expected.sent[3].items())


RUN = RunConfig(
    task="digits", attack="three_d_fed", rounds=6, clients=40, per_round=8, pmr=0.5, start="scratch", engine="loop"
)


@pytest.mark.parametrize("name", ["three_d_fed", "randomized(model_obfuscation(three_d_fed))"])
def test_a_run_that_is_killed_and_resumed_ends_as_the_one_nobody_disturbed(tmp_path, name):
    config = dataclasses.replace(RUN, attack=name)
    whole = Simulation(config)
    whole.run()

    killed = Simulation(config)

    class Kill:
        def on_start(self, simulation): ...

        def on_round(self, simulation, record):
            if record["round"] == 3:
                raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        killed.run([Kill()])
    checkpoint = killed.checkpoint()
    assert checkpoint.attack.values["planted_in"] == 3
    write_checkpoint(tmp_path, killed.config, checkpoint)

    resumed = Simulation(config)
    resumed.resume(read_checkpoint(tmp_path, resumed.config), list(killed.records))
    resumed.run()
    for first, second in zip(whole.records, resumed.records, strict=True):
        assert {**first, "seconds": 0} == {**second, "seconds": 0}
    assert all(torch.equal(value, resumed.weights[key]) for key, value in whole.weights.items())
    assert resumed.attack.state().values == whole.attack.state().values


def test_in_a_long_enough_run_without_defence_feedback_is_read_and_nothing_is_suspected():
    simulation = Simulation(dataclasses.replace(RUN, rounds=12))
    simulation.run()
    values = simulation.attack.state().values
    assert not values["server_adds_noise"]
    assert values["decoys"] == 0
    assert values["alpha_range"] != [0.0, 1.0]
