"""Malformed replies and a killed server app, with real processes, TLS and authenticated SuperNodes.

The tests of this file continue one federation of `examples/flower-deployment`, in order. The hostile one of its four
SuperNodes sends malformed replies in place of the example's attack.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import psutil
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "flower-deployment"))

from federation import Federation, wait_for
from g2uardfl import G2uardFL
from g2uardfl.federation.state import FederationState
from helpers.processes import alive, kill

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-deployment"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="the example finds process groups in /proc"),
]

MALFORMED = '''
import time
from pathlib import Path

FOLDER = Path(HERE)

@app.train()
def malformed(message: Message, context: Context) -> Message:
    """The replies of the hostile node: malformed in another way in each of the first three rounds."""
    number = message.content["config"]["server-round"]
    if not context.node_config["hostile"] or number > 3:
        return fit(message, context)
    if number == 3:
        # The round ends when the test says so: the server app is killed before.
        (FOLDER / "in round 3").touch()
        while not (FOLDER / "go on").exists():
            time.sleep(0.1)
        raise RuntimeError("no")
    array = Array("float32", (3,), "numpy.ndarray", b"malformed" * 10)
    if number == 1:
        array.shape = ("three",)
    content = RecordDict({"a": ArrayRecord(), "m": MetricRecord({"num-examples": 1})})
    content["a"]["pixels.weight"] = array
    return Message(content, reply_to=message)
'''


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    app = folder / "app"
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    client = app / "guarded" / "client_app.py"
    client.write_text(client.read_text().replace("@app.train()\n", "") + MALFORMED.replace("HERE", repr(str(folder))))
    running = Federation(folder / "run", nodes=4, app=app)
    try:
        running.start_superlink()
        running.ids = running.register_nodes()
        for number in running.ids:
            running.start_supernode(number)
        yield running
    finally:
        started = [process for name in running.processes for process in family(running, name)]
        try:
            running.stop()
        finally:
            kill(started)
    assert not any(alive(process) for process in started)


def family(federation: Federation, name: str) -> list[psutil.Process]:
    """A process of the federation and its descendants."""
    process = psutil.Process(federation.processes[name].pid)
    return [process, *process.children(recursive=True)] if alive(process) else []


def server_apps(federation: Federation) -> list[psutil.Process]:
    """The processes that run the ServerApp."""
    return [process for process in family(federation, "superlink") if alive(process) and runs_server_app(process)]


def runs_server_app(process: psutil.Process) -> bool:
    try:
        return any("flwr-serverapp" in argument for argument in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def guard(federation: Federation) -> tuple[int, dict[str, tuple[float, float]]]:
    """Rounds done and the reputations, from the saved state."""
    path = federation.state / "guard.state"
    state, restored = FederationState.load(path), G2uardFL()
    assert state is not None
    state.restore(restored, path)
    return state.rounds_done, {str(client): counts for client, counts in restored.filtering.reputation.counts.items()}


def verdict(federation: Federation, number: int, round_number: int) -> dict:
    (record,) = [record for record in federation.rounds() if record["round"] == round_number]
    return record["verdicts"].get(federation.ids[number], {"decision": "not asked"})


# Where every node replies, a timeout of 600 seconds costs nothing, and a slow machine does not lose replies.


def test_rounds_continue_whatever_one_client_sends(federation):
    federation.submit(rounds=3, timeout=600.0)
    wait_for(lambda: federation.rounds_done() >= 2, "two rounds are done")
    assert [record["round"] for record in federation.rounds()] == [1, 2]
    assert "cannot be decoded" in verdict(federation, 4, 1)["reason"]
    assert "sent no 'pixels.bias'" in verdict(federation, 4, 2)["reason"]
    for round_number in (1, 2):
        assert verdict(federation, 4, round_number)["decision"] == "invalid"
        assert {verdict(federation, n, round_number)["decision"] for n in (1, 2, 3)} <= {
            "accepted", "held_out", "malicious"
        }  # fmt: skip
    wait_for(lambda: guard(federation)[0] == 2, "round 2 is saved")
    assert set(guard(federation)[1]) == {federation.ids[number] for number in (1, 2, 3)}


def test_a_server_app_killed_inside_a_round_repeats_this_round_when_it_is_submitted_again(federation):
    wait_for((federation.folder.parent / "in round 3").exists, "round 3 has started")
    killed, known = server_apps(federation), guard(federation)
    assert killed
    kill(killed)
    assert not any(alive(process) for process in killed)
    assert guard(federation) == known
    (federation.folder.parent / "go on").touch()
    federation.submit(rounds=3, timeout=600.0)
    wait_for(lambda: federation.rounds_done() >= 3, "round 3 is done")
    assert [record["round"] for record in federation.rounds()] == [1, 2, 3]
    assert "failed" in verdict(federation, 4, 3)["reason"]
