"""Flower is loaded only when it is used, and where it is missing the error says how to install it."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT_FLOWER = "import sys; sys.modules['flwr'] = None\n"


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)


def test_neither_the_package_nor_federation_nor_the_audit_imports_flower():
    code = """
import sys, g2uardfl, g2uardfl.flower
from g2uardfl.flower import Audit
from g2uardfl.federation import audit, barrier, log, state
assert not any(name.split(".")[0] in ("flwr", "ray") for name in sys.modules)
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["G2uardFLStrategy", "AggregatorStrategy", "array_record", "mods"])
def test_without_flower_the_error_says_what_to_install(name):
    done = python(WITHOUT_FLOWER + f"from g2uardfl.flower import {name}")
    assert done.returncode == 1
    assert "pip install 'g2uardfl[flower]'" in done.stderr.splitlines()[-1]


def test_an_unknown_name_is_an_attribute_error():
    done = python("import g2uardfl.flower; g2uardfl.flower.nonsense")
    assert "AttributeError: module 'g2uardfl.flower' has no attribute 'nonsense'" in done.stderr
