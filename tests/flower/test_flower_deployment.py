"""`examples/flower-deployment`: its run and its attacks do what its README says.

The run has processes with TLS and authenticated SuperNodes, two of which are killed.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'g2uardfl[flower]'")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "flower-deployment"))

from flwr.app import Context, RecordDict
from guarded import client_app, model, server_app

from federation import accuracy
from g2uardfl import G2uardFL
from g2uardfl.defense.agreement.reputation import benign_scores
from g2uardfl.federation.state import FederationState
from g2uardfl.flower import AggregatorStrategy, Audit
from helpers.flower import LocalGrid
from helpers.processes import PATIENCE, running

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-deployment"
README = (EXAMPLE / "README.md").read_text(encoding="utf-8")
CLIENTS, HOSTILE, ROUNDS, CLEAN = 5, 5, 8, 60


def band(text: str) -> tuple[float, float]:
    """The ends of a range of the README, such as "92 to 95 %" or "8"."""
    low, _, high = text.removesuffix("%").strip().partition(" to ")
    return float(low), float(high or low)


def within(value: float, text: str) -> bool:
    low, high = band(text)
    return low <= value <= high


def stated(sentence: str) -> list[str]:
    """The ranges in a sentence of the README, for which `sentence` has `(RANGE)`."""
    pattern = r"\s+".join(map(re.escape, sentence.split())).replace(re.escape("(RANGE)"), r"(\d+ to \d+)")
    (found,) = re.finditer(pattern, README)
    return list(found.groups())


ATTACKS = re.findall(r"^\| (?:`--boost (\d+)`|none) \| (.*?) \| (.*?) \| (.*?) \|$", README, flags=re.M)
"""Each row of the README's table: boost, rounds that accept the attack, accuracy with the guard and with FedAvg."""


class InOneProcess:
    """The two apps of the example without processes: client 5 is hostile from a round on, client 1 absent in some.

    Parameters
    ----------
    folder
        For state and audit.
    boost
        Of the hostile client; None if all are honest.
    rounds
        The number of the last one.
    attack_from
        The first round in which the hostile client attacks.
    absent
        The rounds without client 1.
    resumed
        The folder of a run that this one continues.
    """

    def __init__(
        self,
        folder: Path,
        boost: float | None,
        rounds: int,
        attack_from: int = 1,
        absent: tuple[int, ...] = (),
        resumed: Path | None = None,
    ):
        self.folder, self.boost, self.attack_from, self.absent = folder, boost, attack_from, absent
        self.settings = {"rounds": rounds, "timeout": 60.0, "state": str(folder), "learning-rate": 0.5, "boost": boost}
        self.accuracies: list[float] = []
        """Before each round, in percent."""
        shutil.copytree(resumed, folder) if resumed else folder.mkdir()

    def run(self) -> InOneProcess:
        grid = LocalGrid({number: functools.partial(self._reply, number) for number in range(1, CLIENTS + 1)})
        server_app.main(grid, self._context({}))
        return self

    def decisions(self, *clients: int) -> list[str]:
        rounds = Audit(self.folder / "audit.jsonl").rounds
        return [record["verdicts"][str(client)]["decision"] for record in rounds for client in clients]

    @property
    def accuracy(self) -> float:
        """After the last round, in percent."""
        return 100 * accuracy(self.folder / "model.npz")

    def _reply(self, number, message):
        server_round = message.content["config"]["server-round"]
        if number == 1 and server_round in self.absent:
            return None
        weights = {name: array.numpy() for name, array in message.content["arrays"].items()}
        if number == CLIENTS:
            self.accuracies.append(100 * model.accuracy(weights, *model.test_data()))
        hostile = self.boost is not None and number == HOSTILE and server_round >= self.attack_from
        return client_app.app(message, self._context({"part": number, "parts": CLIENTS, "hostile": hostile}))

    def _context(self, node):
        return Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=self.settings)


@pytest.fixture
def fedavg(monkeypatch):
    monkeypatch.setattr(server_app, "G2uardFLStrategy", functools.partial(AggregatorStrategy, "fedavg"))


@pytest.mark.parametrize(("boost", "accepted", "guarded", "plain"), ATTACKS, ids=lambda value: value or "none")
def test_each_attack_of_the_table_does_with_the_guard_what_the_readme_says(boost, accepted, guarded, plain, tmp_path):
    for number in range(3):
        boosted = float(boost) if boost else None
        run = InOneProcess(tmp_path / str(number), boosted, ROUNDS, absent=(3, 4)).run()
        assert within(run.accuracy, guarded)
        if boost:
            assert within(run.decisions(HOSTILE).count("accepted"), accepted)


@pytest.mark.parametrize(("boost", "accepted", "guarded", "plain"), ATTACKS, ids=lambda value: value or "none")
def test_each_attack_of_the_table_does_with_fedavg_what_the_readme_says(
    boost, accepted, guarded, plain, tmp_path, fedavg
):
    run = InOneProcess(tmp_path / "run", float(boost) if boost else None, ROUNDS, absent=(3, 4)).run()
    assert within(run.accuracy, plain)


