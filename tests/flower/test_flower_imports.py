"""Flower is loaded only when it is used, and where it is missing the error says how to install it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import g2uardfl.flower


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


def test_without_flower_the_error_says_what_to_install():
    code = """
import sys
sys.modules["flwr"] = None
import g2uardfl.flower
for name in ("G2uardFLStrategy", "AggregatorStrategy", "array_record", "mods"):
    try:
        getattr(g2uardfl.flower, name)
    except ImportError as error:
        print(name, error)
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
    names = [line.split()[0] for line in done.stdout.splitlines() if "pip install 'g2uardfl[flower]'" in line]
    assert names == ["G2uardFLStrategy", "AggregatorStrategy", "array_record", "mods"]


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'g2uardfl.flower' has no attribute 'nonsense'"):
        g2uardfl.flower.nonsense  # noqa: B018
