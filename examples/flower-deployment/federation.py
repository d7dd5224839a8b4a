"""The processes of a federation on this machine, and the story they go through. Everything stays on 127.0.0.1.

    python federation.py      # start, kill a SuperNode, kill the SuperLink, start both again, go on; about two minutes

Every process is stopped by its id. A folder, new each time unless `--folder` names one, keeps keys, logs, state and
audit.
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

from make_certificates import make_certificates

from g2uardfl.flower import Audit

HERE = Path(__file__).resolve().parent


class Federation:
    """A SuperLink with TLS and node authentication, SuperNodes with keys, and the runs submitted to it."""

    def __init__(self, folder: Path, nodes: int = 5, app: Path = HERE) -> None:
        self.folder, self.nodes, self.hostile, self.app = folder.resolve(), nodes, nodes, app
        self.keys, self.home, self.state = (self.folder / name for name in ("certificates", "flwr", "state"))
        for path in (self.home, self.state, self.folder / "logs"):
            path.mkdir(parents=True, exist_ok=True)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
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
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, env=self.environment, start_new_session=True
            )

    def start_superlink(self) -> None:
        """TLS, authenticated nodes, and a database so that nodes keep their ids when it restarts."""
        self.start(
            "superlink", "flower-superlink", "--host", "127.0.0.1", "--port", str(self.port),
            "--ssl-ca-certfile", str(self.keys / "ca.crt"), "--ssl-certfile", str(self.keys / "server.pem"),
            "--ssl-keyfile", str(self.keys / "server.key"), "--enable-supernode-auth",
            "--database", str(self.folder / "superlink.db"), "--disable-runtime-dependency-installation",
        )  # fmt: skip
        wait_for(self._answers, 60, "the SuperLink answers")

    def _answers(self) -> bool:
        trusted = ssl.create_default_context(cafile=str(self.keys / "ca.crt"))
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"https://127.0.0.1:{self.port}/health", context=trusted, timeout=5).close()
            return True
        return False

    def register_nodes(self) -> dict[int, str]:
        """Tell the SuperLink which public keys it may trust; node number -> the id it gave, as the audit has it."""
        ids = {}
        for number in range(1, self.nodes + 1):
            answer = self.flwr("supernode", "register", str(self.keys / f"node-{number}.pub"), "--format", "json")
            ids[number] = str(json.loads(answer)["node-id"])
        return ids

    def start_supernode(self, number: int) -> None:
        """Start one SuperNode with its private key; the last one is hostile."""
        settings = f"part={number} parts={self.nodes + 1} hostile={'true' if number == self.hostile else 'false'}"
        self.start(
            f"supernode-{number}", "flower-supernode", "--superlink", f"127.0.0.1:{self.port}",
            "--root-certificates", str(self.keys / "ca.crt"),
            "--auth-supernode-private-key", str(self.keys / f"node-{number}"),
            "--host", "127.0.0.1", "--port", str(free_port()), "--node-config", settings,
        )  # fmt: skip

    def revive_supernode(self, number: int) -> None:
        """Start a SuperNode that gave up, as a service manager would.

        The SuperLink takes a node that was killed for alive until it has missed two heartbeats (a minute), and turns
        its successor away so long.
        """
        if self.processes[f"supernode-{number}"].poll() is not None:
            self.start_supernode(number)

    def flwr(self, *arguments: str) -> str:
        """Run one `flwr` command and return what it prints."""
        done = subprocess.run(
            ["flwr", *arguments], cwd=self.app, env=self.environment, capture_output=True, text=True, timeout=60
        )
        if done.returncode:
            raise RuntimeError(f"flwr {' '.join(arguments)}: {done.stdout} {done.stderr}")
        return done.stdout

    def submit(self, **settings: Any) -> int:
        """Submit the app; the run's id."""
        values = {"state": str(self.state), **settings}
        config = " ".join(f"{name}={json.dumps(value)}" for name, value in values.items())
        return int(json.loads(self.flwr("run", ".", "--format", "json", "--run-config", config))["run-id"])

    def rounds(self) -> list[dict[str, Any]]:
        """The rounds in the audit so far."""
        path = self.state / "audit.jsonl"
        return Audit(path).rounds if path.exists() and path.stat().st_size else []

    def rounds_done(self) -> int:
        """The last round in the audit."""
        return max((int(record["round"]) for record in self.rounds()), default=0)

    def kill(self, name: str) -> None:
        """End a process and all that it started, without a word of warning."""
        process = self.processes.pop(name)
        for group in groups_below(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End everything."""
        for name in list(self.processes):
            self.kill(name)


def groups_below(pid: int) -> set[int]:
    """The process groups of a process and of its descendants (Linux); its own alone elsewhere."""
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
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until something holds; say what did not when it takes too long."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s in vain until {what}")
        time.sleep(0.3)


def main() -> None:
    """Go through the story and tell it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path)
    federation = Federation(parser.parse_args().folder or Path(tempfile.mkdtemp(prefix="flower-deployment-")))
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"[{time.monotonic() - began:5.1f} s] {text}", flush=True)

    try:
        federation.start_superlink()
        tell(f"SuperLink with TLS on 127.0.0.1:{federation.port}; logs in {federation.folder / 'logs'}")
        ids = federation.register_nodes()
        for number in ids:
            federation.start_supernode(number)
        tell(f"{len(ids)} authenticated SuperNodes, number {federation.hostile} of them hostile")
        federation.submit()
        wait_for(lambda: federation.rounds_done() >= 2, 120, "two rounds are done")
        tell("two rounds are done; now SuperNode 1 is killed")
        federation.kill("supernode-1")
        known = federation.rounds_done()
        wait_for(lambda: lost(federation, ids[1], known), 120, "a round goes on without SuperNode 1")
        tell(f"round {federation.rounds_done()} went on without it; now the SuperLink is killed, with the server app")
        federation.kill("superlink")
        federation.start_superlink()
        federation.start_supernode(1)
        federation.submit()
        tell("the SuperLink is back, and the app is submitted again")
        wait_for(lambda: finished(federation), 240, "all rounds are done")
        tell("all rounds are done")
        for record in federation.rounds():
            verdicts = {number: record["verdicts"].get(node, {}).get("decision") for number, node in ids.items()}
            print(f"round {record['round']}:", *(f"{n} {v or 'not asked'}," for n, v in verdicts.items()))
    finally:
        federation.stop()
    print(f"now try: g2uardfl report {federation.state / 'audit.jsonl'}")


def lost(federation: Federation, node: str, known: int) -> bool:
    """Whether a round after `known` was finished that waited for this node in vain."""
    new = [record for record in federation.rounds() if record["round"] > known]
    return any(record["verdicts"].get(node, {}).get("decision") == "invalid" for record in new)


def finished(federation: Federation) -> bool:
    """Whether the last round is done; as long as it is not, see that SuperNode 1 gets back in."""
    federation.revive_supernode(1)
    return federation.rounds_done() >= 8


if __name__ == "__main__":
    main()
