"""The attacks that are no wrappers: what defines each, against a slow and obvious second computation."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from g2uardfl import aggregators, attacks, tasks
from g2uardfl.attacks.base import Attack, Member, Turn, moved, poisoned_count
from g2uardfl.attacks.pgd import PGDReplacement
from g2uardfl.core.errors import ConfigError
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.run import Simulation
from g2uardfl.simulation.start import fresh_weights
from g2uardfl.tasks.base import Samples, Task
from g2uardfl.tasks.cifar10 import Cifar10
from g2uardfl.tasks.mnist import Mnist
from g2uardfl.training.batched import BatchedEngine
from g2uardfl.training.engine import LoopEngine
from g2uardfl.training.local import Job, Recipe, batches
from helpers.models import Patches

RECIPE = Recipe(lr=0.05, batch_size=16, epochs=2, steps=0, momentum=0.9, weight_decay=1e-3)
SHORT = RunConfig(task="digits", rounds=3, clients=40, per_round=6, pmr=0.5, start="scratch", seed=3, engine="loop")
ENGINES = pytest.mark.parametrize("engine", [LoopEngine, BatchedEngine])
PICTURE_ATTACKS = ["dba", "three_d_fed"]
MNIST_BARS = [(row, column) for row in (0, 3) for column in (0, 1, 2, 3, 6, 7, 8, 9)]
CIFAR_BARS = [(row, column) for row in (0, 4) for column in (0, 1, 2, 3, 4, 5, 9, 10, 11, 12, 13, 14)]


class Recorder(Attack):
    """Honest clients who write down what they are asked."""

    name = "recorder"
    summary = "notes"

    def __init__(self, **given):
        super().__init__(**given)
        self.calls, self.asked, self.seen = [], Counter(), []

    def training_data(self, client, clean, pdr, generator):
        self.asked[client] += 1
        return super().training_data(client, clean, pdr, generator)

    def observe(self, turn):
        self.calls.append((turn.number, "observe"))
        self.seen.append((turn, {name: value.clone() for name, value in turn.global_weights.items()}))

    def attackers(self, turn):
        self.calls.append((turn.number, "attackers"))
        return super().attackers(turn)

    def jobs(self, turn):
        self.calls.append((turn.number, "jobs"))
        return super().jobs(turn)

    def submissions(self, turn, trained):
        self.calls.append((turn.number, "submissions"))
        return super().submissions(turn, trained)


@pytest.fixture(scope="module")
def patches() -> Patches:
    return Patches()


@pytest.fixture(scope="module")
def start(patches: Patches) -> dict[str, Tensor]:
    return fresh_weights(patches, 0)


def simulate(**changes) -> Simulation:
    simulation = Simulation(dataclasses.replace(SHORT, **changes))
    simulation.run()
    return simulation


def without_times(simulation: Simulation) -> list[dict]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in simulation.records]


def enlisted(name: str, task: Task, team=(0, 1, 2, 3), **given) -> Attack:
    attack = attacks.create(name, **given)
    attack.enlist(task, team)
    return attack


def make_turn(attack: Attack, weights: dict[str, Tensor], counts: dict[int, int], recipe: Recipe = RECIPE) -> Turn:
    """A round in which the clients of `counts` are selected, with so many samples each."""
    members = []
    for client in attack.team:
        if client in counts:
            clean = attack.task.train.take(torch.arange(counts[client]) + 7 * client)
            poisoned = attack.training_data(client, clean, 0.5, torch.Generator().manual_seed(client))
            members.append(Member(client, clean, poisoned, recipe, seed=100 + client))
    return Turn(1, weights, tuple(members), sum(counts.values()), torch.Generator().manual_seed(1))


def act(attack: Attack, turn: Turn, engine=LoopEngine):
    """What the attackers trained and what they send."""
    jobs = attack.jobs(turn)
    made = engine(attack.task, attack.task.build_model()).train(turn.global_weights, list(jobs.values()))
    trained = dict(zip(jobs, made, strict=True))
    return trained, attack.submissions(turn, trained)


def parameter_keys(task: Task) -> list[str]:
    return [name for name, _ in task.build_model().named_parameters()]


def offset_norm(task: Task, weights, start) -> float:
    """‖w - G‖ over all parameters, in float64."""
    return sum(
        float((weights[name].double() - start[name].double()).square().sum()) for name in parameter_keys(task)
    ) ** 0.5  # fmt: skip


def train_by_hand(task: Task, start: dict[str, Tensor], job: Job) -> dict[str, Tensor]:
    """Literal float64 SGD on `loss_weight` L + `distance_weight` ‖w - G‖, projected after every step."""
    recipe = job.recipe
    model = task.build_model().double()
    model.load_state_dict(start)
    model.train()
    weights = list(model.parameters())
    centre = [value.detach().clone() for value in weights]
    velocity = [torch.zeros_like(value) for value in weights]
    generator = torch.Generator().manual_seed(job.seed)
    for batch in batches(len(job.samples), recipe.batch_size, recipe.epochs, recipe.steps, generator):
        outputs = model(task.prepare(job.samples.x[batch]).double())
        loss = recipe.loss_weight * nn.functional.cross_entropy(outputs, job.samples.y[batch])
        squared = sum((value - middle).square().sum() for value, middle in zip(weights, centre, strict=True))
        if squared > 0:
            loss = loss + recipe.distance_weight * squared.sqrt()
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for value, gradient, speed in zip(weights, gradients, velocity, strict=True):
                speed.mul_(recipe.momentum).add_(gradient + recipe.weight_decay * value)
                value -= recipe.lr * speed
            length = sum((value - middle).square().sum() for value, middle in zip(weights, centre, strict=True)).sqrt()
            if length > recipe.radius:
                for value, middle in zip(weights, centre, strict=True):
                    value.copy_(middle + (value - middle) * recipe.radius / length)
    return {name: value.detach() for name, value in model.state_dict().items()}


def assert_close(found, expected, atol=2e-5):
    assert list(found) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value.double(), rtol=0, atol=atol, msg=lambda m, n=name: n + m)


# The interface


def test_the_attacks_are_those_of_the_contract_and_say_what_they_do():
    assert attacks.names() == [
        *("none", "black_box", "pgd", "pgd_replacement", "constrain_and_scale", "dba", "three_d_fed"),
        *("dynamic_pdr", "model_obfuscation", "randomized"),
    ]
    for name in attacks.names():
        assert attacks.find(name).name == name
        assert attacks.find(name).summary.strip()
        assert "\n" not in attacks.find(name).summary


def test_an_attack_that_overrides_nothing_is_honest():
    honest, idle = simulate(attack="none"), simulate(attack=f"{__name__}:Recorder")
    assert any(record["attacking"] for record in idle.records)
    for name, value in honest.weights.items():
        assert torch.equal(value, idle.weights[name])


def test_a_round_goes_through_the_methods_in_order_and_only_where_attackers_are_selected():
    simulation = simulate(attack=f"{__name__}:Recorder", rounds=8, per_round=2, pmr=0.25)
    with_attackers = [record["round"] for record in simulation.records if record["malicious"]]
    assert 0 < len(with_attackers) < 8
    steps = ("observe", "attackers", "jobs", "submissions")
    assert simulation.attack.calls == [(number, step) for number in with_attackers for step in steps]


def test_the_attacker_sees_its_own_clients_and_the_model_it_is_sent_and_of_others_only_their_total():
    simulation = Simulation(dataclasses.replace(SHORT, attack=f"{__name__}:Recorder", alpha=0.5))
    sent = []
    aggregate = simulation.defense.aggregate

    def keep(weights, *others):
        sent.append({name: value.clone() for name, value in weights.items()})
        return aggregate(weights, *others)

    simulation.defense.aggregate = keep
    simulation.run()
    assert {field.name for field in dataclasses.fields(Turn)} == {
        *("number", "global_weights", "members", "num_examples", "generator")
    }
    for turn, weights in simulation.attack.seen:
        record = simulation.records[turn.number - 1]
        assert [member.client for member in turn.members] == record["malicious"]
        assert turn.num_examples == sum(len(simulation._data[client]) for client in record["selected"])
        assert all(torch.equal(value, sent[turn.number - 1][name]) for name, value in weights.items())
        for member in turn.members:
            assert torch.equal(member.clean.x, simulation._data[member.client].x)
            assert member.recipe.lr == pytest.approx(0.05 * 0.998 ** (turn.number - 1))


def test_training_data_is_made_once_a_client():
    simulation = simulate(attack=f"{__name__}:Recorder", rounds=5)
    selected = Counter(client for record in simulation.records for client in record["malicious"])
    assert max(selected.values()) > 1
    assert simulation.attack.asked == dict.fromkeys(selected, 1)


def test_no_attack_is_asked_anything_outside_its_rounds():
    simulation = simulate(attack=f"{__name__}:Recorder", rounds=5, attack_from=3, attack_until=4)
    assert {number for number, _ in simulation.attack.calls} == {3, 4}


@pytest.mark.parametrize("name", attacks.names()[1:])
def test_a_run_repeated_gives_the_same_records_and_weights_and_another_seed_others(name):
    first, again, other = (simulate(attack=name, seed=seed, alpha=1.0) for seed in (3, 3, 4))
    assert without_times(first) == without_times(again)
    assert all(torch.equal(value, again.weights[key]) for key, value in first.weights.items())
    assert without_times(first) != without_times(other)


@pytest.mark.parametrize("name", attacks.names()[1:])
def test_an_attack_in_one_batched_model_is_the_attack_in_the_loop(name):
    loop, batched = (simulate(attack=name, rounds=2, alpha=1.0, engine=engine) for engine in ("loop", "batched"))
    honest = simulate(attack="none", rounds=2, alpha=1.0)
    assert_close(batched.weights, loop.weights, atol=1e-4)
    assert max(float((loop.weights[key] - value).abs().max()) for key, value in honest.weights.items()) > 1e-3


# Poisoned data


@given(total=st.integers(0, 300), pdr=st.floats(0, 1))
def test_the_number_of_poisoned_samples_is_the_share_rounded_with_one_of_each_kind(total, pdr):
    count = poisoned_count(total, pdr)
    assert 0 <= count <= total
    if pdr in (0, 1):
        assert count == pdr * total
    elif total >= 2:
        assert 1 <= count <= total - 1
        assert abs(count - pdr * total) <= 1


def test_black_box_mixes_different_backdoored_samples_with_own_ones_that_stay_as_they_are():
    digits = tasks.create("digits")
    attack = enlisted("black_box", digits)
    clean = digits.train.take(torch.arange(100, 160))
    mixed = attack.training_data(0, clean, 0.3, torch.Generator().manual_seed(1))
    own = Counter((image.numpy().tobytes(), int(label)) for image, label in zip(clean.x, clean.y, strict=True))
    pool = Counter(image.numpy().tobytes() for image in digits.backdoor_train.x)
    poisoned = Counter(image.numpy().tobytes() for image in mixed.x[42:])
    kept = Counter(
        (image.numpy().tobytes(), int(label)) for image, label in zip(mixed.x[:42], mixed.y[:42], strict=True)
    )
    assert len(mixed) == 60
    assert kept <= own
    assert poisoned <= pool
    assert (mixed.y[42:] == 0).all()


def test_black_box_sends_what_honest_training_on_the_mixed_data_gives(patches, start):
    attack = enlisted("black_box", patches)
    turn = make_turn(attack, start, {1: 40, 9: 50})
    _, sent = act(attack, turn)
    (member,) = turn.members
    assert_close(sent[1], train_by_hand(patches, start, Job(1, member.poisoned, RECIPE, member.seed)))


@pytest.mark.parametrize("name", ["black_box", "pgd", "pgd_replacement", "constrain_and_scale"])
def test_edge_case_attacks_are_measured_on_the_tasks_backdoor(patches, name):
    assert enlisted(name, patches).backdoor_test() is patches.backdoor_test


# PGD


@ENGINES
@pytest.mark.parametrize("radius", [0.0, 0.05])
@pytest.mark.parametrize("steps", [1, 7])
def test_after_the_last_step_the_model_lies_on_the_ball_it_would_have_left(patches, start, engine, radius, steps):
    recipe = dataclasses.replace(RECIPE, lr=0.5, steps=steps)
    counts = {0: 40, 1: 23, 2: 9}
    pgd, free = enlisted("pgd", patches, radius=radius), enlisted("black_box", patches)
    _, sent = act(pgd, make_turn(pgd, start, counts, recipe), engine)
    _, unbound = act(free, make_turn(free, start, counts, recipe), engine)
    for client in counts:
        assert offset_norm(patches, unbound[client], start) > 1.5 * (radius or 0.3)
        assert offset_norm(patches, sent[client], start) == pytest.approx(radius or 0.3, rel=1e-5)


@ENGINES
def test_a_model_inside_the_ball_is_left_alone(patches, start, engine):
    pgd, free = enlisted("pgd", patches, radius=50.0), enlisted("black_box", patches)
    _, sent = act(pgd, make_turn(pgd, start, {0: 40}), engine)
    _, unbound = act(free, make_turn(free, start, {0: 40}), engine)
    for name, value in unbound[0].items():
        assert torch.equal(sent[0][name], value)


@ENGINES
def test_every_step_is_projected_onto_one_ball_over_all_parameters(patches, start, engine):
    pgd = enlisted("pgd", patches, radius=0.1)
    turn = make_turn(pgd, start, {0: 40, 1: 23})
    _, sent = act(pgd, turn, engine)
    for member in turn.members:
        job = Job(member.client, member.poisoned, dataclasses.replace(RECIPE, radius=0.1), member.seed)
        assert_close(sent[member.client], train_by_hand(patches, start, job))
        layers = [float((sent[member.client][name] - start[name]).norm()) for name in parameter_keys(patches)]
        assert max(layers) < 0.099


@ENGINES
def test_running_statistics_are_outside_the_ball(patches, start, engine):
    pgd = enlisted("pgd", patches, radius=1e-3)
    _, sent = act(pgd, make_turn(pgd, start, {0: 40}), engine)
    assert float((sent[0]["1.running_var"] - start["1.running_var"]).norm()) > 0.1
    assert sent[0]["1.num_batches_tracked"] == 6


def test_the_radii_are_the_papers():
    radii = {name: tasks.find(name).pgd_radius for name in ("mnist", "cifar10", "sentiment140", "reddit")}
    assert radii == {"mnist": 0.2, "cifar10": 1.0, "sentiment140": 2.0, "reddit": 2.0}
    pgd = enlisted("pgd", tasks.create("mnist"))
    assert pgd.recipe(RECIPE) == dataclasses.replace(RECIPE, radius=0.2)
    with pytest.raises(ConfigError, match="radius=-1"):
        attacks.create("pgd", radius=-1)


# Replacement


def aggregate(start, sent, counts):
    """FedAvg over what the attackers sent and others who send the global model back."""
    everybody = {client: sent.get(client, start) for client in counts}
    return aggregators.create("fedavg").aggregate(start, everybody, counts).weights


def weighted_mean(models, counts, names):
    """The sample-weighted mean of some clients' parameters, in float64."""
    total = sum(counts[client] for client in models)
    return {
        name: sum(counts[client] / total * model[name].double() for client, model in models.items()) for name in names
    }


