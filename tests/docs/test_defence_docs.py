"""The rule of the tutorial on defences runs."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from g2uardfl import aggregators
from g2uardfl.core.errors import ConfigError
from helpers.rounds import decisions

PAGE = (Path(__file__).parents[2] / "docs/tutorials/own-defence.md").read_text(encoding="utf-8")


@pytest.fixture
def own_rule(tmp_path, monkeypatch):
    """The address of the page's rule, as a module of its own."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "smallest_rule.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield "smallest_rule:Smallest"
    sys.modules.pop("smallest_rule", None)


def test_the_pages_own_rule_plugs_in_by_its_address(own_rule):
    model = {"w": np.zeros(2)}
    clients = {i: {"w": np.full(2, value)} for i, value in enumerate((1.0, 3.0, 90.0))}
    result = aggregators.create(own_rule).aggregate(model, clients)
    np.testing.assert_allclose(result.weights["w"], 2.0)
    assert decisions(result) == "aah"
    all_accepted = aggregators.create(own_rule, share=1.0).aggregate(model, clients)
    assert decisions(all_accepted) == "aaa"


def test_the_pages_own_rule_has_checked_settings_and_events(own_rule):
    with pytest.raises(ConfigError, match="share=2"):
        aggregators.create(own_rule, share=2)
    with pytest.raises(ConfigError, match="did you mean share"):
        aggregators.create(own_rule, shar=0.5)
    model = {"w": np.zeros(2)}
    result = aggregators.create(own_rule).aggregate(model, {0: model, 1: model})
    assert [event.kind for event in result.report.events] == ["no_change"]
    assert result.note == "No update changes the model."
