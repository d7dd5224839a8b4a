"""The adaptive attacks: the distribution of what each draws, and what it leaves unchanged."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from g2uardfl import attacks, tasks
from g2uardfl.attacks.adaptive import ModelObfuscation, Randomized
from g2uardfl.attacks.base import Attack
from g2uardfl.attacks.black_box import BlackBox
from g2uardfl.simulation.run import Simulation
from g2uardfl.simulation.start import fresh_weights
from g2uardfl.tasks.base import Samples
from g2uardfl.training.local import train_locally
from helpers.attacking import SHORT, average, make_turn, observed_rounds, parameter_keys, short_run
from helpers.models import Patches, same


class WidePatches(Patches):
    """With enough parameters for statistics."""

    channels = 60


@pytest.fixture(scope="module")
def patches() -> Patches:
    return WidePatches()


@pytest.fixture(scope="module")
def start(patches) -> dict[str, Tensor]:
    return fresh_weights(patches, 0)


# Dynamic PDR.


def poisoned_share(attack: Attack, clean: Samples, client: int, pdr: float = 0.5) -> float:
    """The share of a client's training samples with the bright corner of the backdoor and its label 0."""
    mixed = attack.training_data(client, clean, pdr, torch.Generator().manual_seed(client))
    backdoored = (mixed.x[:, :, 6:, 6:] == 16).flatten(1).all(dim=1) & (mixed.y == 0)
    return float(backdoored.double().mean())


@pytest.mark.parametrize(("low", "high"), [(0.05, 0.20), (0.4, 0.9)])
def test_each_client_draws_its_own_rate_uniformly_from_the_range(low, high):
    digits = tasks.create("digits")
    given = {} if low == 0.05 else {"low": low, "high": high}
    attack = attacks.create("dynamic_pdr(black_box)", **given)
    attack.enlist(digits, range(200))
    shares = [poisoned_share(attack, digits.train, client) for client in range(200)]
    assert min(shares) >= low - 1e-3
    assert max(shares) <= high + 1e-3
    assert len(set(shares)) > 80
    assert stats.kstest(shares, "uniform", (low, high - low)).pvalue > 1e-3


def test_the_rate_of_the_run_is_not_used():
    digits = tasks.create("digits")
    attack = attacks.create("dynamic_pdr(black_box)")
    attack.enlist(digits, range(5))
    for client in range(5):
        shares = {poisoned_share(attack, digits.train, client, pdr) for pdr in (0.0, 0.5, 1.0)}
        assert len(shares) == 1


class Observed(BlackBox):
    """Records the poisoned samples of every member in every round."""

    def __init__(self):
        super().__init__()
        self.poisoned = {}

    def observe(self, turn):
        for member in turn.members:
            self.poisoned.setdefault(member.client, []).append(member.poisoned)


def test_a_client_keeps_its_rate_in_every_round_and_after_a_resume():
    config = dataclasses.replace(SHORT, attack=f"dynamic_pdr({__name__}:Observed)", clients=8, rounds=4)
    first, resumed = Simulation(config), Simulation(config)
    first.run()
    received = first.attack.inner.poisoned
    assert max(len(given) for given in received.values()) > 1
    resumed.resume(first.checkpoint(), list(first.records))
    for client, given in received.items():
        for samples in (*given, resumed.samples.poisoned(client)):
            assert torch.equal(samples.x, given[0].x)
            assert torch.equal(samples.y, given[0].y)


# Model obfuscation.


@pytest.mark.parametrize("noise", [0.034, 0.5])
def test_obfuscation_adds_independent_gaussian_noise_to_each_attackers_parameters(patches, start, noise):
    attack = ModelObfuscation("black_box") if noise == 0.034 else ModelObfuscation("black_box", noise=noise)
    attack.enlist(patches, [1, 2, 3])
    turn = make_turn(start, [1, 2, 3])
    trained = {client: {name: value + client for name, value in start.items()} for client in (1, 2, 3)}
    sent = attack.submissions(turn, trained)
    names = parameter_keys(patches)
    noises = {
        client: np.concatenate(
            [(sent[client][name].double() - trained[client][name].double()).flatten().numpy() for name in names]
        )
        for client in (1, 2, 3)
    }
    count = len(noises[1])
    for drawn in noises.values():
        assert drawn.std() == pytest.approx(noise, rel=5 / math.sqrt(2 * count))
        assert abs(drawn.mean()) < 5 * noise / math.sqrt(count)
        assert stats.kstest(drawn, "norm", (0, noise)).pvalue > 1e-3
    for one, two in ((1, 2), (1, 3), (2, 3)):
        assert abs(np.corrcoef(noises[one], noises[two])[0, 1]) < 5 / math.sqrt(count)


def test_obfuscation_does_not_change_running_statistics(patches, start):
    attack = ModelObfuscation("black_box")
    attack.enlist(patches, [1])
    sent = attack.submissions(make_turn(start, [1]), {1: start})[1]
    assert list(sent) == list(start)
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(sent[name], start[name])
        assert sent[name].dtype == start[name].dtype


