"""docs/explanation/architecture.md: its profile works as written, and what it names exists."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import g2uardfl
from g2uardfl.core.errors import ConfigError
from g2uardfl.defense import profiles
from helpers.models import federation, odd_mlp

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
EVENTS = (ROOT / "docs/reference/log-messages.md").read_text(encoding="utf-8")


@pytest.fixture
def guard(tmp_path, monkeypatch):
    """The page's profile, in one file of its own, used as the page says."""
    code, use = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "my_profile.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    names: dict[str, object] = {"g2uardfl": g2uardfl}
    exec(use, names)
    yield names["guard"]
    sys.modules.pop("my_profile", None)


def test_the_pages_profile_flags_attackers_and_survives_a_restart(guard, tmp_path):
    model = odd_mlp()
    for seed in range(6):
        result = guard.aggregate(model, federation(model, 10, 3, seed=seed))
        model = result.weights
    assert {result.verdicts[client].decision for client in (7, 8, 9)} == {"malicious"}
    assert sum(result.verdicts[client].decision == "accepted" for client in range(7)) >= 6
    assert {result.verdicts[client].cluster for client in (7, 8, 9)} == {1}
    guard.save(tmp_path / "guard.state")
    loaded = g2uardfl.G2uardFL.load(tmp_path / "guard.state")
    assert loaded.configuration() == guard.configuration()
    sent = federation(model, 10, 3, seed=99)
    first, second = guard.aggregate(model, sent), loaded.aggregate(model, sent)
    assert first.verdicts == second.verdicts
    assert all(np.array_equal(first.weights[name], second.weights[name]) for name in model)


def test_the_pages_stage_flags_attackers_in_the_papers_profile_too(guard):
    other = g2uardfl.G2uardFL(profile="my_profile:SpectralPaper", min_similarity=0.0)
    model = odd_mlp()
    for seed in range(3):
        result = other.aggregate(model, federation(model, 10, 3, seed=seed))
        model = result.weights
        malicious = [client for client, verdict in result.verdicts.items() if verdict.decision == "malicious"]
        assert malicious == [7, 8, 9]
        assert sum(verdict.decision == "accepted" for verdict in result.verdicts.values()) >= 4


def test_the_pages_profile_has_its_own_settings_and_not_those_it_replaced(guard):
    assert guard.configuration()["min_similarity"] == 2.0
    with pytest.raises(ConfigError, match="false_alarm_rate is a setting of profile='default'"):
        g2uardfl.G2uardFL(profile="my_profile:Spectral", false_alarm_rate=0.01)


def test_every_file_that_the_page_names_exists():
    for name in re.findall(r"(?:aggregators|defense|core)/[\w/]*\.py", PAGE):
        assert (ROOT / "src" / "g2uardfl" / name).exists(), name
    for profile in profiles.names():
        folder = Path(sys.modules[profiles.find(profile).__module__].__file__).parent
        for part in ("observation", *profiles.PARTS[1:]):
            assert (folder / f"{part}.py").exists()


def test_every_event_of_the_guard_is_in_the_table():
    files = (ROOT / "src" / "g2uardfl").rglob("*.py")
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    kinds = set(re.findall(r'Event\(\s*"(\w+)"', source))
    table = EVENTS.partition("| event | meaning |\n")[2].partition("\n\n")[0]
    assert kinds == set(re.findall(r"^\| `(\w+)` \| ", table, re.MULTILINE))
