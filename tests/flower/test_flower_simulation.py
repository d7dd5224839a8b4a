"""`examples/flower-mnist` as in its README: `flwr run`, a simulation in Flower's own engine (Ray)."""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from helpers.processes import PATIENCE, running

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")
pytest.importorskip("ray", reason="needs Flower's simulation engine: pip install 'flwr[simulation]'")

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "flower-deployment"))

from flwr.app import Context, Message, RecordDict

from federation import free_port, wait_for
from g2uardfl.flower import Audit
from helpers.flower import LocalGrid

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-mnist"
README = (EXAMPLE / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^flwr run .*$", README, flags=re.M)
"""Under attack, and without."""


@pytest.fixture(scope="module")
def flower(tmp_path_factory):
    """The environment of `flwr` commands with a SuperLink of their own, which ends with the tests."""
    folder, port = tmp_path_factory.mktemp("flwr"), free_port()
    (folder / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    environment = {
        **os.environ,
        "FLWR_HOME": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]

    def is_ready() -> bool:
        with suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return True
        return False

    with (
        (folder / "superlink.log").open("w") as log,
        running(command, env=environment, stdout=log, stderr=log),
    ):
        wait_for(is_ready, "the SuperLink is ready")
        yield environment


def table(text: str) -> dict[str, tuple[float, float]]:
    """ACC and ASR of each rule, as the example prints them."""
    rows = re.findall(r"^(fedavg|g2uardfl) +([\d.]+) +([\d.]+)$", text, flags=re.M)
    return {rule: (float(acc), float(asr)) for rule, acc, asr in rows}


def outside(found: dict[str, tuple[float, float]], attack: str) -> list[str]:
    """The figures that are not within the ranges of the README's table."""
    ranges = re.findall(rf"^\| {attack} \| (\w+) \| (\d+) to (\d+) \| (\d+) to (\d+) \|$", README, flags=re.M)
    assert {rule for rule, *_ in ranges} == {"fedavg", "g2uardfl"} == found.keys()
    return [
        f"{rule}: {name} {value} is not within {low} to {high}"
        for rule, *ends in ranges
        for name, value, (low, high) in zip(("ACC", "ASR"), found[rule], (ends[:2], ends[2:]), strict=True)
        if not float(low) <= value <= float(high)
    ]


def run_as_in_the_readme(number: int, flower: dict[str, str], out: Path) -> str:
    """Run a command of the README with these processors and this folder, and return its output."""
    command = shlex.split(COMMANDS[number])
    command[command.index("--federation-config") + 1] += " init-args-num-cpus=2"
    if "--run-config" not in command:
        command += ["--run-config", ""]
    command[command.index("--run-config") + 1] += f" out='{out}'"
    with running(command, env=flower, cwd=EXAMPLE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as flwr:
        output, errors = flwr.communicate(timeout=30 * PATIENCE)
        assert flwr.returncode == 0, errors
    assert table(output), output[-3000:]
    return output


def test_the_output_shown_in_the_readme_is_within_its_ranges():
    shown = re.findall(r"^```text\n(rule .*?)^```$", README, flags=re.M | re.S)
    assert len(shown) == len(COMMANDS) == 2
    assert outside(table(shown[0]), "yes") == outside(table(shown[1]), "no") == []


@pytest.mark.slow
def test_under_attack_the_example_prints_acc_and_asr_within_the_ranges_of_the_readme(flower, tmp_path):
    output = run_as_in_the_readme(0, flower, tmp_path / "out")
    assert outside(table(output), "yes") == []

    audit = Audit(tmp_path / "out" / "g2uardfl.jsonl")
    assert [record["round"] for record in audit.rounds] == list(range(1, 26))
    assert audit.clients == {str(client) for client in range(12)}
    decisions = [[record["verdicts"][str(client)]["decision"] for client in range(12)] for record in audit.rounds]
    hostile = [one for of_round in decisions[15:] for one in of_round[:3]]
    honest = [one for number, of_round in enumerate(decisions) for one in of_round[0 if number < 15 else 3 :]]
    assert hostile.count("accepted") <= 0.1 * len(hostile)
    assert honest.count("accepted") >= 0.9 * len(honest)
    for rule in ("fedavg", "g2uardfl"):
        assert "<h3>Clients</h3>" in (tmp_path / "out" / f"{rule}.html").read_text()


@pytest.fixture
def example(monkeypatch):
    """The modules of the two apps."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield importlib.import_module("flower_mnist.server_app"), importlib.import_module("flower_mnist.client_app")
    for name in [name for name in sys.modules if name.split(".")[0] == "flower_mnist"]:
        del sys.modules[name]


@pytest.mark.slow
def test_without_an_attack_the_guard_costs_no_more_accuracy_than_the_readme_says(example, tmp_path, capsys):
    """The apps of the second command in one process, without Flower's engine."""
    server_app, client_app = example
    assert COMMANDS[1] == f"{COMMANDS[0]} --run-config 'hostile-share=0.0'"
    config = (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8").partition("[tool.flwr.app.config]\n")[2]
    settings = {
        name: json.loads(value) for name, value in re.findall(r'^([\w-]+) = ("[^"]*"|[\d.]+)', config, flags=re.M)
    }
    assert {"task", "rules", "rounds", "out"} < settings.keys()
    settings |= {"hostile-share": 0.0, "out": str(tmp_path)}

    def context(**node) -> Context:
        return Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=settings)

    def reply(client: int, message: Message) -> Message:
        return client_app.app(message, context(**{"partition-id": client, "num-partitions": 12}))

    server_app.main(LocalGrid({100 + client: functools.partial(reply, client) for client in range(12)}), context())
    assert outside(table(capsys.readouterr().out), "no") == []


def test_with_too_few_supernodes_the_example_names_the_command_that_starts_enough(example):
    main = example[0].main
    with pytest.raises(ValueError, match=r'2 SuperNodes are too few .* --federation-config "num-supernodes=12'):
        main(LocalGrid({1: None, 2: None}), None)
