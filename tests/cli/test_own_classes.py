"""`show` and `check`, and classes in files of the current folder wherever a name is expected."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from g2uardfl import aggregators, attacks, tasks
from g2uardfl.simulation.config import RunConfig
from helpers.plugins import separate_modules as separate_modules
from helpers.runs import timeless_rounds

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.usefixtures("separate_modules")

RULE = '''
from dataclasses import dataclass

from g2uardfl.aggregators import Aggregator, Outcome, Verdict
from g2uardfl.core.settings import number


@dataclass(frozen=True)
class Settings:
    factor: float = number(0.5, 0, 1)


class Halving(Aggregator):
    """Moves by a part of the mean.

    Parameters
    ----------
    factor
        The part (default: 0.5).

    Notes
    -----
    Assumes nothing.
    """

    name = "halving"
    summary = "a part of the mean"
    Settings = Settings

    def combine(self, round_):
        shares = round_.num_examples / round_.num_examples.sum()
        verdicts = {client: Verdict("accepted", "As always.") for client in round_.clients}
        return Outcome(self.settings.factor * round_.weighted_sum(shares), shares, verdicts)


class Careless(Halving):
    """Forgets all clients but the first."""

    name = "careless"

    def combine(self, round_):
        outcome = super().combine(round_)
        return Outcome(outcome.step, outcome.shares, {round_.clients[0]: outcome.verdicts[round_.clients[0]]})
'''
ATTACK = '''
from g2uardfl.attacks.black_box import BlackBox


class SignFlip(BlackBox):
    """Sends the opposite of what was trained."""

    name = "sign_flip"
    summary = "the opposite of an update"

    def submissions(self, turn, trained):
        start = turn.global_weights
        return {
            client: {name: 2 * start[name] - value for name, value in weights.items()}
            for client, weights in trained.items()
        }
'''
TASK = '''
from g2uardfl.tasks.digits import Digits


class Few(Digits):
    """A part of the digits."""

    name = "few"
    summary = "a part of the digits"

    def load_train(self):
        return super().load_train().take(slice(0, 200))
'''


@pytest.fixture
def files(tmp_path):
    """Plug-ins in the current folder."""
    for name, text in {"halving": RULE, "flip": ATTACK, "few": TASK}.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("name", [*tasks.names(), *attacks.names(), *aggregators.names(), "paper", "attacks"])
def test_show_describes_everything_that_has_a_name(cli, name):
    result = cli("show", name)
    assert (result.status, result.stderr) == (0, "")
    assert result.stdout.strip()


def test_show_prints_settings_ranges_defaults_assumptions_and_source(cli):
    shown = " ".join(cli("show", "krum").stdout.split())
    for text in ("malicious_clients", "whole number from 0 to", "Assumptions and limits.", "Source: Blanchard et al."):
        assert text in shown


def test_show_describes_a_class_in_a_file(cli, files):
    shown = " ".join(cli("show", "./halving.py:Halving").stdout.split())
    assert "Moves by a part of the mean." in shown
    assert "factor 0.5 number from 0 to 1 The part." in shown
    assert "Assumes nothing." in shown


def test_check_passes_for_classes_that_keep_the_contract(cli, files):
    for name, checks in {"halving.py:Halving": 15, "few.py:Few": 7}.items():
        result = cli("check", name)
        assert result.status == 0, result.stdout
        assert f"{name}: {checks} of {checks} checks passed" in result.stdout


def test_check_names_what_is_broken(cli, files):
    result = cli("check", "halving.py:Careless")
    assert result.status == 1
    assert "FAIL  Every client has a verdict with a reason" in result.stdout
    assert "careless gives no verdict on client 1: combine() must return one for each" in result.stdout


def test_check_takes_settings(cli, files):
    assert "factor=2 is not allowed" in cli("check", "halving.py:Halving", "--set", "factor=2").stderr


NAMES = ("--task", "few.py:Few", "--attack", "randomized(./flip.py:SignFlip)", "--defense", "./halving.py:Halving")
FEW = ("--rounds", "2", "--clients", "8", "--per-round", "4", "--start", "scratch")


def test_classes_in_files_are_used_in_a_run_and_repeated_from_another_folder(cli, files, tmp_path, monkeypatch):
    result = cli("run", *NAMES, *FEW, "--set", "factor=0.25")
    assert result.status == 0, result.stderr
    run = tmp_path / "runs" / "Few-randomized_SignFlip-Halving-0"
    config = RunConfig.from_file(run / "config.toml")
    assert config.attack == f"randomized({tmp_path}/flip.py:SignFlip)"
    assert config.defense_settings == {"factor": 0.25}
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = cli("run", "--config", run / "config.toml", "--out", "again")
    assert result.status == 0, result.stderr
    assert timeless_rounds(tmp_path / "elsewhere" / "again") == timeless_rounds(run)


@pytest.mark.slow
def test_worker_processes_find_classes_in_files(cli, files, tmp_path):
    for engine in ("loop", "workers"):
        result = cli("run", *NAMES, *FEW, "--engine", engine, "--out", engine)
        assert result.status == 0, result.stderr
    assert timeless_rounds(tmp_path / "workers") == timeless_rounds(tmp_path / "loop")


@pytest.mark.parametrize(
    ("page", "name"),
    [("own-defence", "Smallest"), ("own-attack", "Copycats"), ("own-task", "Vibration")],
    ids=lambda x: x,
)
def test_the_class_on_each_page_of_the_documentation_keeps_the_contract(cli, tmp_path, page, name):
    text = (DOCS / "tutorials" / f"{page}.md").read_text(encoding="utf-8")
    code = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)[0]
    (tmp_path / f"documented_{name.lower()}.py").write_text(code, encoding="utf-8")
    result = cli("check", f"documented_{name.lower()}.py:{name}")
    assert result.status == 0, result.stdout
