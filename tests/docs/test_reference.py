"""The reference, as `g2uardfl show` prints it, names every setting with default and range."""

from __future__ import annotations

import dataclasses

import pytest

from g2uardfl import aggregators, attacks, tasks
from g2uardfl.defense import profiles
from g2uardfl.report.reference import KINDS, class_of, markdown, page, reference

NAMES = [name for registry, _ in KINDS.values() for name in registry.names()]


@pytest.mark.parametrize("kind", ["tasks", "attacks", "defenses"])
def test_the_reference_of_a_kind_describes_each_of_its_names_once(kind):
    headings = [line.strip("# `") for line in page(kind).splitlines() if line.startswith("## ")]
    assert headings == KINDS[kind][0].names()


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_has_a_meaning(name):
    found = reference(class_of(name))
    for settings in found.settings.values():
        for setting in settings:
            assert setting.meaning, f"the docstring of {name} does not say what {setting.name} means"


@pytest.mark.parametrize("name", [*tasks.names(), *attacks.names(), *aggregators.names()])
def test_everything_but_no_attack_has_a_summary_and_a_source(name):
    found = reference(class_of(name))
    assert found.summary
    assert found.source or name == "none"


def test_the_guard_is_described_with_the_settings_of_each_profile():
    found = reference(aggregators.find("g2uardfl")).settings
    assert list(found) == ["", *(f"profile={name}" for name in profiles.names())]
    for name in profiles.names():
        defaults = profiles.find(name).defaults()
        assert {one.name for one in found[f"profile={name}"]} == defaults.keys()


def test_a_setting_is_shown_with_default_range_and_meaning():
    row = (
        "| `malicious_clients` | 2 | whole number from 0 to 1e+06 | f: how many clients of a round may be malicious. |"
    )
    assert row in markdown(reference(aggregators.find("krum")))


def test_settings_of_a_base_class_have_their_meaning_from_it():
    settings = {one.name: one for one in reference(tasks.find("sentiment140")).settings[""]}
    assert settings["words"].allowed == "whole number of at least 2, or None"
    assert settings["minimum_count"].default == "2"


@dataclasses.dataclass(frozen=True)
class Undeclared:
    anything: int = 3


class Own(aggregators.find("fedavg")):
    name = "own"
    summary = "has no docstring of its own"
    Settings = Undeclared


def test_a_class_without_docstring_is_described_by_its_settings():
    text = markdown(reference(Own))
    assert "| `anything` | 3 | any value |  |" in text
    assert "Source" not in text