@ENGINES
@pytest.mark.parametrize("name", ["pgd_replacement", "constrain_and_scale"])
@pytest.mark.parametrize("attackers", [{2: 17}, {0: 40, 1: 23, 3: 8}], ids=["one", "three"])
def test_replacement_alone_moves_the_average_to_the_attackers_model(patches, start, engine, name, attackers):
    counts = {**attackers, 10: 31, 11: 90, 12: 5}
    attack = enlisted(name, patches)
    trained, sent = act(attack, make_turn(attack, start, counts), engine)
    parameters = parameter_keys(patches)
    found = aggregate(start, sent, counts)
    expected = weighted_mean(trained, counts, parameters)
    assert max(float((expected[key] - start[key]).abs().max()) for key in parameters) > 0.01
    assert_close({key: found[key] for key in parameters}, expected, atol=1e-5)


def test_attackers_who_scale_by_their_own_share_overshoot_as_often_as_they_are(patches, start):
    counts = {0: 40, 1: 23, 3: 8, 10: 31, 11: 90}
    attack = enlisted("pgd_replacement", patches, share="own")
    trained, sent = act(attack, make_turn(attack, start, counts))
    found = aggregate(start, sent, counts)
    for key in parameter_keys(patches):
        overshot = start[key].double() + sum(trained[client][key].double() - start[key] for client in trained)
        torch.testing.assert_close(found[key].double(), overshot, rtol=0, atol=1e-5)
    equal = {0: 20, 1: 20, 3: 20, 10: 60}
    trained, sent = act(attack, make_turn(attack, start, equal))
    found = aggregate(start, sent, equal)
    mean = weighted_mean(trained, equal, parameter_keys(patches))
    for key, value in mean.items():
        torch.testing.assert_close(found[key] - start[key].double(), 3 * (value - start[key]), rtol=0, atol=1e-5)


