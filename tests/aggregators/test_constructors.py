"""The constructors of all rules but the guard: explicit keyword arguments, documented, and checked."""

from __future__ import annotations

import pytest

from g2uardfl import aggregators
from g2uardfl.aggregators import Aggregator
from g2uardfl.aggregators.krum import Krum
from g2uardfl.core.errors import ConfigError
from helpers.constructors import (
    documented_defaults,
    impossible_values,
    keyword_defaults,
    other_values,
    settings_of,
    unnamed_arguments,
)

RULES = [aggregators.find(name) for name in aggregators.names() if name != "g2uardfl"]


@pytest.mark.parametrize("rule", RULES)
def test_the_arguments_are_the_settings_with_their_defaults(rule):
    assert keyword_defaults(rule) == settings_of(rule)


@pytest.mark.parametrize("rule", RULES)
def test_every_argument_has_a_name(rule):
    """An editor cannot complete what is behind `**settings`."""
    assert unnamed_arguments(rule) == []


@pytest.mark.parametrize("rule", RULES)
def test_every_argument_is_documented_with_its_default(rule):
    assert documented_defaults(rule) == settings_of(rule)


@pytest.mark.parametrize("rule", RULES)
def test_every_argument_reaches_the_settings(rule):
    for name, value in other_values(rule).items():
        assert rule(**{name: value}).configuration() == {**settings_of(rule), name: value}


@pytest.mark.parametrize("rule", RULES)
def test_a_value_outside_its_range_is_rejected_by_name(rule):
    for name, value in impossible_values(rule).items():
        with pytest.raises(ConfigError, match=f"{name}={value!r}"):
            rule(**{name: value})


@pytest.mark.parametrize(
    ("name", "given", "hint"),
    [
        ("krum", {"malicius_clients": 1}, "did you mean malicious_clients?"),
        ("rfa", {"zzz": 1}, "smoothing, iterations, tolerance"),
        ("fedavg", {"weight": 1}, "has no settings"),
        ("flame", {"seed": 1, "noise_facto": 0.1}, "did you mean noise_factor?"),
    ],
)
def test_an_unknown_argument_is_rejected_with_the_nearest_names(name, given, hint):
    with pytest.raises(ConfigError) as caught:
        aggregators.create(name, **given)
    assert hint in str(caught.value)


class TakesAFile(Aggregator):
    """A third party's rule with a constructor of its own."""

    name = "takes_a_file"
    summary = "reads a file"

    def __init__(self, path: str, *, strict: bool = False) -> None:
        super().__init__()
        self.path, self.strict = path, strict

    def combine(self, round_):
        raise NotImplementedError


class TakesAnything(Krum):
    """A third party's rule that passes all its arguments on."""

    name = "takes_anything"

    def __init__(self, label="", **params):
        super().__init__(**params)
        self.label = label


def test_constructors_of_third_parties_are_respected():
    made = aggregators.create(f"{__name__}:TakesAFile", path="x", strict=True)
    assert (made.path, made.strict) == ("x", True)
    with pytest.raises(ConfigError, match="unknown setting 'pth' of takes_a_file: did you mean path"):
        aggregators.create(f"{__name__}:TakesAFile", pth="x")
    made = aggregators.create(f"{__name__}:TakesAnything", label="a", malicious_clients=1)
    assert (made.label, made.settings.malicious_clients) == ("a", 1)


PAPER = {
    "krum": {"malicious_clients": 2},
    "multi_krum": {"malicious_clients": 2},
    "rfa": {"smoothing": 1e-5, "iterations": 500, "tolerance": 0.1},
    "ndc": {"threshold": 2.0},
    "weak_dp": {"noise": 0.025},
    "rlr": {"threshold": 3, "learning_rate": 1.0},
    "flame": {"noise_factor": 0.001},
    "foolsgold": {"history": False, "confidence": 1.0},
}
"""The settings of the baselines in the appendix of the G²uardFL paper, by which its tables are reproduced."""


@pytest.mark.parametrize("name", PAPER)
def test_the_defaults_are_those_of_the_papers_appendix(name):
    assert PAPER[name].items() <= aggregators.create(name).configuration().items()
