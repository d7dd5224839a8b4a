"""Who does not use Flower never loads it, and who lacks it is told how to get it."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT_FLOWER = "import sys; sys.modules['flwr'] = None\n"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_neither_the_package_nor_its_flower_part_imports_flower_by_itself():
    code = """
import sys, g2uardfl, g2uardfl.flower
from g2uardfl.flower import Audit
assert not any(name.split(".")[0] in ("flwr", "ray") for name in sys.modules)
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["G2uardFLStrategy", "AggregatorStrategy", "array_record", "mods"])
def test_without_flower_the_error_says_what_to_install(name):
    done = run(WITHOUT_FLOWER + f"from g2uardfl.flower import {name}")
    assert done.returncode == 1
    assert "pip install 'g2uardfl[flower]'" in done.stderr.splitlines()[-1]


def test_a_name_that_does_not_exist_is_no_matter_of_installing():
    done = run("import g2uardfl.flower; g2uardfl.flower.nonsense")
    assert "AttributeError: module 'g2uardfl.flower' has no attribute 'nonsense'" in done.stderr
