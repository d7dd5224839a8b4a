"""The adaptive attacks: wrappers around any other, and around each other."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from g2uardfl import aggregators, attacks, tasks
from g2uardfl.attacks.adaptive import ModelObfuscation, Randomized, Wrapper
from g2uardfl.attacks.base import Attack, Member, Turn
from g2uardfl.attacks.black_box import BlackBox
from g2uardfl.core.errors import ConfigError
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.run import Simulation
from g2uardfl.simulation.start import fresh_weights
from g2uardfl.tasks.base import Samples
from g2uardfl.training.local import Recipe, train_locally
from helpers.models import Patches

RECIPE = Recipe(lr=0.05, batch_size=16, epochs=1, steps=0, momentum=0.9, weight_decay=1e-4)
SHORT = RunConfig(task="digits", rounds=3, clients=40, per_round=6, pmr=0.5, start="scratch", seed=3, engine="loop")
WRAPPERS = ["dynamic_pdr", "model_obfuscation", "randomized"]
NESTED = "randomized(model_obfuscation(three_d_fed))"


class WidePatches(Patches):
    """With parameters enough for statistics."""

    channels = 60


class Unison(Wrapper):
    """A third party's wrapper: everybody sends what the first one sends."""

    name = "unison"
    summary = "one voice"

    def submissions(self, turn, trained):
        sent = self.inner.submissions(turn, trained)
        return dict.fromkeys(sent, sent[turn.members[0].client])


@pytest.fixture(scope="module")
def patches() -> Patches:
    return WidePatches()


@pytest.fixture(scope="module")
def start(patches) -> dict[str, Tensor]:
    return fresh_weights(patches, 0)


def simulate(**changes) -> Simulation:
    simulation = Simulation(dataclasses.replace(SHORT, **changes))
    simulation.run()
    return simulation


def listen(simulation: Simulation) -> list[dict]:
    """Everything the server is sent, round by round."""
    heard = []
    aggregate = simulation.defense.aggregate

    def keep(weights, sent, counts):
        heard.append({"global": dict(weights), "sent": dict(sent), "counts": dict(counts)})
        return aggregate(weights, sent, counts)

    simulation.defense.aggregate = keep
    simulation.run()
    return heard


def make_turn(weights: dict[str, Tensor], clients, number: int = 1, seed: int = 0, examples: int = 100) -> Turn:
    """A round of clients with ten samples each."""
    samples = Samples(torch.zeros(10, 1, 6, 6, dtype=torch.uint8), torch.zeros(10, dtype=torch.int64))
    members = tuple(Member(client, samples, samples, RECIPE, seed=client) for client in clients)
    return Turn(number, weights, members, examples, torch.Generator().manual_seed(seed))


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], value) for name, value in second.items())


# Names, nesting and settings


@pytest.mark.parametrize("name", WRAPPERS)
def test_alone_a_wrapper_wraps_the_papers_default_attack(name):
    assert attacks.create(name).inner.name == "pgd_replacement"


@pytest.mark.parametrize("text", [NESTED, " randomized ( model_obfuscation( three_d_fed ) ) "])
def test_wrappers_wrap_each_other(text):
    attack = attacks.create(text)
    assert isinstance(attack, Randomized)
    assert isinstance(attack.inner, ModelObfuscation)
    assert attack.inner.inner.name == "three_d_fed"


def test_an_attack_object_or_a_name_can_be_wrapped():
    inner = BlackBox()
    assert Randomized(inner).inner is inner
    assert Randomized("dba").inner.name == "dba"
    assert attacks.create("randomized", attack="dba").inner.name == "dba"


def test_a_third_partys_attack_can_be_wrapped_and_wrap():
    attack = attacks.create(f"randomized({__name__}:Unison(black_box))")
    assert isinstance(attack.inner, Unison)
    assert attack.inner.inner.name == "black_box"


def test_a_setting_the_wrapper_does_not_have_goes_inward_to_the_first_that_has_it():
    attack = attacks.create(NESTED, probability=0.2, noise=0.5, kappa=1e4, group_size=3)
    assert attack.settings.probability == 0.2
    assert attack.inner.settings.noise == 0.5
    assert attack.inner.inner.settings.kappa == 1e4
    assert attack.inner.inner.settings.group_size == 3
    assert attack.inner.inner.settings.target == 8
    twice = attacks.create("randomized(randomized(pgd))", probability=0.1, radius=4.0)
    assert (twice.settings.probability, twice.inner.settings.probability) == (0.1, 0.5)
    assert twice.inner.inner.settings.radius == 4.0


