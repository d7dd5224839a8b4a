"""What `g2uardfl.aggregators` exports, and when it imports torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from g2uardfl import aggregators
from g2uardfl.aggregators import base
from helpers.processes import PATIENCE

WITHOUT_TORCH = """
import sys
from g2uardfl import aggregators, attacks
assert "krum" in aggregators.names() and "pgd" in attacks.names() and "Round" in dir(aggregators)
assert "torch" not in sys.modules
aggregators.Round
assert "torch" in sys.modules
"""


@pytest.mark.parametrize(
    "name", ["Aggregator", "AggregationResult", "Event", "Outcome", "Round", "RoundReport", "Verdict"]
)
def test_the_interface_of_rules_is_exported(name):
    assert getattr(aggregators, name) is getattr(base, name)
    assert name in dir(aggregators)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Rounds'"):
        aggregators.Rounds  # noqa: B018


def test_names_are_listed_without_importing_torch():
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=True, timeout=10 * PATIENCE)