def test_the_table_has_the_attack_of_the_run_and_weaker_ones():
    default = re.search(r"^boost = ([\d.]+)", (EXAMPLE / "pyproject.toml").read_text(), flags=re.M)
    assert default is not None
    assert [float(boost or 0) for boost, *_ in ATTACKS] == [0, float(default[1]), 10, 3, 1]


def test_an_attacker_with_a_usual_norm_delays_the_first_round_as_the_readme_says(tmp_path):
    attacked, clean = stated("after the first round the accuracy is (RANGE) %, and (RANGE) % without the attack")
    assert within(InOneProcess(tmp_path / "attacked", 1.0, 2).run().accuracies[1], attacked)
    assert within(InOneProcess(tmp_path / "clean", None, 2).run().accuracies[1], clean)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run without attack."""
    return InOneProcess(tmp_path_factory.mktemp("trained") / "run", None, CLEAN).run().folder


@pytest.mark.slow
@pytest.mark.parametrize("boost", [1.0, 3.0, 10.0, 30.0])
def test_a_client_that_turns_hostile_on_a_trained_model_is_flagged_and_changes_little(boost, tmp_path, trained):
    run = InOneProcess(tmp_path / "run", boost, CLEAN + 20, resumed=trained).run()
    assert run.decisions(HOSTILE)[CLEAN:] == ["malicious"] * 20
    (attacked,) = stated("the accuracy stays within (RANGE) %")
    (clean,) = stated("learns little rare knowledge: (RANGE) % after 60 rounds without attack")
    assert len(run.accuracies) == 20
    assert within(run.accuracies[0], clean)
    assert all(within(value, attacked) for value in [*run.accuracies[1:], run.accuracy])


@pytest.mark.slow
def test_fedavg_learns_from_a_client_that_turns_hostile_on_a_trained_model(tmp_path, fedavg):
    clean, one, three = stated("FedAvg falls from (RANGE) % to (RANGE) % with `boost` 1 and to (RANGE) % with 3")
    assert stated("without attack, and (RANGE) % with FedAvg") == [clean]
    honest = InOneProcess(tmp_path / "clean", None, CLEAN).run()
    for boost, attacked in ((1.0, one), (3.0, three)):
        run = InOneProcess(tmp_path / str(boost), boost, CLEAN + 20, resumed=honest.folder).run()
        assert within(run.accuracies[0], clean)
        assert within(run.accuracy, attacked)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="the example finds process groups in /proc")
def test_the_run_of_the_readme_prints_what_it_says(tmp_path):
    """But for its last two rounds: Flower starts a process for each client in each round."""
    assert "cd examples/flower-deployment\npython federation.py\n" in README
    rounds = ROUNDS - 2
    command = [sys.executable, "federation.py", "--folder", str(tmp_path / "run"), "--rounds", str(rounds)]
    with running(command, cwd=EXAMPLE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        output, errors = process.communicate(timeout=10 * PATIENCE)
        assert process.returncode == 0, output + errors
    shown = re.findall(r"^round (\d+): (.*)$", output, flags=re.M)
    assert [int(number) for number, _ in shown] == list(range(1, rounds + 1)), output
    decisions = [dict(entry.split(" ", 1) for entry in line.split(", ")) for _, line in shown]
    # After the kills a busy machine may lose replies.
    replied = [
        {client: one[client] for client in one if one[client] not in ("invalid", "not asked")} for one in decisions
    ]
    changed = [one for one in replied if "accepted" in one.values()]
    assert len(changed) >= rounds - 2, output
    assert changed[:2] == replied[:2], output
    attacker = [one.pop("5") for one in changed if "5" in one]
    assert len(attacker) >= rounds - 3, output
    assert set(attacker) == {"malicious"}, output
    missed = {number for number, one in enumerate(decisions, start=1) if one["1"] in ("invalid", "not asked")}
    assert missed, output
    assert missed <= set(range(3, rounds + 1)), output
    usable = [decision for one in changed for decision in one.values()]
    assert set(usable) == {"accepted"}, output
    (found,) = re.findall(r"^accuracy ([\d.]+) %$", output, flags=re.M)
    here = InOneProcess(tmp_path / "here", 30.0, rounds, absent=(3, 4)).run()
    assert float(found) == pytest.approx(here.accuracy, abs=2.0)
    assert ("30", *(f"{text} %" for text in stated("and the accuracy is (RANGE) %"))) == ATTACKS[1][:3:2]

    # Nothing was lost with the processes.
    path = tmp_path / "run" / "state" / "guard.state"
    state, restored = FederationState.load(path), G2uardFL()
    assert state is not None
    state.restore(restored, path)
    assert state.rounds_done == rounds
    counts = restored.filtering.reputation.counts.values()
    scores = benign_scores(np.array(list(counts)))
    assert len(scores) == CLIENTS, "the nodes keep their ids"
    attacker, *others = sorted(scores)
    assert attacker < 0
    assert min(others) > 0.5
