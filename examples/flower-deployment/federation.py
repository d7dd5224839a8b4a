"""The processes of a federation on this machine, two of which are killed and started again. All listen on 127.0.0.1.

    python federation.py                # about two minutes
    python federation.py --boost 3      # a hostile client that scales its update by less

Keys, logs, state and audit are in a new folder, or in the one that `--folder` names. All processes are killed at the
end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from guarded import model
from make_certificates import make_certificates

from g2uardfl.flower import Audit

HERE = Path(__file__).resolve().parent
PATIENCE = 600.0
"""Seconds to wait for one step; the slowest takes about 90 seconds on two cores."""
RESTART_AFTER = 10.0
"""Seconds from one start of a SuperNode to the next, like `RestartSec` of systemd: each start loads all of Flower."""


class Federation:
    """A SuperLink with TLS and node authentication, SuperNodes with keys, and the runs submitted to it."""

    def __init__(self, folder: Path, nodes: int = 5, app: Path = HERE) -> None:
        self.folder, self.nodes, self.hostile, self.app = folder.resolve(), nodes, nodes, app
        self.keys, self.home, self.state = (self.folder / name for name in ("certificates", "flwr", "state"))
        for path in (self.home, self.state, self.folder / "logs"):
            path.mkdir(parents=True, exist_ok=True)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.started: dict[str, float] = {}
        self.port = free_port()
        make_certificates(self.keys, ["127.0.0.1", "localhost"], nodes)
        connection = f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{self.keys / "ca.crt"}"\n'
        (self.home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n[superlink.here]\n{connection}')
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def start(self, name: str, *command: str) -> None:
        """Start a process whose output goes to its own log."""
        self.started[name] = time.monotonic()
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, env=self.environment, start_new_session=True
            )

    def start_superlink(self) -> None:
        """Start a SuperLink with TLS, authenticated nodes, and a database, so that nodes keep their ids."""
        self.start(
            "superlink", "flower-superlink", "--host", "127.0.0.1", "--port", str(self.port),
            "--ssl-ca-certfile", str(self.keys / "ca.crt"), "--ssl-certfile", str(self.keys / "server.pem"),
            "--ssl-keyfile", str(self.keys / "server.key"), "--enable-supernode-auth",
            "--database", str(self.folder / "superlink.db"), "--disable-runtime-dependency-installation",
        )  # fmt: skip
        wait_for(self._is_ready, "the SuperLink is ready")

    def _is_ready(self) -> bool:
        trusted = ssl.create_default_context(cafile=str(self.keys / "ca.crt"))
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"https://127.0.0.1:{self.port}/health", context=trusted, timeout=5).close()
            return True
        return False

    def register_nodes(self) -> dict[int, str]:
        """Register the public keys at the SuperLink; returns node number -> node id, as in the audit."""
        ids = {}
        for number in range(1, self.nodes + 1):
            answer = self.flwr("supernode", "register", str(self.keys / f"node-{number}.pub"), "--format", "json")
            ids[number] = str(json.loads(answer)["node-id"])
        return ids

    def start_supernode(self, number: int) -> None:
        """Start one SuperNode with its private key; the last one is hostile."""
        settings = f"part={number} parts={self.nodes} hostile={'true' if number == self.hostile else 'false'}"
        self.start(
            f"supernode-{number}", "flower-supernode", "--superlink", f"127.0.0.1:{self.port}",
            "--root-certificates", str(self.keys / "ca.crt"),
            "--auth-supernode-private-key", str(self.keys / f"node-{number}"),
            "--host", "127.0.0.1", "--port", str(free_port()), "--node-config", settings,
        )  # fmt: skip

    def revive_supernode(self, number: int) -> None:
        """Start a SuperNode again if it has exited, as a service manager would.

        The SuperLink considers a killed node alive until it has missed two heartbeats (a minute), and rejects its
        successor until then.
        """
        name = f"supernode-{number}"
        if self.processes[name].poll() is not None and time.monotonic() - self.started[name] > RESTART_AFTER:
            self.start_supernode(number)

    def flwr(self, *arguments: str) -> str:
        """Run one `flwr` command and return its output."""
        done = subprocess.run(
            ["flwr", *arguments], cwd=self.app, env=self.environment, capture_output=True, text=True, timeout=PATIENCE
        )
        if done.returncode:
            raise RuntimeError(f"flwr {' '.join(arguments)}: {done.stdout} {done.stderr}")
        return done.stdout

    def submit(self, **settings: Any) -> int:
        """Submit the app and return the id of the run."""
        values = {"state": str(self.state), **settings}
        config = " ".join(f"{name}={json.dumps(value)}" for name, value in values.items())
        return int(json.loads(self.flwr("run", ".", "--format", "json", "--run-config", config))["run-id"])

    def rounds(self) -> list[dict[str, Any]]:
        """The rounds in the audit so far."""
        path = self.state / "audit.jsonl"
        return Audit(path).rounds if path.exists() and path.stat().st_size else []

    def rounds_done(self) -> int:
        """The number of the last round in the audit."""
        return max((int(record["round"]) for record in self.rounds()), default=0)

    def kill(self, name: str) -> None:
        """Kill a process and all processes that it started."""
        process = self.processes.pop(name)
        for group in groups_below(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        process.wait(PATIENCE)

    def stop(self) -> None:
        """Kill all processes."""
        for name in list(self.processes):
            self.kill(name)


def groups_below(pid: int) -> set[int]:
    """The process groups of a process and its descendants (Linux), or only its own (elsewhere)."""
    relations = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            _, parent, group, *_ = stat.read_text().rpartition(")")[2].split()
            relations[int(stat.parent.name)] = (int(parent), int(group))
    family, found = {pid}, {pid}
    while found:
        found = {child for child, (parent, _) in relations.items() if parent in found} - family
        family |= found
    return {pid} | {relations[member][1] for member in family if member in relations}


def free_port() -> int:
    """A free port on 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until `condition` holds; raise TimeoutError if that takes too long."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {PATIENCE:.0f} s, but not yet: {what}")
        time.sleep(0.3)