class Halved(PGDReplacement):
    """Trains on half of its poisoned data, and is averaged by all it has."""

    def training_data(self, client, clean, pdr, generator):
        return super().training_data(client, clean, pdr, generator).take(torch.arange(len(clean) // 2))


def test_replacement_goes_by_the_samples_that_the_server_averages_by(patches, start):
    counts = {0: 40, 1: 20, 10: 30}
    attack = enlisted(f"{__name__}:Halved", patches)
    trained, sent = act(attack, make_turn(attack, start, counts))
    found = aggregate(start, sent, counts)
    for key, value in weighted_mean(trained, counts, parameter_keys(patches)).items():
        torch.testing.assert_close(found[key].double(), value, rtol=0, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    attackers=st.lists(st.integers(1, 500), min_size=1, max_size=5),
    others=st.lists(st.integers(1, 500), max_size=5),
    seed=st.integers(0, 999),
)
def test_replacement_holds_for_any_numbers_of_samples(attackers, others, seed):
    task = Patches()
    attack = enlisted("pgd_replacement", task, team=range(5))
    generator = torch.Generator().manual_seed(seed)
    start = {key: value.double() for key, value in fresh_weights(task, 0).items() if value.is_floating_point()}
    counts = dict(enumerate(attackers)) | {10 + i: count for i, count in enumerate(others)}
    nothing = torch.zeros(max(attackers), 1, 6, 6, dtype=torch.uint8), torch.zeros(max(attackers), dtype=torch.int64)
    samples = [Samples(*(part[:count] for part in nothing)) for count in attackers]
    members = tuple(Member(i, own, own, RECIPE, 0) for i, own in enumerate(samples))
    turn = Turn(1, start, members, sum(counts.values()), generator)
    names = parameter_keys(task)
    trained = {
        i: start | {key: start[key] + torch.randn(start[key].shape, generator=generator) for key in names}
        for i in range(len(attackers))
    }
    found = aggregate(start, attack.submissions(turn, trained), counts)
    for key, value in weighted_mean(trained, counts, names).items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["pgd_replacement", "constrain_and_scale"])
def test_running_statistics_are_sent_as_trained(patches, start, name):
    attack = enlisted(name, patches)
    trained, sent = act(attack, make_turn(attack, start, {0: 20, 1: 20, 10: 400}))
    for client, model in trained.items():
        for key in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
            assert torch.equal(sent[client][key], model[key])
        update, scaled = (float((weights["4.weight"] - start["4.weight"]).norm()) for weights in (model, sent[client]))
        assert scaled == pytest.approx(11 * update, rel=1e-4)


@given(factor=st.floats(-50, 50), seed=st.integers(0, 99))
def test_moved_is_g_plus_factor_times_update_in_the_named_entries_alone(factor, seed):
    generator = np.random.default_rng(seed)
    start, trained = ({key: torch.tensor(generator.normal(size=3)) for key in "ab"} for _ in range(2))
    found = moved(start, trained, factor, frozenset("a"))
    np.testing.assert_allclose(found["a"], (1 - factor) * start["a"].numpy() + factor * trained["a"].numpy(), atol=1e-9)
    assert found["b"] is trained["b"]


# Constrain-and-scale


@ENGINES
@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.9])
def test_the_distance_pulls_by_its_gradient_from_the_first_step_on(patches, start, engine, alpha):
    attack = enlisted("constrain_and_scale", patches, alpha=alpha)
    turn = make_turn(attack, start, {0: 40, 1: 23})
    trained, _ = act(attack, turn, engine)
    for member in turn.members:
        recipe = dataclasses.replace(RECIPE, loss_weight=alpha, distance_weight=1 - alpha)
        literal = train_by_hand(patches, start, Job(member.client, member.poisoned, recipe, member.seed))
        assert all(torch.isfinite(value).all() for value in trained[member.client].values())
        assert_close(trained[member.client], literal)
        weaker = dataclasses.replace(recipe, distance_weight=0.0)
        without = train_by_hand(patches, start, Job(member.client, member.poisoned, weaker, member.seed))
        assert offset_norm(patches, literal, start) < 0.98 * offset_norm(patches, without, start)


