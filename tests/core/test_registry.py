"""The registry: built-in names, import paths of other classes, and errors for everything else."""

from __future__ import annotations

import decimal
import fractions

import pytest

from g2uardfl.core.errors import ConfigError
from g2uardfl.core.registry import Registry

NUMBERS = Registry("number", "numbers:Number", {"fraction": "fractions:Fraction", "decimal": "decimal:Decimal"})


def test_names_are_the_built_in_ones_in_order():
    assert NUMBERS.names() == ["fraction", "decimal"]


def test_a_class_is_found_by_name_and_by_import_path():
    assert NUMBERS.find("fraction") is fractions.Fraction
    assert NUMBERS.find("decimal:Decimal") is decimal.Decimal


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "float",
            "unknown number 'float': choose one of fraction, decimal, or pass your own as package.module:ClassName",
        ),
        ("no_such_module:Number", "cannot import no_such_module"),
        ("fractions:Part", "module fractions has no Part"),
        ("math:pi", "pi is not a class"),
        ("pathlib:Path", "Path must subclass numbers.Number"),
    ],
)
def test_a_name_without_a_suitable_class_is_rejected_with_the_reason(name, message):
    with pytest.raises(ConfigError, match=message):
        NUMBERS.find(name)
