"""The documentation's page on attacks shows code that runs, and names every attack and setting."""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from pathlib import Path

import pytest

from g2uardfl import attacks
from g2uardfl.attacks.base import Attack
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.run import Simulation

PAGE = (Path(__file__).parents[2] / "docs" / "attacks.md").read_text(encoding="utf-8")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs an attack of the page in a short federation."""
    names = []

    def run_attack(block: int, module: str, attack: str, rounds: int) -> Simulation:
        code = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)[block]
        (tmp_path / f"{module}.py").write_text(code, encoding="utf-8")
        names.append(module)
        importlib.invalidate_caches()
        config = RunConfig(
            task="digits", attack=f"{module}:{attack}", rounds=rounds, clients=20, per_round=8, pmr=0.4, engine="loop"
        )
        simulation = Simulation(config)
        simulation.run()
        return simulation

    monkeypatch.syspath_prepend(tmp_path)
    yield run_attack
    for name in names:
        sys.modules.pop(name, None)


def test_the_attackers_in_unison_plant_their_backdoor(run):
    simulation = run(0, "copycats", "Copycats", rounds=12)
    assert simulation.start_scores["asr"] < 0.2
    assert max(record["asr"] for record in simulation.records) > simulation.start_scores["asr"] + 0.3


def test_the_page_names_every_attack_and_every_method():
    for name in attacks.names():
        assert name == "none" or f"| `{name}" in PAGE, name
    for name in ("enlist", "backdoor_test", "training_data", "observe", "attackers", "recipe", "jobs", "submissions"):
        assert hasattr(Attack, name)
        assert f"| `{name}(" in PAGE, name
    for name in ("pgd", "constrain_and_scale", "dba", "dynamic_pdr", "model_obfuscation", "randomized"):
        for item in dataclasses.fields(attacks.find(name).Settings):
            assert f"`{item.name}`" in PAGE, (name, item.name)
