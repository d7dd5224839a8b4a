"""Wrappers: names, nesting, settings and delegation."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch

from g2uardfl import attacks, tasks
from g2uardfl.attacks.adaptive import ModelObfuscation, Randomized, Wrapper
from g2uardfl.attacks.black_box import BlackBox
from g2uardfl.core.errors import ConfigError
from g2uardfl.simulation.run import Simulation
from helpers.attacking import SHORT, observed_rounds, short_run
from helpers.models import same
from helpers.runs import without_times

WRAPPERS = ["dynamic_pdr", "model_obfuscation", "randomized"]
NESTED = "randomized(model_obfuscation(three_d_fed))"


class Unison(Wrapper):
    """A third party's wrapper: all attackers send the model of the first."""

    name = "unison"
    summary = "wrapper: all attackers send the same model"

    def submissions(self, turn, trained):
        sent = self.inner.submissions(turn, trained)
        return dict.fromkeys(sent, sent[turn.members[0].client])


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_wraps_the_papers_default_attack_if_none_is_named(name):
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


def test_a_setting_goes_to_the_outermost_attack_that_has_it():
    attack = attacks.create(NESTED, probability=0.2, noise=0.5, kappa=1e4, group_size=3)
    assert attack.settings.probability == 0.2
    assert attack.inner.settings.noise == 0.5
    assert attack.inner.inner.settings.kappa == 1e4
    assert attack.inner.inner.settings.group_size == 3
    assert attack.inner.inner.settings.target == 8
    twice = attacks.create("randomized(randomized(pgd))", probability=0.1, radius=4.0)
    assert (twice.settings.probability, twice.inner.settings.probability) == (0.1, 0.5)
    assert twice.inner.inner.settings.radius == 4.0


def test_settings_of_a_run_reach_the_inner_attack():
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
        ("randomized(none)", {}, "randomized cannot wrap none, which does not attack"),
        ("randomized(model_obfuscation(none))", {}, "model_obfuscation cannot wrap none"),
        ("randomized()", {}, "unknown attack ''"),
        ("randomized(black_box", {}, "unknown attack"),
        ("randomized(black_box))", {}, "unknown attack"),
        ("black_box(pgd)", {}, "black_box cannot wrap pgd"),
        ("randomized(black_box(pgd))", {}, "black_box cannot wrap pgd"),
        ("shuffled(pgd)", {}, "unknown attack 'shuffled'"),
        ("randomized(shuffled)", {}, "unknown attack 'shuffled'"),
    ],
)
def test_impossible_names_and_settings_are_rejected(name, given, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        attacks.create(name, **given)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("randomized", {"attack": 5}, "randomized cannot wrap attack=5: give an attack's name or an attack object"),
        ("dynamic_pdr", {"attack": None}, "dynamic_pdr cannot wrap attack=None: give an attack's name"),
        ("model_obfuscation", {"attack": BlackBox}, "BlackBox'>: give an attack's name or an attack object"),
        ("randomized", {"attack": ["pgd"], "radius": 1.0}, "cannot wrap attack=['pgd']: give an attack's name"),
        ("randomized", {"attack": "shuffled"}, "unknown attack 'shuffled': choose from"),
        ("randomized(pgd)", {"attack": "dba"}, "randomized(pgd) names the inner attack: leave out the setting attack"),
    ],
)
def test_an_impossible_inner_attack_is_rejected_in_one_line_with_advice(name, given, message):
    with pytest.raises(ConfigError) as caught:
        attacks.create(name, **given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_of_the_inner_attack_are_rejected_with_an_attack_object():
    with pytest.raises(ConfigError, match="'probabilty': pass the inner attack's settings only together with its name"):
        Randomized(BlackBox(), probabilty=0.1)


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_has_the_backdoor_test_and_the_memory_of_its_inner_attack(name):
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
    first, again = short_run(attack=name), short_run(attack=name)
    assert same(first.weights, again.weights)
    assert list(map(without_times, first.records)) == list(map(without_times, again.records))
    assert any(record["attacking"] for record in first.records)
    assert not same(first.weights, short_run(attack="none").weights)


def test_a_third_partys_wrapper_changes_what_the_server_receives():
    simulation = Simulation(dataclasses.replace(SHORT, attack=f"{__name__}:Unison(black_box)"))
    for round_, record in zip(observed_rounds(simulation), simulation.records, strict=True):
        sent = [round_.client_weights[client] for client in record["attacking"]]
        assert all(same(sent[0], model) for model in sent)