def main() -> None:
    """Run the federation, kill and restart two processes, and print what happens."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--boost", type=float, help="what the hostile client multiplies its update by")
    parser.add_argument("--rounds", type=int, default=8, help="in total (default: 8; at least 5, for both kills)")
    options = parser.parse_args()
    federation = Federation(options.folder or Path(tempfile.mkdtemp(prefix="flower-deployment-")))
    settings = {"rounds": options.rounds} | ({} if options.boost is None else {"boost": options.boost})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that no process stays behind
    began = time.monotonic()

    def log(text: str) -> None:
        print(f"[{time.monotonic() - began:5.1f} s] {text}", flush=True)

    try:
        federation.start_superlink()
        log(f"SuperLink with TLS on 127.0.0.1:{federation.port}; logs in {federation.folder / 'logs'}")
        ids = federation.register_nodes()
        for number in ids:
            federation.start_supernode(number)
        log(f"{len(ids)} authenticated SuperNodes, number {federation.hostile} of them hostile")
        federation.submit(**settings)
        wait_for(lambda: federation.rounds_done() >= 2, "two rounds are done")
        log("two rounds are done: killing SuperNode 1")
        federation.kill("supernode-1")
        known = federation.rounds_done()
        wait_for(lambda: missed_a_round(federation, ids[1], known), "a round is done without SuperNode 1")
        log(f"round {federation.rounds_done()} is done without it: killing the SuperLink and its server app")
        federation.kill("superlink")
        federation.start_superlink()
        federation.start_supernode(1)
        federation.submit(**settings)
        log("the SuperLink is running again, and the app is submitted again")
        wait_for(lambda: is_finished(federation, options.rounds), "all rounds are done")
        log("all rounds are done")
        wait_for((federation.state / "model.npz").exists, "the final model is saved")
        for record in federation.rounds():
            verdicts = {number: record["verdicts"].get(node, {}).get("decision") for number, node in ids.items()}
            print(f"round {record['round']}:", ", ".join(f"{n} {v or 'not asked'}" for n, v in verdicts.items()))
        print(f"accuracy {100 * accuracy(federation.state / 'model.npz'):.1f} %")
    finally:
        federation.stop()
    print(f"Next: g2uardfl report {federation.state / 'audit.jsonl'}")


def accuracy(path: Path) -> float:
    """The accuracy of a saved model on the server's test set."""
    with np.load(path) as arrays:
        return model.accuracy(dict(arrays), *model.test_data())


def missed_a_round(federation: Federation, node: str, known: int) -> bool:
    """Whether a round after `known` is done that this node did not reply to."""
    new = [record for record in federation.rounds() if record["round"] > known]
    return any(record["verdicts"].get(node, {}).get("decision") == "invalid" for record in new)


def is_finished(federation: Federation, rounds: int) -> bool:
    """Whether the last round is done; until then, start SuperNode 1 again whenever it has exited."""
    federation.revive_supernode(1)
    return federation.rounds_done() >= rounds


if __name__ == "__main__":
    main()
