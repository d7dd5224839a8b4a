"""`examples/flower-deployment` with real processes: TLS, authenticated SuperNodes, and things that die.

The tests of this file are one story, told in order; one of the four SuperNodes sends rubbish.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "flower-deployment"))

from federation import Federation, wait_for
from g2uardfl.flower.memory import Memory

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-deployment"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the server app's process in /proc"),
]

RUBBISH = '''

@app.train()
def rubbish(message: Message, context: Context) -> Message:
    """What the hostile node sends: another kind of rubbish in each of the first rounds."""
    number = message.content["config"]["server-round"]
    if not context.node_config["hostile"] or number > 3:
        return fit(message, context)
    if number == 3:
        raise RuntimeError("no")
    array = Array("float32", (3,), "numpy.ndarray", b"rubbish" * 10)
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
    client.write_text(client.read_text().replace("@app.train()\n", "") + RUBBISH)
    running = Federation(folder / "run", nodes=4, app=app)
    try:
        running.start_superlink()
        running.ids = running.register_nodes()
        for number in running.ids:
            running.start_supernode(number)
        yield running
    finally:
        family = {pid for process in running.processes.values() for pid in descendants(process.pid)}
        running.stop()
    wait_for(lambda: not any(alive(pid) for pid in family), 30, "nothing that was started is left")


def descendants(pid: int) -> set[int]:
    children = {
        int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()
    }
    return {pid}.union(*(descendants(child) for child in children))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def server_apps(federation) -> set[int]:
    """The processes that run the ServerApp."""
    found = descendants(federation.processes["superlink"].pid)
    return {pid for pid in found if alive(pid) and b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes()}


def messages_received(federation, number: int) -> int:
    return (federation.folder / "logs" / f"supernode-{number}.log").read_text().count("Receiving: train message")


def state(federation) -> Memory:
    memory = Memory.load(federation.state / "guard.state")
    assert memory is not None
    return memory


def scores(federation) -> dict[str, float]:
    return {str(client): score for client, score, _ in state(federation).rule_state.values["scores"]}


def verdict(federation, number: int, round_number: int) -> dict:
    (record,) = [record for record in federation.rounds() if record["round"] == round_number]
    return record["verdicts"].get(federation.ids[number], {"decision": "not asked"})


def test_rounds_go_on_whatever_one_client_sends(federation):
    federation.submit(rounds=2, timeout=60.0)
    wait_for(lambda: federation.rounds_done() >= 2, 150, "two rounds are done")
    assert [record["round"] for record in federation.rounds()] == [1, 2]
    assert "cannot be decoded" in verdict(federation, 4, 1)["reason"]
    assert "sent no 'pixels.bias'" in verdict(federation, 4, 2)["reason"]
    for round_number in (1, 2):
        assert verdict(federation, 4, round_number)["decision"] == "invalid"
        assert {verdict(federation, n, round_number)["decision"] for n in (1, 2, 3)} <= {
            "accepted", "held_out", "malicious"
        }  # fmt: skip
    assert set(scores(federation)) == {federation.ids[number] for number in (1, 2, 3)}


def test_a_server_app_killed_inside_a_round_is_submitted_again_and_goes_on_with_that_round(federation):
    wait_for(lambda: not server_apps(federation), 60, "the first run has ended")
    before, known = messages_received(federation, 2), scores(federation)
    federation.submit(rounds=3, timeout=60.0)
    wait_for(lambda: messages_received(federation, 2) > before, 90, "round 3 is under way")
    killed = server_apps(federation)
    assert killed
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(alive(pid) for pid in killed), 10, "the server app is dead")
    assert state(federation).rounds_done == 2
    assert scores(federation) == known
    federation.submit(rounds=3, timeout=60.0)
    wait_for(lambda: federation.rounds_done() >= 3, 150, "round 3 is done")
    assert [record["round"] for record in federation.rounds()] == [1, 2, 3]
    assert "failed" in verdict(federation, 4, 3)["reason"]


def test_a_killed_supernode_costs_itself_the_round_and_a_restarted_superlink_nobody_anything(federation):
    wait_for(lambda: not server_apps(federation), 60, "the run before has ended")
    federation.kill("supernode-1")
    federation.submit(rounds=4, timeout=25.0)
    wait_for(lambda: federation.rounds_done() >= 4, 150, "round 4 is done")
    assert verdict(federation, 1, 4)["decision"] in ("invalid", "not asked")
    known = scores(federation)
    federation.kill("superlink")
    federation.start_superlink()
    federation.submit(rounds=5, timeout=25.0)
    wait_for(lambda: federation.rounds_done() >= 5, 150, "round 5 is done")
    wait_for(lambda: state(federation).rounds_done == 5, 30, "round 5 is saved")
    assert [record["round"] for record in federation.rounds()] == [1, 2, 3, 4, 5]
    assert set(federation.rounds()[-1]["verdicts"]) <= set(federation.ids.values()), "the nodes kept their ids"
    assert known.keys() <= scores(federation).keys(), "the guard remembers whom it knew"
