"""The registry: built-in names, import paths of other classes, and errors for everything else."""

from __future__ import annotations

import decimal
import fractions
import pickle

import pytest

from g2uardfl import attacks
from g2uardfl.core.errors import ConfigError
from g2uardfl.core.registry import Registry, absolute
from helpers.plugins import separate_modules as separate_modules

pytestmark = pytest.mark.usefixtures("separate_modules")

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
            r"unknown number 'float': choose from fraction, decimal \(or write package.module:ClassName",
        ),
        ("fractoin", r"did you mean fraction\?"),
        ("no_such_module:Number", "cannot import no_such_module"),
        ("fractions:Part", r"module fractions has no Part: choose from Fraction"),
        ("fractions:Fractoin", r"did you mean Fraction\?"),
        ("math:pi", "pi is not a class"),
        ("pathlib:Path", "Path must subclass numbers.Number"),
    ],
)
def test_a_name_without_a_suitable_class_is_rejected_with_the_reason(name, message):
    with pytest.raises(ConfigError, match=message):
        NUMBERS.find(name)


OWN = "class Whole(int):\n    pass\n"
INTEGERS = Registry("integer", "builtins:int", {"bool": "builtins:bool"})


def write(path, text=OWN):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_a_class_is_found_by_the_path_of_its_file(tmp_path, monkeypatch):
    write(tmp_path / "own numbers/numbers_of_mine.py")
    monkeypatch.chdir(tmp_path)
    found = INTEGERS.find("own numbers/numbers_of_mine.py:Whole")
    assert (found.__name__, found.__mro__[1]) == ("Whole", int)
    assert pickle.loads(pickle.dumps(found(3))) == 3
    assert absolute("own numbers/numbers_of_mine.py:Whole") == f"{tmp_path}/own numbers/numbers_of_mine.py:Whole"


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (OWN, "none.py:Whole", "there is no file none.py"),
        (OWN, "here.py:Hole", "module here has no Hole: did you mean Whole?"),
        (OWN, "here.py", "module here is not a class: choose from Whole"),
        ("x = 3", "here.py:Whole", "it has no subclass of builtins.int"),
        ("def f(:", "here.py:Whole", "here.py raises SyntaxError"),
        ("1 / 0", "here.py:Whole", "here.py raises ZeroDivisionError: division by zero"),
        ("import nowhere", "here.py:Whole", "cannot import here.py (No module named 'nowhere')"),
    ],
)
def test_a_file_that_cannot_be_used_is_a_clear_error(text, name, message, tmp_path, monkeypatch):
    write(tmp_path / "here.py", text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        INTEGERS.find(name)
    assert f"integer '{name}': " in str(error.value)
    assert message in str(error.value)


def test_a_file_with_the_name_of_another_module_is_rejected(tmp_path):
    path = write(tmp_path / "decimal.py")
    with pytest.raises(ConfigError, match="another module is called decimal, too: rename"):
        INTEGERS.find(f"{path}:Whole")


@pytest.mark.parametrize("missing", ["name", "summary"])
def test_a_class_without_name_or_summary_is_rejected(tmp_path, missing):
    lines = [line for line in ('name = "mine"', 'summary = "does nothing"') if not line.startswith(missing)]
    text = "from g2uardfl.attacks.base import Attack\n\n\nclass Mine(Attack):\n    " + "".join(lines)
    with pytest.raises(ConfigError, match=f"Mine needs a class attribute `{missing}`"):
        attacks.find(f"{write(tmp_path / 'own_attack_without.py', text)}:Mine")