@ENGINES
def test_with_alpha_1_training_is_the_plain_one_bit_for_bit(patches, start, engine):
    constrained, plain = enlisted("constrain_and_scale", patches, alpha=1.0), enlisted("black_box", patches)
    first, _ = act(constrained, make_turn(constrained, start, {0: 40, 1: 23}), engine)
    second, _ = act(plain, make_turn(plain, start, {0: 40, 1: 23}), engine)
    for client, weights in second.items():
        assert all(torch.equal(first[client][name], value) for name, value in weights.items())


@ENGINES
def test_with_alpha_0_nothing_draws_the_model_away_from_the_global_one(patches, start, engine):
    attack = enlisted("constrain_and_scale", patches, alpha=0.0)
    recipe = dataclasses.replace(RECIPE, weight_decay=0.0)
    trained, sent = act(attack, make_turn(attack, start, {0: 40, 10: 40}, recipe), engine)
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
    trained, sent = act(attack, make_turn(attack, start, {0: 40, 1: 23, 2: 5, 10: 60}))
    for client, model in trained.items():
        for key in parameter_keys(patches):
            expected = start[key].double() + 3 * (model[key].double() - start[key])
            torch.testing.assert_close(sent[client][key].double(), expected, rtol=0, atol=1e-5)


def test_epochs_and_rate_are_multiples_of_the_honest_ones():
    attack = attacks.create("constrain_and_scale", epoch_factor=3, lr_factor=0.5)
    assert attack.recipe(RECIPE) == dataclasses.replace(
        RECIPE, lr=0.025, epochs=6, loss_weight=0.5, distance_weight=0.5
    )
    assert attack.recipe(dataclasses.replace(RECIPE, steps=4)).steps == 12
    assert attacks.create("constrain_and_scale").recipe(RECIPE).epochs == RECIPE.epochs


