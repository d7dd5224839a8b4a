"""Wrong arguments of every command: one line that names what is wrong and what to do, exit status 2, no traceback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from g2uardfl.cli import app
from helpers.plugins import separate_modules as separate_modules

pytestmark = pytest.mark.usefixtures("separate_modules")

FILES = {
    "number.toml": "task = 5",
    "table.toml": "defense_settings = 5",
    "typo.toml": "round = 5",
    "bad.toml": "rounds = = 5",
    "list.toml": "alpha = [1, 2]",
    "syntax_error.py": "def f(:",
    "empty.py": "",
    "plain.py": "class Plain:\n    pass\n",
    "halfway.py": """
from g2uardfl.tasks.base import Task

class Halfway(Task):
    name = summary = "x"
    models = ("a",)
""",
}
"""Files in the folder in which the commands run."""

RUN = {
    "--task nope": "unknown task 'nope'",
    "--task dgits": "did you mean digits?",
    "--task digits:": "cannot import digits",
    "--task halfway.py:Halfway": "Halfway cannot be created",
    "--task ''": "unknown task ''",
    "--attack nope": "unknown attack 'nope'",
    "--attack blackbox": "did you mean black_box?",
    "--attack ./mine.py:SignFlip": "there is no file mine.py",
    "--attack ./syntax_error.py:SignFlip": "syntax_error.py raises SyntaxError",
    "--attack ./empty.py:SignFlip": "it has no subclass of g2uardfl.attacks.base.Attack",
    "--attack ./plain.py:Plain": "Plain must subclass g2uardfl.attacks.base.Attack",
    "--attack ./plain.py:Plan": "module plain has no Plan",
    "--attack ./plain.py": "module plain is not a class",
    "--attack randomized(nope)": "unknown attack 'nope'",
    "--attack pgd(black_box)": "cannot wrap black_box",
    "--attack randomized(pgd": "unknown attack 'randomized(pgd'",
    "--defense nope": "unknown defense 'nope'",
    "--defense multikrum": "did you mean multi_krum",
    "--defense krum:": "cannot import krum",
    "--model huge": "no model 'huge': choose from cnn",
    "--rounds many": "Write a whole number after --rounds",
    "--rounds 1.5": "Write a whole number after --rounds",
    "--lr fast": "Write a number after --lr",
    "--rounds 0": "rounds=0 is not allowed: it must be a whole number of at least 1",
    "--rounds -3": "rounds=-3",
    "--clients 0": "clients=0 is not allowed: it must be a whole number of at least 1",
    "--per-round 0": "per_round=0",
    "--clients 5 --per-round 6": "select fewer or add clients",
    "--lr 0": "lr=0.0 is not allowed: it must be a number above 0",
    "--lr nan": "lr=nan",
    "--batch-size 0": "batch_size=0",
    "--local-epochs 0": "local_epochs=0",
    "--local-steps 0": "local_steps=0",
    "--local-steps 3 --local-epochs 2": "exclude each other",
    "--pmr 1.5": "pmr=1.5 is not allowed: it must be a number from 0 to 1",
    "--pdr -0.1": "pdr=-0.1",
    "--alpha 0": "alpha=0.0 is not allowed: it must be a number above 0",
    "--partition even": "choose one of 'dirichlet', 'natural'",
    "--partition natural": "natural",
    "--churn 2": "churn=2.0",
    "--attack pgd --pmr 0.001": "gives no malicious client: raise pmr",
    "--attack-from 5 --rounds 2": "attack_from=5 is after the last round (rounds=2)",
    "--attack-from 0": "attack_from=0",
    "--rounds 9 --attack-from 5 --attack-until 4": "attack_until=4 is before attack_from=5",
    "--attack-until 0": "attack_until=0",
    "--defend-from 5 --rounds 2": "defend_from=5 is after the last round (rounds=2)",
    "--start-from nowhere.safetensors": "there is no model file nowhere.safetensors",
    "--seed -1": "seed=-1",
    "--device nowhere": "device='nowhere' is not available",
    "--engine fast": "choose one of 'auto', 'loop', 'workers', 'batched'",
    "--evaluate-every 0": "evaluate_every=0",
    "--checkpoint-every 0": "checkpoint_every=0",
    "--resume --out nowhere": "there is no run in nowhere to resume",
    "--out bad.toml/run": "choose another --out",
    "--config none.toml": "cannot read none.toml",
    "--config bad.toml": "bad.toml is not valid TOML",
    "--config typo.toml": "did you mean rounds or per_round?",
    "--config number.toml": "task=5 is not allowed: it must be a string",
    "--config table.toml": "defense_settings=5 is not allowed: it must be a table of settings",
    "--config list.toml": "alpha=[1, 2] is not allowed: it must be a number above 0",
    "--set x": "write key=value",
    "--set =3": "write key=value",
    "--set foo=1": "unknown setting 'foo': fedavg has no settings, and `g2uardfl run --help` names those of the run",
    "--set foo=1 --defense krum": "unknown setting 'foo' of krum: choose from malicious_clients",
    "--set round=3": "did you mean rounds?",
    "--set round=3 --defense g2uardfl": "did you mean rounds?",
    "--set profil=paper --defense g2uardfl": "did you mean profile?",
    "--set defence.x=1": "unknown prefix 'defence': did you mean defense?",
    "--set task.edg=full": "unknown setting 'edg' of digits: choose from wrong_labels",
    "--set task.edge=full": "unknown setting 'edge' of digits: choose from wrong_labels",
    "--set task.edge=ful --task cifar10": "edge='ful' is not allowed: choose one of 'paper', 'full'",
    "--set task.model=cnn": "model is a setting of the run",
    "--set task.name=x": "unknown setting 'name' of digits",
    "--set attack.name=x": "unknown setting 'name'",
    "--set attack.radius=-1 --attack pgd": "radius=-1",
    "--set attack.attack=pgd --attack randomized(pgd)": "leave out the setting attack='pgd'",
    "--set defense.seed=x --defense flame": "seed='x'",
    "--set defense.self=1 --defense g2uardfl": "cannot be created",
    "--set malicious_clients=x --defense krum": "malicious_clients='x'",
    "--set profile=best --defense g2uardfl": "unknown profile 'best': choose from default, paper",
    "--set score_percentile=3 --defense g2uardfl": "profile='paper'",
    "--set rounds=3 --rounds 2": "rounds is given twice, as an option and as --set rounds=3: leave one out",
    "--set task=5": "task=5 is not allowed: it must be a string",
    "--set task_settings=5": "it must be a table of settings",
    "--round 3": "--rounds",
    "--nonsense": "--nonsense",
    "--defense": "requires an argument",
}

COMMANDS = {
    "dmeo": "Did you mean 'demo'?",
    "demo --rounds 0": "0",
    "resume": "Missing argument 'RUN'",
    "resume nowhere": "nowhere is not a run directory",
    "report nowhere": "nowhere",
    "compare nowhere": "nowhere",
    "replay nowhere": "run the experiment again with --record",
    "replay bad.toml": "bad.toml",
    "list things": "cannot list 'things': choose from tasks, attacks, defenses",
    "list task": "did you mean tasks?",
    "show": "Missing argument 'NAME'",
    "show krumm": "there is no 'krumm': did you mean krum",
    "show nowhere.py:Rule": "there is no file nowhere.py",
    "show plain.py:Plain": "plain.py:Plain is not a task, attack, defence or profile",
    "check": "Missing argument 'CLASS'",
    "check plain.py:Plain": "plain.py:Plain is not a task, attack, defence or profile",
    "check syntax_error.py:Rule": "syntax_error.py raises SyntaxError",
    "check krum --set malicious=1": "did you mean malicious_clients?",
    "check halfway.py:Halfway": "Halfway cannot be created",
    "pretrain": "Missing option '--task'",
    "pretrain --task nope": "unknown task 'nope'",
    "pretrain --task digits --device nowhere": "nowhere",
    "sweep nowhere.toml": "nowhere.toml",
    "sweep --seed x": "x",
    "sweep --task nope": "unknown task 'nope'",
    "sweep --rounds 0": "rounds=0",
    "sweep --jobs 0": "jobs=0",
    "reproduce nothing": "nothing",
    "data verify mnst": "unknown data set 'mnst': did you mean mnist?",
    "data fetch nothing": "unknown data set 'nothing': choose from",
    "data import mnist nowhere": "nowhere",
    "data nothing": "nothing",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")


def require_one_line(result, message):
    assert result.status == 2, result.stdout
    assert len(result.stderr.strip().splitlines()) == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", RUN)
def test_a_wrong_argument_of_run_is_a_one_line_error(cli, folder, arguments):
    words = [word if word != "''" else "" for word in arguments.split()]
    quick = [one for one in ("--rounds=1", "--start=scratch") if one.split("=")[0] not in arguments]
    require_one_line(cli("run", *quick, *words), RUN[arguments])


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_wrong_argument_of_another_command_is_a_one_line_error(cli, folder, arguments):
    require_one_line(cli(*arguments.split()), COMMANDS[arguments])


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands and groups, with the words that call them."""
    group = group or typer.main.get_command(app)
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


@pytest.mark.parametrize("path", [path for path, _ in commands()], ids=" ".join)
def test_help_describes_the_command_and_each_of_its_arguments(cli, path):
    result = cli(*path, "--help")
    assert result.status == 0
    assert "Usage: " in result.stdout
    shown = " ".join(result.stdout.replace("│", " ").split())
    for parameter in dict(commands())[path].params:
        assert parameter.help, f"{parameter.name} has no help"
        assert parameter.help.split("(default")[0].split("[")[0].strip()[:60] in shown


@pytest.mark.parametrize("path", [[], ["data"]])
def test_a_group_without_a_command_prints_its_help(cli, path):
    result = cli(*path)
    assert (result.status, result.stderr) == (0, "")
    assert "Commands" in result.stdout
