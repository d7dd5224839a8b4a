"""The audit file, and the page that is made of it; neither needs Flower."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from g2uardfl.aggregators.base import Verdict
from g2uardfl.core.errors import StateError
from g2uardfl.federation.audit import AuditWriter
from g2uardfl.flower import Audit

BIG = 2**64 - 3
VERDICTS = {
    BIG: Verdict("accepted", "In the benign cluster.", benign_score=0.25, cluster=0, distance=0.5, weight=0.5),
    "hospital 4": Verdict("malicious", "In the cluster with the lowest standing.", benign_score=-0.5, weight=-0.01),
    7: Verdict("held_out", "Too far from the centre.", benign_score=0.0),
    8: Verdict("invalid", "It failed: '<script>alert(1)</script>'."),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.jsonl"


def rounds_of(path):
    return [(record["round"], sorted(record["verdicts"])) for record in Audit(path).rounds]


def test_every_verdict_is_one_line_with_its_reason_and_exact_ids(path):
    AuditWriter(path, "g2uardfl").write(3, VERDICTS, {BIG: BIG, "hospital 4": 99, 7: 7, 8: 8})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["client"], line["node"]) for line in lines] == [
        (str(BIG), str(BIG)), ("hospital 4", "99"), ("7", "7"), ("8", "8")
    ]  # fmt: skip
    assert all(line["round"] == 3 and line["rule"] == "g2uardfl" and line["time"].endswith("+00:00") for line in lines)
    assert [line["reason"] for line in lines] == [verdict.reason for verdict in VERDICTS.values()]
    assert lines[0]["benign_score"] == 0.25
    assert "benign_score" not in lines[3]


def test_it_is_read_back_by_rounds(path):
    writer = AuditWriter(path, "flame")
    writer.write(1, VERDICTS, {})
    writer.write(2, {7: VERDICTS[7]}, {})
    audit = Audit(path)
    assert rounds_of(path) == [(1, sorted(map(str, VERDICTS))), (2, ["7"])]
    assert audit.rounds[0]["verdicts"]["hospital 4"]["decision"] == "malicious"
    assert audit.counts() == {"accepted": 1, "malicious": 1, "held_out": 2, "invalid": 1}
    assert audit.clients == set(map(str, VERDICTS))
    assert audit.name == "flame in audit.jsonl"
    assert audit.damaged == 0


def test_a_round_that_a_killed_server_left_is_replaced_by_the_one_that_was_finished(path):
    killed = AuditWriter(path, "g2uardfl")
    killed.write(1, {1: VERDICTS[7]}, {})
    killed.write(2, {1: VERDICTS[7], 2: VERDICTS[7]}, {})
    resumed = AuditWriter(path, "g2uardfl")
    resumed.write(2, {3: VERDICTS[7]}, {})
    resumed.write(3, {1: VERDICTS[7]}, {})
    assert rounds_of(path) == [(1, ["1"]), (2, ["3"]), (3, ["1"])]
    assert len(path.read_text().splitlines()) == 5, "nothing is ever taken out of an audit"


def test_a_federation_that_begins_anew_in_the_same_file_is_read_from_its_beginning(path):
    for client in (1, 2):
        writer = AuditWriter(path, "g2uardfl")
        writer.write(1, {client: VERDICTS[7]}, {})
    assert rounds_of(path) == [(1, ["2"])]


def test_a_line_that_was_cut_off_spoils_neither_itself_nor_the_next(path):
    AuditWriter(path, "g2uardfl").write(1, {1: VERDICTS[7], 2: VERDICTS[7]}, {})
    whole = path.read_text()
    path.write_text(whole[:-30])
    AuditWriter(path, "g2uardfl").write(2, {1: VERDICTS[7]}, {})
    audit = Audit(path)
    assert rounds_of(path) == [(1, ["1"]), (2, ["1"])]
    assert audit.damaged == 1


@pytest.mark.parametrize(
    "text", ["", "\n\n", "nonsense\n", '{"round": 1}\n', "[1]\n", '{"round": "1", "decision": 2}\n']
)
def test_a_file_without_verdicts_is_no_audit(path, text):
    path.write_text(text)
    with pytest.raises(StateError, match="holds no verdicts"):
        Audit(path)


def test_a_missing_file_and_an_unwritable_one_are_named(tmp_path):
    with pytest.raises(StateError, match="cannot read"):
        Audit(tmp_path / "no.jsonl")
    with pytest.raises(StateError, match="cannot write"):
        AuditWriter(tmp_path / "no" / "audit.jsonl", "g2uardfl")


def report(*arguments, cwd):
    command = [sys.executable, "-c", "from g2uardfl.cli import main; main()", "report", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def test_the_report_command_makes_a_page_beside_the_audit(path, tmp_path):
    writer = AuditWriter(path, "g2uardfl")
    writer.write(1, VERDICTS, {})
    writer.write(2, VERDICTS, {})
    done = report(path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "audit.html").read_text()
    for text in ("Verdicts: g2uardfl in audit.jsonl", "Benign scores", "Last verdict on each client", str(BIG)):
        assert text in page
    assert "In the cluster with the lowest standing." in page
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert "<th>truth</th>" not in page, "nobody knows the truth about a real federation"


def test_the_report_command_refuses_what_is_no_audit(tmp_path):
    (tmp_path / "x.jsonl").write_text("nonsense")
    done = report(tmp_path / "x.jsonl", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("g2uardfl: error: ")
    assert "holds no verdicts" in done.stderr


def test_a_page_may_hold_a_simulated_run_and_an_audit(path, tmp_path):
    from g2uardfl.report.page import render
    from g2uardfl.simulation.config import RunConfig
    from g2uardfl.simulation.directory import FinishedRun, RunDirectory
    from g2uardfl.simulation.run import Simulation

    config = RunConfig(rounds=1, clients=4, per_round=4, start="scratch", defense="g2uardfl", engine="loop")
    Simulation(config).run([RunDirectory(tmp_path / "run")])
    AuditWriter(path, "g2uardfl").write(1, {7: VERDICTS[8]}, {})
    page = render([FinishedRun(tmp_path / "run"), Audit(path)], "both")
    assert "Accuracy and attack success" in page
    assert "Verdicts: g2uardfl in audit.jsonl" in page
    assert page.count("<th>truth</th>") == 1
    assert page.count("Last verdict on each client") == 2
    assert page.count("Benign scores") == 1, "the audit holds no score"