def test_obfuscation_draws_new_noise_in_every_round_and_adds_it_to_the_inner_attack(patches, start):
    attack, inside = ModelObfuscation("pgd_replacement", noise=1e-3), attacks.create("pgd_replacement")
    for one in (attack, inside):
        one.enlist(patches, [1])
    trained = {1: {name: value + 1 if value.is_floating_point() else value for name, value in start.items()}}
    first, second = (attack.submissions(make_turn(start, [1], seed=seed), trained)[1] for seed in (0, 1))
    plain = inside.submissions(make_turn(start, [1]), trained)[1]
    assert not torch.equal(first["4.weight"], second["4.weight"])
    assert float((plain["4.weight"] - start["4.weight"]).mean()) == pytest.approx(10, rel=1e-4)
    assert float((first["4.weight"] - plain["4.weight"]).abs().max()) < 6e-3


def test_obfuscation_without_noise_does_nothing():
    assert same(short_run(attack="model_obfuscation", attack_settings={"noise": 0.0}).weights,
                short_run(attack="pgd_replacement").weights)  # fmt: skip


# Randomised attacks.


@pytest.mark.parametrize("probability", [0.5, 0.2])
def test_each_selected_client_attacks_independently_with_the_given_probability(start, probability):
    attack = Randomized("black_box") if probability == 0.5 else Randomized("black_box", probability=probability)
    rounds = 3000
    chosen, both = Counter(), 0
    for number in range(rounds):
        members = {member.client for member in attack.attackers(make_turn(start, [1, 2, 3], seed=number))}
        chosen.update(members)
        both += {1, 2} <= members
    for client in (1, 2, 3):
        assert stats.binomtest(chosen[client], rounds, probability).pvalue > 1e-4
    assert stats.binomtest(both, rounds, probability**2).pvalue > 1e-4


def test_in_a_run_attackers_attack_half_of_the_time():
    simulation = short_run(
        attack="randomized(black_box)", rounds=40, clients=100, per_round=10, local_steps=1, evaluate_every=40
    )
    malicious = sum(len(record["malicious"]) for record in simulation.records)
    attacking = sum(len(record["attacking"]) for record in simulation.records)
    assert malicious > 150
    assert stats.binomtest(attacking, malicious, 0.5).pvalue > 1e-4
    assert all(set(record["attacking"]) <= set(record["malicious"]) for record in simulation.records)


@pytest.mark.parametrize("name", ["randomized", "randomized(three_d_fed)", "randomized(model_obfuscation(dba))"])
def test_malicious_clients_that_do_not_attack_send_exactly_what_honest_ones_would(name):
    simulation = Simulation(dataclasses.replace(SHORT, attack=name, rounds=4))
    honest = attacking = 0
    for round_, record in zip(observed_rounds(simulation), simulation.records, strict=True):
        for client in record["malicious"]:
            job = simulation.honest_job(record["round"], client)
            expected = train_locally(simulation.task, simulation.task.build_model(), round_.global_weights, job)
            assert same(round_.client_weights[client], expected) == (client not in record["attacking"])
            honest += client not in record["attacking"]
            attacking += client in record["attacking"]
    assert honest > 2
    assert attacking > 2


def test_replacement_compensates_for_the_share_of_the_attacking_clients(patches, start):
    attack = Randomized("pgd_replacement")
    attack.enlist(patches, [1, 2, 3, 4])
    generator = torch.Generator().manual_seed(5)
    trained = {
        client: {
            name: value + torch.rand(value.shape, generator=generator) if value.is_floating_point() else value
            for name, value in start.items()
        }
        for client in (1, 2, 3, 4)
    }
    turn = make_turn(start, [1, 2, 3, 4], seed=5)
    turn = dataclasses.replace(turn, members=attack.attackers(turn))
    chosen = [member.client for member in turn.members]
    assert 0 < len(chosen) < 4
    sent = attack.submissions(turn, {client: trained[client] for client in chosen})
    found = average(start, sent, dict.fromkeys(range(1, 11), 10))
    for name in parameter_keys(patches):
        mean = sum(trained[client][name].double() for client in chosen) / len(chosen)
        torch.testing.assert_close(found[name].double(), mean, rtol=0, atol=1e-5)


def test_with_probability_0_nobody_attacks_and_with_1_all_do():
    never = short_run(attack="randomized", attack_settings={"probability": 0.0})
    always = short_run(attack="randomized", attack_settings={"probability": 1.0})
    assert same(never.weights, short_run(attack="none").weights)
    assert same(always.weights, short_run(attack="pgd_replacement").weights)
    assert not any(record["attacking"] for record in never.records)
    assert all(record["attacking"] == record["malicious"] for record in always.records)


def test_an_inner_attack_selects_among_the_members_that_were_drawn(start):
    class First(BlackBox):
        def attackers(self, turn):
            return turn.members[:1]

    attack = Randomized(First())
    drawn_only = Randomized("black_box")
    for seed in range(50):
        pairs = [(one, make_turn(start, [1, 2, 3], seed=seed)) for one in (attack, drawn_only)]
        found, drawn = ([member.client for member in one.attackers(own)] for one, own in pairs)
        assert found == drawn[:1]


class Noted(BlackBox):
    """Records the rounds that it observes."""

    def __init__(self):
        super().__init__()
        self.observed = []

    def observe(self, turn):
        self.observed.append(turn.number)


def test_the_inner_attack_observes_every_round_also_if_nobody_attacks():
    simulation = short_run(attack=f"randomized({__name__}:Noted)", rounds=6)
    assert simulation.attack.inner.observed == [record["round"] for record in simulation.records if record["malicious"]]