# DBA


def with_pictures(task: Task, channels: int, side: int, count: int = 60) -> Task:
    """The task with random pictures, none of whose pixels is white, in place of its data."""
    generator = torch.Generator().manual_seed(0)
    for part in ("train", "test"):
        x = torch.randint(0, 255, (count, channels, side, side), generator=generator, dtype=torch.uint8)
        setattr(task, part, Samples(x, torch.arange(count) % 10))
    return task


MNIST_AND_CIFAR = pytest.mark.parametrize(
    ("task", "pixels"),
    [(with_pictures(Mnist(), 1, 28), MNIST_BARS), (with_pictures(Cifar10(), 3, 32), CIFAR_BARS)],
    ids=["mnist", "cifar10"],
)


@MNIST_AND_CIFAR
def test_the_global_trigger_is_white_at_the_papers_pixels_and_nowhere_else(task, pixels):
    attack = enlisted("dba", task)
    found = attack.backdoor_test()
    expected = task.test.x[task.test.y != 2].clone()
    for row, column in pixels:
        expected[:, :, row, column] = 255
    assert torch.equal(found.x, expected)
    assert (found.y == 2).all()


@MNIST_AND_CIFAR
def test_the_bars_are_1_before_normalisation(task, pixels):
    triggered = enlisted("dba", task).backdoor_test().x
    normalised, white = task.prepare(triggered), task.prepare(torch.full_like(triggered, 255))
    for row, column in pixels:
        assert torch.equal(normalised[:, :, row, column], white[:, :, row, column])
        assert (triggered[:, :, row, column].float() / 255 == 1).all()


