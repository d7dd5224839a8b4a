"""`examples/flower-mnist` as in its README: `flwr run`, a simulation in Flower's own engine (Ray)."""

from __future__ import annotations

import os
import re
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

from federation import free_port, wait_for
from g2uardfl.flower import Audit
from helpers.flower import LocalGrid

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-mnist"


@pytest.fixture
def flower(tmp_path):
    """The environment of a `flwr` command with its own SuperLink, which ends with the test."""
    port = free_port()
    (tmp_path / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    environment = {
        **os.environ,
        "FLWR_HOME": str(tmp_path),
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
        (tmp_path / "superlink.log").open("w") as log,
        running(command, env=environment, stdout=log, stderr=log),
    ):
        wait_for(is_ready, "the SuperLink is ready")
        yield environment


@pytest.mark.slow
def test_the_example_prints_acc_and_asr_without_and_with_the_guard(flower, tmp_path):
    command = [
        "flwr", "run", str(EXAMPLE), "--stream",
        "--federation-config", "num-supernodes=12 client-resources-num-cpus=1 init-args-num-cpus=2",
        "--run-config", f"out='{tmp_path / 'out'}'",
    ]  # fmt: skip
    with running(command, env=flower, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as flwr:
        output, errors = flwr.communicate(timeout=30 * PATIENCE)
        assert flwr.returncode == 0, errors
    rows = dict(re.findall(r"^(fedavg|g2uardfl) +([\d.]+ +[\d.]+)$", output, flags=re.M))
    assert set(rows) == {"fedavg", "g2uardfl"}, output[-3000:]
    acc, asr = ({rule: float(row.split()[index]) for rule, row in rows.items()} for index in (0, 1))
    assert asr["fedavg"] > 50, "without the guard the backdoor works"
    assert asr["g2uardfl"] < 20, "with the guard it does not"
    assert acc["g2uardfl"] > 70

    audit = Audit(tmp_path / "out" / "g2uardfl.jsonl")
    assert [record["round"] for record in audit.rounds] == list(range(1, 16))
    assert audit.clients == {str(client) for client in range(12)}
    hostile = [record["verdicts"][str(client)]["decision"] for record in audit.rounds[11:] for client in (0, 1, 2)]
    assert hostile.count("accepted") < len(hostile) / 4
    for rule in rows:
        assert "Last verdict on each client" in (tmp_path / "out" / f"{rule}.html").read_text()


def test_with_too_few_supernodes_the_example_names_the_command_that_starts_enough(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from flower_mnist.server_app import main

    with pytest.raises(ValueError, match=r'2 SuperNodes are too few .* --federation-config "num-supernodes=12'):
        main(LocalGrid({1: None, 2: None}), None)
