"""The constructors of all attacks: explicit keyword arguments, documented, and checked."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass

import pytest

from g2uardfl import attacks
from g2uardfl.attacks.adaptive import Wrapper
from g2uardfl.attacks.base import Attack
from g2uardfl.core.errors import ConfigError
from g2uardfl.core.settings import number
from helpers.constructors import (
    documented_defaults,
    impossible_values,
    keyword_defaults,
    other_values,
    settings_of,
    unnamed_arguments,
)

ATTACKS = [attacks.find(name) for name in attacks.names()]
WRAPPERS = [kind for kind in ATTACKS if issubclass(kind, Wrapper)]


@pytest.mark.parametrize("kind", ATTACKS)
def test_the_arguments_are_the_settings_with_their_defaults(kind):
    assert keyword_defaults(kind) == settings_of(kind)


@pytest.mark.parametrize("kind", ATTACKS)
def test_every_argument_has_a_name_but_those_of_an_inner_attack(kind):
    """An editor cannot complete what is behind `**settings`."""
    assert unnamed_arguments(kind) == (["inner_settings"] if kind in WRAPPERS else [])


@pytest.mark.parametrize("kind", ATTACKS)
def test_every_argument_is_documented_with_its_default(kind):
    inner = {"attack": "pgd_replacement"} if kind in WRAPPERS else {}
    assert documented_defaults(kind) == {**inner, **settings_of(kind)}


@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_wrapper_takes_its_inner_attack_and_the_settings_of_that(kind):
    parameters = inspect.signature(kind).parameters
    assert parameters["attack"].default == "pgd_replacement"
    assert parameters["inner_settings"].kind is inspect.Parameter.VAR_KEYWORD
    assert "**inner_settings\n    " in inspect.getdoc(kind)
    assert kind("dba", target=7).inner.settings.target == 7


@pytest.mark.parametrize("kind", ATTACKS)
def test_every_argument_reaches_the_settings(kind):
    for name, value in other_values(kind).items():
        assert dataclasses.asdict(kind(**{name: value}).settings) == {**settings_of(kind), name: value}


@pytest.mark.parametrize("kind", ATTACKS)
def test_a_value_outside_its_range_is_rejected_by_name(kind):
    for name, value in impossible_values(kind).items():
        with pytest.raises(ConfigError, match=f"{name}={value!r}"):
            kind(**{name: value})


@pytest.mark.parametrize(
    ("name", "given", "hint"),
    [
        ("pgd", {"radus": 1.0}, "did you mean radius?"),
        ("none", {"radius": 1.0}, "has no settings"),
        ("black_box", {"radius": 1.0}, "has no settings"),
        ("dba", {"zzz": 1}, "size, gap, shift, target, epoch_factor"),
        ("randomized(pgd)", {"radus": 1.0}, "did you mean radius?"),
        ("randomized", {"shar": "own"}, "did you mean share?"),
    ],
)
def test_an_unknown_argument_is_rejected_with_the_nearest_names(name, given, hint):
    with pytest.raises(ConfigError) as caught:
        attacks.create(name, **given)
    assert hint in str(caught.value)


@dataclass(frozen=True)
class EverySettings:
    every: int = number(2, 1, 100)


class Every(Attack):
    """A third party's attack with settings and without a constructor."""

    name = "every"
    summary = "has a setting"
    Settings = EverySettings


class EveryWrapper(Wrapper):
    """A third party's wrapper with settings and without a constructor."""

    name = "every_wrapper"
    summary = "wrapper with a setting"
    Settings = EverySettings


def test_attacks_of_third_parties_need_no_constructor():
    assert attacks.create(f"{__name__}:Every", every=3).settings.every == 3
    wrapper = attacks.create(f"{__name__}:EveryWrapper(pgd)", every=3, radius=0.5)
    assert (wrapper.settings.every, wrapper.inner.settings.radius) == (3, 0.5)
    with pytest.raises(ConfigError, match="did you mean every"):
        attacks.create(f"{__name__}:Every", evry=3)
