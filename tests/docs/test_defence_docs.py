"""The documentation's page on defences shows code that runs, and names every rule and every setting."""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from pathlib import Path

import numpy as np

from g2uardfl import aggregators

PAGE = (Path(__file__).parents[2] / "docs" / "defences.md").read_text(encoding="utf-8")


def test_every_rule_and_setting_is_named():
    for name in aggregators.names():
        assert f"`{name}`" in PAGE, name
        if name != "g2uardfl":
            for item in dataclasses.fields(aggregators.find(name).Settings):
                assert f"`{item.name}`" in PAGE, (name, item.name)


def test_the_page_s_own_rule_plugs_in_by_its_address(tmp_path, monkeypatch):
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "shortest_rule.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    try:
        rule = aggregators.create("shortest_rule:Shortest")
    finally:
        sys.modules.pop("shortest_rule", None)
    clients = {i: {"w": np.full(2, value)} for i, value in enumerate((1.0, 3.0, 90.0))}
    result = rule.aggregate({"w": np.zeros(2)}, clients)
    np.testing.assert_allclose(result.weights["w"], 2.0)
    assert result.verdicts[2].decision == "held_out"
