"""The page of simulated runs and of real federations; the latter are read from audits, without Flower."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys

import plotly.graph_objects as go
import pytest

from g2uardfl.aggregators.base import Event, RoundReport, Verdict
from g2uardfl.federation.audit import Audit, AuditWriter
from g2uardfl.report.events import event_table, has_events, mark_events
from g2uardfl.report.page import render
from g2uardfl.simulation.config import RunConfig
from g2uardfl.simulation.directory import FinishedRun, RunDirectory
from g2uardfl.simulation.run import Simulation

BIG = 2**64 - 3
SCRIPT = "<script>alert(1)</script>"
VERDICTS = {
    BIG: Verdict("accepted", "In the benign cluster.", benign_score=0.25),
    f"hospital {SCRIPT}": Verdict("malicious", "In the cluster with the lowest score.", benign_score=-0.5),
    8: Verdict("invalid", f"It failed: '{SCRIPT}'."),
}
ROLLED_BACK = Event("rolled_back", "The model was rolled back to round 3.", {"round": 3})
ODD = Event(f"odd{SCRIPT}", f"Something happened: {SCRIPT}")
SECTION = "What the server did on its own"


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> FinishedRun:
    folder = tmp_path_factory.mktemp("run")
    config = RunConfig(rounds=3, clients=4, per_round=4, start="scratch", defense="median", engine="loop")
    Simulation(config).run([RunDirectory(folder)])
    return FinishedRun(folder)


def write_audit(path, *reports: RoundReport) -> Audit:
    writer = AuditWriter(path, "g2uardfl")
    for number, report in enumerate(reports, start=1):
        writer.write(number, report, {})
    return Audit(path)


def section(page: str) -> str:
    """The table of events."""
    return page.partition(SECTION)[2].partition("</table>")[0]


def test_the_page_of_an_audit_shows_verdicts_and_no_truth(tmp_path):
    page = render([write_audit(tmp_path / "audit.jsonl", RoundReport(VERDICTS), RoundReport(VERDICTS))], "title")
    for text in ("Verdicts: g2uardfl in audit.jsonl", "Benign scores", "Last verdict on each client", str(BIG)):
        assert text in page
    assert "In the cluster with the lowest score." in page
    assert "<th>truth</th>" not in page, "who attacked a real federation is unknown"
    assert SECTION not in page, "there were no events"


def test_events_of_an_audit_are_in_a_table_by_round(tmp_path):
    audit = write_audit(
        tmp_path / "audit.jsonl",
        RoundReport(VERDICTS),
        RoundReport(VERDICTS, "", (ROLLED_BACK, ODD)),
        RoundReport(VERDICTS, "", (ROLLED_BACK,)),
    )
    page = render([audit], "title")
    assert f"<h2>{SECTION}: g2uardfl in audit.jsonl</h2>" in page
    rows = re.findall(r"<tr><td>(\d+)</td><td>(.*?)</td><td>(.*?)</td></tr>", section(page))
    assert [row[0] for row in rows] == ["2", "2", "3"]
    assert rows[0] == ("2", "rolled back", ROLLED_BACK.message)


def rows_of(page: str, heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    rows = re.findall(r"<tr>(.*?)</tr>", page.partition(heading)[2].partition("</table>")[0])
    return [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row) for row in rows]


def test_notes_of_an_audit_are_in_a_table_without_the_messages_of_events(tmp_path):
    lies = "Client 3: running_mean of 'bn' is far outside what the other clients send."
    audit = write_audit(
        tmp_path / "audit.jsonl",
        RoundReport(VERDICTS, ROLLED_BACK.message, (ROLLED_BACK,)),
        RoundReport(VERDICTS, f"{ROLLED_BACK.message} {lies}", (ROLLED_BACK,)),
        RoundReport(VERDICTS, lies),
        RoundReport(VERDICTS),
        RoundReport(VERDICTS, "f was lowered."),
    )
    head, *rows = rows_of(render([audit], "title"), "<h2>Notes on rounds: g2uardfl in audit.jsonl</h2>")
    assert head == ["round", "note"]
    assert rows == [["2 to 3", html.escape(lies)], ["5", "f was lowered."]]


def test_seconds_of_an_audit_are_in_a_table_by_stage(tmp_path):
    seconds = [{"reading": 0.5, "decision": 1.0}, {"reading": 0.25, "decision": 3.0}, {"reading": 0.5, "decision": 2.0}]
    audit = write_audit(
        tmp_path / "audit.jsonl", *(RoundReport(VERDICTS, seconds=one) for one in seconds), RoundReport(VERDICTS)
    )
    head, *rows = rows_of(render([audit], "title"), "<h2>Seconds of the server: g2uardfl in audit.jsonl</h2>")
    assert head == ["stage", "median s", "largest s", "in round", "rounds"]
    assert rows == [
        ["reading", "0.5000", "0.5000", "3", "3"],
        ["decision", "2.0000", "3.0000", "2", "3"],
        ["all stages", "2.5000", "3.2500", "2", "3"],
    ]


def test_a_page_without_notes_and_seconds_has_no_empty_tables(tmp_path):
    page = render([write_audit(tmp_path / "audit.jsonl", RoundReport(VERDICTS))], "title")
    assert "Notes on rounds" not in page
    assert "Seconds of the server" not in page


def test_no_text_of_others_becomes_markup(tmp_path):
    audit = write_audit(tmp_path / "audit.jsonl", RoundReport(VERDICTS, SCRIPT, (ODD, ROLLED_BACK), {SCRIPT: 1.0}))
    page = render([audit], SCRIPT)
    assert SCRIPT not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 6, "title, event, note, stage, client and reason"


@pytest.mark.slow
def test_events_of_a_simulated_run_are_in_the_table_and_in_the_curves(finished):
    records = [{**record, "note": "", "events": []} for record in finished.rounds]
    records[1] |= {"events": [ROLLED_BACK.as_dict()], "note": f"{ROLLED_BACK.message} A remark."}
    run = object.__new__(FinishedRun)
    run.__dict__.update(finished.__dict__, rounds=records)
    page = render([run], "title")
    assert ROLLED_BACK.message in section(page)
    assert rows_of(page, "<h2>Notes on rounds")[1:] == [["2", "A remark."]]
    stages = [row[0] for row in rows_of(page, "<h2>Seconds of the server")]
    assert stages == ["stage", "reading", "decision", "building the model", "all stages"]
    assert '"name":"rolled back"' in page
    assert '"name":"eliminated"' not in page


def test_runs_of_earlier_versions_without_events_have_a_page(finished):
    run = object.__new__(FinishedRun)
    new = ("note", "events", "stage_seconds")
    old = [{name: value for name, value in record.items() if name not in new} for record in finished.rounds]
    run.__dict__.update(finished.__dict__, rounds=old)
    page = render([run], "title")
    assert "Accuracy and attack success" in page
    assert SECTION not in page


def test_several_runs_and_an_audit_share_a_page(finished, tmp_path):
    audit = write_audit(tmp_path / "audit.jsonl", RoundReport({8: VERDICTS[8]}))
    page = render([finished, audit], "both")
    assert "Accuracy and attack success" in page
    assert "Verdicts: g2uardfl in audit.jsonl" in page
    assert page.count("Last verdict on each client") == 1, "the run has no scores"
    assert "Benign scores" not in page


def test_the_page_says_whether_the_hash_chain_is_whole_and_where_it_breaks(tmp_path):
    path = tmp_path / "audit.jsonl"
    audit = write_audit(path, *[RoundReport({8: VERDICTS[8]})] * 3)
    assert f"audit.jsonl: the hash chain of 6 lines is whole; the last hash is {audit.head}." in render(
        [audit], "title"
    )
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    assert "audit.jsonl: the hash chain is BROKEN: line 3 of audit.jsonl does not follow" in render(
        [Audit(path)], "title"
    )


def test_marks_are_one_vertical_line_for_each_round_with_the_event():
    rounds = [
        {"round": 1, "events": []},
        {"round": 2, "events": [{"kind": "eliminated", "message": ""}, {"kind": "eliminated", "message": ""}]},
        {"round": 3},
        {"round": 5, "events": [{"kind": "eliminated", "message": ""}, {"kind": "model_kept", "message": ""}]},
    ]
    figure = go.Figure()
    mark_events(figure, rounds, 0, 10, "a run")
    (trace,) = figure.data
    assert trace.name == "eliminated, a run"
    assert trace.x == (2, 2, None, 5, 5, None)
    assert trace.y == (0, 10, None, 0, 10, None)


def test_without_events_nothing_is_marked():
    figure = go.Figure()
    mark_events(figure, [{"round": 1}, {"round": 2, "events": []}], 0, 10)
    assert not figure.data
    assert not has_events([{"round": 1}, {"round": 2, "events": []}])
    assert event_table([]).count("<tr>") == 1


def command(*arguments, cwd):
    code = [sys.executable, "-c", "from g2uardfl.cli import main; main()", "report", *map(str, arguments)]
    return subprocess.run(code, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)


def test_the_report_command_writes_a_page_beside_the_audit(tmp_path):
    write_audit(tmp_path / "audit.jsonl", RoundReport(VERDICTS, "", (ROLLED_BACK,)))
    done = command(tmp_path / "audit.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert ROLLED_BACK.message in section((tmp_path / "audit.html").read_text())
    assert "audit.jsonl: the hash chain of 4 lines is whole; the last hash is " in done.stdout


@pytest.mark.slow
def test_the_report_command_writes_a_page_and_fails_if_the_hash_chain_is_broken(tmp_path):
    path = tmp_path / "audit.jsonl"
    write_audit(path, RoundReport(VERDICTS))
    path.write_bytes(path.read_bytes().replace(b"benign cluster", b"BENIGN CLUSTER"))
    done = command(path, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{path}: the hash chain is BROKEN: line 2 of audit.jsonl does not follow")
    assert (tmp_path / "audit.html").exists()


def test_the_report_command_refuses_a_file_that_is_no_audit(tmp_path):
    (tmp_path / "x.jsonl").write_text(json.dumps({"round": 1}))
    done = command(tmp_path / "x.jsonl", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("g2uardfl: error: ")
    assert "holds no verdicts" in done.stderr