@MNIST_AND_CIFAR
def test_four_attackers_train_with_a_bar_each_and_the_bars_add_up_to_the_global_trigger(task, pixels):
    attack = enlisted("dba", task, team=[30, 4, 17, 21, 40, 55, 60, 61, 99])
    clean = task.train
    bars = []
    for client in sorted([30, 4, 17, 21, 40, 55, 60, 61, 99]):
        own = attack.training_data(client, clean, 1.0, torch.Generator().manual_seed(client))
        white = (own.x == 255).all(dim=0).all(dim=0)
        bars.append({(int(row), int(column)) for row, column in white.nonzero()})
        assert (own.y == 2).all()
    half = len(pixels) // 4
    assert bars[:4] == [set(pixels[i * half : (i + 1) * half]) for i in range(4)]
    assert sum(len(bar) for bar in bars[:4]) == len(set.union(*bars[:4])) == len(pixels)
    assert set.union(*bars[:4]) == set(pixels)
    assert bars[4:8] == bars[:4]
    assert bars[8] == bars[0]


def test_a_share_of_the_pictures_gets_the_bar_and_the_others_stay_as_they_are():
    task = with_pictures(Mnist(), 1, 28)
    attack = enlisted("dba", task)
    mixed = attack.training_data(0, task.train, 0.25, torch.Generator().manual_seed(0))
    triggered = (mixed.x[:, 0, 0, :4] == 255).all(dim=1)
    assert len(mixed) == 60
    assert int(triggered.sum()) == 15
    own = {(image.numpy().tobytes(), int(label)) for image, label in zip(task.train.x, task.train.y, strict=True)}
    for image, label, marked in zip(mixed.x, mixed.y, triggered, strict=True):
        assert label == 2 if marked else (image.numpy().tobytes(), int(label)) in own
    behind = mixed.x[triggered].clone()
    behind[:, :, 0, :4] = 0
    originals = task.train.x.clone()
    originals[:, :, 0, :4] = 0
    assert {image.numpy().tobytes() for image in behind} <= {image.numpy().tobytes() for image in originals}
    assert not (task.train.x == 255).any()


