"""Settings: validation of values and suggestions for unknown names."""

from __future__ import annotations

import dataclasses
import math

import pytest

from g2uardfl.core.errors import ConfigError
from g2uardfl.core.settings import build, choice, number, seed, switch, table, text, unknown_setting


@dataclasses.dataclass(frozen=True)
class Example:
    rate: float = number(0.5, 0, 1, above=True)
    limit: float = number(1.0, 0, math.inf)
    window: int = number(10, 1, 100)
    mode: str = choice("near", "near", "far")
    enabled: bool = switch(True)


@dataclasses.dataclass(frozen=True)
class Random:
    seed: int | None = seed()


@pytest.mark.parametrize(
    ("given", "expected"), [({}, None), ({"seed": None}, None), ({"seed": 0}, 0), ({"seed": 7.0}, 7)]
)
def test_a_seed_is_a_whole_number_or_none(given, expected):
    found = build(Random, given).seed
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("value", [-1, 2**63, 0.5, "1", True])
def test_any_other_seed_is_rejected(value):
    with pytest.raises(ConfigError, match="it must be a whole number from 0 to"):
        build(Random, {"seed": value})


@dataclasses.dataclass(frozen=True)
class Written:
    name: str = text("a")
    further: dict = table()


@pytest.mark.parametrize(
    ("value", "message"),
    [({"name": 5}, "name=5 is not allowed: it must be a string"), ({"further": 5}, "it must be a table of settings")],
)
def test_texts_and_tables_are_checked(value, message):
    assert build(Written, {"name": "b", "further": {"x": 1}}).further == {"x": 1}
    with pytest.raises(ConfigError, match=message):
        build(Written, value)


def test_settings_have_defaults():
    assert dataclasses.asdict(build(Example, {})) == {
        "rate": 0.5,
        "limit": 1.0,
        "window": 10,
        "mode": "near",
        "enabled": True,
    }


@pytest.mark.parametrize("value", [{"rate": 1}, {"window": 1}, {"window": 100}, {"limit": 0}, {"limit": math.inf}])
def test_the_bounds_of_a_number_are_valid(value):
    assert dataclasses.asdict(build(Example, value)).items() >= value.items()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"rate": 0}, "rate=0 is not allowed: it must be a number above 0 and at most 1"),
        ({"rate": math.nan}, "rate=nan is not allowed: it must be a number above 0 and at most 1"),
        ({"rate": "0.5"}, "rate='0.5' is not allowed: it must be a number above 0 and at most 1"),
        ({"limit": -1}, "limit=-1 is not allowed: it must be a number of at least 0"),
        ({"window": 2.5}, "window=2.5 is not allowed: it must be a whole number from 1 to 100"),
        ({"window": True}, "window=True is not allowed: it must be a whole number from 1 to 100"),
        ({"mode": "nearest"}, "mode='nearest' is not allowed: choose one of 'near', 'far'"),
        ({"enabled": 1}, "enabled=1 is not allowed: choose True or False"),
    ],
)
def test_an_invalid_value_is_rejected_with_the_valid_range(value, message):
    with pytest.raises(ConfigError) as error:
        build(Example, value)
    assert str(error.value) == message


def test_an_integer_setting_accepts_a_float_without_a_fraction():
    window = build(Example, {"window": 20.0}).window
    assert window == 20
    assert isinstance(window, int)


@pytest.mark.parametrize(
    ("name", "known", "message"),
    [
        ("windw", ["rate", "window"], "unknown setting 'windw': did you mean window?"),
        ("zzz", ["rate", "window"], "unknown setting 'zzz': choose from rate, window"),
        ("zzz", [], "unknown setting 'zzz': it has no settings"),
    ],
)
def test_the_error_for_an_unknown_setting_names_the_known_ones(name, known, message):
    assert str(unknown_setting(name, known)) == message
