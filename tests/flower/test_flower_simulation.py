"""`examples/flower-mnist` as a reader runs it: `flwr run`, a real simulation in Flower's own engine (Ray)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")
pytest.importorskip("ray", reason="needs Flower's simulation engine: pip install 'flwr[simulation]'")

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "flower-deployment"))

from federation import free_port, groups_below, wait_for
from g2uardfl.flower import Audit

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-mnist"


@pytest.fixture
def flower(tmp_path):
    """The environment of a `flwr` command with a SuperLink of its own, which is gone afterwards."""
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
    with (tmp_path / "superlink.log").open("w") as log:
        superlink = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

    def answers() -> bool:
        with suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return True
        return False

    try:
        wait_for(answers, 60, "the SuperLink answers")
        yield environment
    finally:
        for group in groups_below(superlink.pid):
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        superlink.wait(30)


@pytest.mark.slow
def test_the_example_prints_acc_and_asr_with_and_without_the_guard(flower, tmp_path):
    done = subprocess.run(
        [
            "flwr", "run", str(EXAMPLE), "--stream",
            "--federation-config", "num-supernodes=12 client-resources-num-cpus=1 init-args-num-cpus=2",
            "--run-config", f"out='{tmp_path / 'out'}'",
        ],
        env=flower, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = dict(re.findall(r"^(fedavg|g2uardfl) +([\d.]+ +[\d.]+)$", done.stdout, flags=re.M))
    assert set(rows) == {"fedavg", "g2uardfl"}, done.stdout[-3000:]
    acc, asr = ({rule: float(row.split()[index]) for rule, row in rows.items()} for index in (0, 1))
    assert asr["fedavg"] > 50, "without the guard the backdoor works"
    assert asr["g2uardfl"] < 20, "with it, it does not"
    assert acc["g2uardfl"] > 70

    audit = Audit(tmp_path / "out" / "g2uardfl.jsonl")
    assert [record["round"] for record in audit.rounds] == list(range(1, 16))
    assert audit.clients == {str(client) for client in range(12)}
    hostile = [record["verdicts"][str(client)]["decision"] for record in audit.rounds[11:] for client in (0, 1, 2)]
    assert hostile.count("accepted") < len(hostile) / 4
    for rule in rows:
        assert "Last verdict on each client" in (tmp_path / "out" / f"{rule}.html").read_text()


def test_with_too_few_supernodes_the_example_says_what_to_type(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from flower_mnist.server_app import main

    from helpers.flower import LocalGrid

    with pytest.raises(ValueError, match=r'2 SuperNodes are too few .* --federation-config "num-supernodes=12'):
        main(LocalGrid({1: None, 2: None}), None)
