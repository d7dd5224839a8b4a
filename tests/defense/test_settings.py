"""Settings belong to profiles: each has one meaning, one description, and is rejected where it does not belong."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import re
from typing import Any

import pytest

from g2uardfl import G2uardFL, aggregators
from g2uardfl.core.errors import ConfigError
from g2uardfl.defense.g2uardfl import GuardSettings
from g2uardfl.defense.profiles import find, names

PROFILES = names()
ALWAYS = ["profile", "seed"]
FIELDS = {
    (profile, item.name): item
    for profile in PROFILES
    for part in find(profile).parts().values()
    for item in dataclasses.fields(part.Settings)
}
"""(profile, setting) -> the field with its default and what is allowed."""
OWNERS = {name: [profile for profile in PROFILES if (profile, name) in FIELDS] for _, name in FIELDS}
MISPLACED = [(profile, name) for name, owners in OWNERS.items() for profile in PROFILES if profile not in owners]
each_setting = pytest.mark.parametrize(("profile", "name"), FIELDS, ids=lambda value: value)


def another(item: dataclasses.Field) -> Any:
    """An allowed value that is not the default."""
    rules = item.metadata
    if "options" in rules:
        return next(option for option in rules["options"] if option != item.default)
    if "switch" in rules:
        return not item.default
    low, high = rules["low"], min(rules["high"], 10 * abs(item.default) + 10)
    value = (low + high) / 2 if (low + high) / 2 != item.default else (low + 3 * high) / 4
    return round(value) if isinstance(item.default, int) else value


def impossible(item: dataclasses.Field) -> list[Any]:
    """Values that are not allowed."""
    rules = item.metadata
    if "options" in rules:
        return ["nonsense", None, 1]
    if "switch" in rules:
        return ["yes", 1, 0.5]
    beyond = [rules["low"]] if rules["above"] else [rules["low"] - 1]
    beyond += [] if math.isinf(rules["high"]) else [rules["high"] + 1]
    return [*beyond, math.nan, "1", True, *([1.5 + rules["low"]] if isinstance(item.default, int) else [])]


def documented() -> dict[str, tuple[str, Any]]:
    """Setting -> the profile and the default that the class's docstring names."""
    text = inspect.getdoc(G2uardFL)
    section = text[text.index("Parameters\n") : text.index("Attributes\n")]
    found = {}
    for name, description in re.findall(r"^(\w+)\n((?:    .*\n)+)", section, flags=re.MULTILINE):
        sentence = " ".join(description.split())
        profile = re.match(r"\(`(\w+)` profile\) ", sentence)
        default = re.search(r"\(default: (.+)\)\.$", sentence)
        assert default, f"{name} has no default in the docstring"
        found[name] = profile and profile[1], ast.literal_eval(default[1])
    return found


def test_the_constructor_has_exactly_the_settings_of_the_built_in_profiles():
    parameters = inspect.signature(G2uardFL.__init__).parameters
    assert list(parameters)[:3] == ["self", *ALWAYS]
    assert list(parameters)[-1] == "own_settings"
    settings = list(parameters)[3:-1]
    assert sorted(settings) == sorted(OWNERS)
    assert len(settings) == len(set(settings))
    assert parameters["profile"].default == "default"
    for name in settings:
        assert parameters[name].kind is parameters[name].KEYWORD_ONLY
        assert parameters[name].default is None


def test_the_docstring_describes_exactly_the_parameters_of_the_constructor():
    assert list(documented()) == list(inspect.signature(G2uardFL.__init__).parameters)[1:-1]


@each_setting
def test_the_docstring_names_the_right_profile_and_default(profile, name):
    owner, default = documented()[name]
    assert owner == profile
    assert default == FIELDS[profile, name].default
    assert type(default) is type(FIELDS[profile, name].default)


def test_the_profiles_share_no_setting():
    assert [name for name, owners in OWNERS.items() if len(owners) > 1] == []


@pytest.mark.parametrize("profile", PROFILES)
def test_no_two_parts_of_a_profile_have_a_setting_of_the_same_name(profile):
    parts = find(profile).parts().values()
    settings = [item.name for part in parts for item in dataclasses.fields(part.Settings)]
    assert len(settings) == len(set(settings))
    assert not set(settings) & set(ALWAYS)


@each_setting
def test_a_setting_reaches_the_stage_it_belongs_to(profile, name):
    value = another(FIELDS[profile, name])
    guard = G2uardFL(profile, **{name: value})
    assert guard.configuration() == {**G2uardFL(profile).configuration(), name: value}
    stages = [guard.observer, guard.construction, guard.clustering, guard.filtering, guard.elimination]
    assert [getattr(stage.settings, name) for stage in stages if hasattr(stage.settings, name)] == [value]


@each_setting
def test_a_value_that_is_not_allowed_is_rejected_with_its_name(profile, name):
    for value in impossible(FIELDS[profile, name]):
        if value is not None:
            with pytest.raises(ConfigError, match=f"^{name}="):
                G2uardFL(profile, **{name: value})


@each_setting
def test_a_misspelt_setting_is_rejected_with_the_right_name(profile, name):
    with pytest.raises(ConfigError, match=rf"unknown setting '{name}{name[-1]}': did you mean .*\b{name}\b"):
        G2uardFL(profile, **{name + name[-1]: 1})


@pytest.mark.parametrize(("profile", "name"), MISPLACED)
@pytest.mark.parametrize("make", [G2uardFL, lambda **given: aggregators.create("g2uardfl", **given)])
def test_a_setting_of_another_profile_is_rejected_with_the_name_of_that_profile(profile, name, make):
    [owner] = OWNERS[name]
    with pytest.raises(ConfigError) as caught:
        make(profile=profile, **{name: FIELDS[owner, name].default})
    assert str(caught.value).startswith(f"{name} is a setting of profile={owner!r}, not of profile={profile!r}")


@pytest.mark.parametrize("profile", PROFILES)
def test_the_representation_shows_profile_and_all_settings_and_evaluates_to_an_equal_guard(profile):
    changed = {name: another(item) for (owner, name), item in FIELDS.items() if owner == profile}
    for settings in ({}, changed):
        guard = G2uardFL(profile, seed=7, **settings)
        text = repr(guard)
        assert text.startswith(f"G2uardFL(profile={profile!r}, seed=7, ")
        assert all(f"{name}=" in text for name in changed)
        again = eval(text, {"G2uardFL": G2uardFL})
        assert again.configuration() == guard.configuration()
        assert repr(again) == text


@pytest.mark.parametrize("seed", [-1, 2**63, 0.5, "1", True])
def test_a_seed_that_is_not_a_whole_number_is_rejected(seed):
    with pytest.raises(ConfigError, match=r"^seed="):
        G2uardFL(seed=seed)


def test_none_selects_the_default_of_any_profile():
    for profile in PROFILES:
        assert G2uardFL(profile, **dict.fromkeys(OWNERS)).configuration() == G2uardFL(profile).configuration()


def test_the_settings_that_other_functions_pass_on_are_those_of_the_guard():
    keywords = list(inspect.signature(G2uardFL.__init__).parameters.values())[3:-1]
    passed_on = {name: annotation.__forward_arg__ for name, annotation in GuardSettings.__annotations__.items()}
    assert {one.name: one.annotation for one in keywords} == {name: f"{of} | None" for name, of in passed_on.items()}