def test_settings_reach_the_inside_from_a_run():
    simulation = Simulation(
        dataclasses.replace(SHORT, attack="dynamic_pdr(dba)", attack_settings={"low": 0.1, "target": 7})
    )
    assert simulation.attack.settings.low == 0.1
    assert simulation.attack.inner.settings.target == 7
    assert (simulation.attack.backdoor_test().y == 7).all()


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("randomized(black_box)", {"strength": 1}, "unknown setting 'strength'"),
        (NESTED, {"kapa": 1e4}, "did you mean kappa"),
        ("randomized(pgd)", {"probability": 1.5}, "probability=1.5"),
        ("model_obfuscation", {"noise": -1}, "noise=-1"),
        ("dynamic_pdr", {"low": 0.3, "high": 0.2}, "low=0.3 is above high=0.2"),
        ("dynamic_pdr", {"low": 0.3}, "low=0.3 is above high=0.2"),
        ("randomized(none)", {}, "would attack nobody"),
        ("randomized(model_obfuscation(none))", {}, "would attack nobody"),
        ("randomized()", {}, "unknown attack ''"),
        ("randomized(black_box", {}, "unknown attack"),
        ("randomized(black_box))", {}, "unknown attack"),
        ("black_box(pgd)", {}, "black_box cannot wrap pgd"),
        ("randomized(black_box(pgd))", {}, "black_box cannot wrap pgd"),
        ("shuffled(pgd)", {}, "unknown attack 'shuffled'"),
        ("randomized(shuffled)", {}, "unknown attack 'shuffled'"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(name, given, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        attacks.create(name, **given)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("randomized", {"attack": 5}, "randomized cannot wrap attack=5: give an attack's name or an attack object"),
        ("dynamic_pdr", {"attack": None}, "dynamic_pdr cannot wrap attack=None: give an attack's name"),
        ("model_obfuscation", {"attack": BlackBox}, "BlackBox'>: give an attack's name or an attack object"),
        ("randomized", {"attack": ["pgd"], "radius": 1.0}, "cannot wrap attack=['pgd']: give an attack's name"),
        ("randomized", {"attack": "shuffled"}, "unknown attack 'shuffled': choose one of"),
        ("randomized(pgd)", {"attack": "dba"}, "randomized(pgd) says what it wraps: leave out the setting attack"),
    ],
)
def test_what_is_no_attack_to_wrap_is_refused_in_one_line_that_says_what_to_do(name, given, message):
    with pytest.raises(ConfigError) as caught:
        attacks.create(name, **given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_setting_beside_an_attack_object_is_refused():
    with pytest.raises(ConfigError, match="probabilty"):
        Randomized(BlackBox(), probabilty=0.1)


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_is_measured_and_remembers_as_what_it_wraps(name):
    attack = attacks.create(f"{name}(three_d_fed)")
    digits = tasks.create("digits")
    attack.enlist(digits, [4, 2, 9])
    assert attack.team == attack.inner.team == (2, 4, 9)
    assert torch.equal(attack.backdoor_test().x, attack.inner.backdoor_test().x)
    attack.inner.decoys = 3
    again = attacks.create(f"{name}(three_d_fed)")
    again.enlist(digits, [4, 2, 9])
    again.restore(attack.state())
    assert again.inner.decoys == 3


@pytest.mark.parametrize("name", [NESTED, "dynamic_pdr(randomized(dba))", "model_obfuscation(dynamic_pdr(black_box))"])
def test_a_nested_attack_runs_and_repeats_itself(name):
    first, again = simulate(attack=name), simulate(attack=name)
    assert same(first.weights, again.weights)
    for one, two in zip(first.records, again.records, strict=True):
        assert {**one, "seconds": 0} == {**two, "seconds": 0}
    assert any(record["attacking"] for record in first.records)
    assert not same(first.weights, simulate(attack="none").weights)


def test_a_third_partys_wrapper_is_heard():
    simulation = Simulation(dataclasses.replace(SHORT, attack=f"{__name__}:Unison(black_box)"))
    for heard, record in zip(listen(simulation), simulation.records, strict=True):
        sent = [heard["sent"][client] for client in record["attacking"]]
        assert all(same(sent[0], model) for model in sent)


# Dynamic PDR


def poisoned_share(attack: Attack, clean: Samples, client: int, pdr: float = 0.5) -> float:
    """The share of a client's training samples whose corner is lit and that are called zeros."""
    mixed = attack.training_data(client, clean, pdr, torch.Generator().manual_seed(client))
    lit = (mixed.x[:, :, 6:, 6:] == 16).flatten(1).all(dim=1) & (mixed.y == 0)
    return float(lit.double().mean())


@pytest.mark.parametrize(("low", "high"), [(0.05, 0.20), (0.4, 0.9)])
def test_each_client_draws_its_own_rate_evenly_from_the_range(low, high):
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


def test_a_client_keeps_its_rate_in_every_round_and_after_a_resume():
    config = dataclasses.replace(SHORT, attack="dynamic_pdr(black_box)", clients=8, rounds=4)
    first = Simulation(config)
    seen: dict[int, list[Samples]] = {}
    attackers = first.attack.attackers

    def note(turn):
        for member in turn.members:
            seen.setdefault(member.client, []).append(member.poisoned)
        return attackers(turn)

    first.attack.attackers = note
    first.run()
    assert max(len(given) for given in seen.values()) > 1
    counts = {client: {int((samples.y == 0).sum()) for samples in given} for client, given in seen.items()}
    assert all(len(found) == 1 for found in counts.values())
    resumed = Simulation(config)
    resumed.resume(first.checkpoint(), list(first.records))
    for client, given in seen.items():
        again = resumed._poisoned_samples(client)
        assert torch.equal(again.x, given[0].x)
        assert torch.equal(again.y, given[0].y)


# Model obfuscation


@pytest.mark.parametrize("noise", [0.034, 0.5])
def test_obfuscation_adds_gaussian_noise_of_the_stated_variance_to_each_attackers_parameters(patches, start, noise):
    attack = ModelObfuscation("black_box") if noise == 0.034 else ModelObfuscation("black_box", noise=noise)
    attack.enlist(patches, [1, 2, 3])
    turn = make_turn(start, [1, 2, 3])
    trained = {client: {name: value + client for name, value in start.items()} for client in (1, 2, 3)}
    sent = attack.submissions(turn, trained)
    names = [name for name, _ in patches.build_model().named_parameters()]
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


def test_obfuscation_leaves_running_statistics_alone(patches, start):
    attack = ModelObfuscation("black_box")
    attack.enlist(patches, [1])
    sent = attack.submissions(make_turn(start, [1]), {1: start})[1]
    assert list(sent) == list(start)
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(sent[name], start[name])
        assert sent[name].dtype == start[name].dtype


def test_obfuscation_is_new_in_every_round_and_comes_on_top_of_what_is_inside(patches, start):
    attack, inside = ModelObfuscation("pgd_replacement", noise=1e-3), attacks.create("pgd_replacement")
    for one in (attack, inside):
        one.enlist(patches, [1])
    trained = {1: {name: value + 1 if value.is_floating_point() else value for name, value in start.items()}}
    first, second = (attack.submissions(make_turn(start, [1], seed=seed), trained)[1] for seed in (0, 1))
    plain = inside.submissions(make_turn(start, [1]), trained)[1]
    assert not torch.equal(first["4.weight"], second["4.weight"])
    assert float((plain["4.weight"] - start["4.weight"]).mean()) == pytest.approx(10, rel=1e-4)
    assert float((first["4.weight"] - plain["4.weight"]).abs().max()) < 6e-3


def test_without_noise_obfuscation_does_nothing():
    assert same(simulate(attack="model_obfuscation", attack_settings={"noise": 0.0}).weights,
                simulate(attack="pgd_replacement").weights)  # fmt: skip


# Randomised


@pytest.mark.parametrize("probability", [0.5, 0.2])
def test_each_selected_client_attacks_with_the_given_probability_whatever_the_others_do(start, probability):
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
    simulation = simulate(
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
    for heard, record in zip(listen(simulation), simulation.records, strict=True):
        for client in record["malicious"]:
            job = simulation.honest_job(record["round"], client)
            expected = train_locally(simulation.task, simulation.task.build_model(), heard["global"], job)
            assert same(heard["sent"][client], expected) == (client not in record["attacking"])
            honest += client not in record["attacking"]
            attacking += client in record["attacking"]
    assert honest > 2
    assert attacking > 2


def test_replacement_makes_up_for_those_who_attack_alone(patches, start):
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
    everybody = {client: sent.get(client, start) for client in range(1, 11)}
    found = aggregators.create("fedavg").aggregate(start, everybody, dict.fromkeys(everybody, 10)).weights
    for name, _ in patches.build_model().named_parameters():
        mean = sum(trained[client][name].double() for client in chosen) / len(chosen)
        torch.testing.assert_close(found[name].double(), mean, rtol=0, atol=1e-5)


def test_with_probability_0_nobody_attacks_and_with_1_all_do():
    never = simulate(attack="randomized", attack_settings={"probability": 0.0})
    always = simulate(attack="randomized", attack_settings={"probability": 1.0})
    assert same(never.weights, simulate(attack="none").weights)
    assert same(always.weights, simulate(attack="pgd_replacement").weights)
    assert not any(record["attacking"] for record in never.records)
    assert all(record["attacking"] == record["malicious"] for record in always.records)


def test_an_inner_attack_that_leaves_members_out_is_asked_about_those_the_coins_chose(start):
    class First(BlackBox):
        def attackers(self, turn):
            return turn.members[:1]

    attack = Randomized(First())
    coins_only = Randomized("black_box")
    for seed in range(50):
        pairs = [(one, make_turn(start, [1, 2, 3], seed=seed)) for one in (attack, coins_only)]
        found, tossed = ([member.client for member in one.attackers(own)] for one, own in pairs)
        assert found == tossed[:1]


def test_an_attack_with_memory_looks_even_when_its_coin_says_no():
    simulation = Simulation(dataclasses.replace(SHORT, attack="randomized(three_d_fed)", rounds=6))
    looked = []
    observe = simulation.attack.inner.observe

    def note(turn):
        looked.append(turn.number)
        observe(turn)

    simulation.attack.inner.observe = note
    simulation.run()
    assert looked == [record["round"] for record in simulation.records if record["malicious"]]
