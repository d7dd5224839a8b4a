"""The tutorial on attacks names every method, and its attack runs."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from g2uardfl.attacks.base import Attack
from helpers.attacking import simulate

PAGE = (Path(__file__).parents[2] / "docs/tutorials/own-attack.md").read_text(encoding="utf-8")
METHODS = (
    *("enlist", "backdoor_test", "training_data", "observe", "attackers"),
    *("recipe", "jobs", "submissions", "state", "restore"),
)


def test_the_pages_own_attack_plants_its_backdoor(tmp_path, monkeypatch):
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "copycats.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    try:
        simulation = simulate("copycats:Copycats", rounds=12)
    finally:
        sys.modules.pop("copycats", None)
    assert simulation.start_scores["asr"] < 0.2
    assert max(record["asr"] for record in simulation.records) > simulation.start_scores["asr"] + 0.3


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_named(method):
    assert hasattr(Attack, method)
    assert f"`{method}(" in PAGE