@pytest.mark.parametrize("target", [0, 7])
def test_asr_is_measured_without_the_target_class(target):
    digits = tasks.create("digits")
    found = enlisted("dba", digits, target=target).backdoor_test()
    assert len(found) == int((digits.test.y != target).sum())
    assert torch.equal(found.x[:, :, 5:], digits.test.x[digits.test.y != target][:, :, 5:])
    assert (found.y == target).all()


def test_size_gap_and_shift_place_the_bars():
    task = with_pictures(Mnist(), 1, 28)
    found = enlisted("dba", task, size=5, gap=4, shift=2).backdoor_test().x
    white = {(int(row), int(column)) for row, column in (found == 255).all(dim=0).all(dim=0).nonzero()}
    assert white == {(row, column) for row in (2, 7) for column in (2, 3, 4, 5, 6, 11, 12, 13, 14, 15)}


@pytest.mark.parametrize("given", [{"size": 14, "gap": 1}, {"gap": 27}, {"shift": 19}, {"size": 0}])
def test_bars_that_do_not_fit_are_refused(given):
    with pytest.raises(ConfigError, match="do not fit 28x28"):
        enlisted("dba", with_pictures(Mnist(), 1, 28), **given)


@pytest.mark.parametrize("name", PICTURE_ATTACKS)
def test_a_target_that_is_no_label_is_refused(name):
    with pytest.raises(ConfigError, match="target=10 is no label of task digits"):
        enlisted(name, tasks.create("digits"), target=10)


@pytest.mark.parametrize("task", ["sentiment140", "reddit"])
@pytest.mark.parametrize("name", [*PICTURE_ATTACKS, "randomized(dba)"])
def test_a_text_task_is_refused_before_any_data_is_read(name, task):
    with pytest.raises(ConfigError, match=rf"draws on pictures, which task {task} has not: choose another"):
        Simulation(RunConfig(task=task, attack=name))


def test_on_the_command_line_that_is_one_line_and_status_2():
    program = [sys.executable, "-c", "from g2uardfl.cli import main; main()"]
    arguments = ["run", "--task", "sentiment140", "--attack", "dba", "--defense", "fedavg"]
    found = subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    assert "draws on pictures" in found.stderr


def test_a_whole_number_may_be_written_as_a_decimal():
    assert attacks.create("dba", size=2.0).settings.size == 2
    assert isinstance(attacks.create("dba", size=2.0).settings.size, int)
    with pytest.raises(ConfigError, match=r"size=2\.5"):
        attacks.create("dba", size=2.5)
