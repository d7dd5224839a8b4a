"""The audit file; neither writing nor reading it needs Flower."""

from __future__ import annotations

import json

import pytest

from g2uardfl.aggregators.base import Event, RoundReport, Verdict, model_kept
from g2uardfl.core.errors import StateError
from g2uardfl.federation.audit import AuditWriter
from g2uardfl.flower import Audit

BIG = 2**64 - 3
VERDICTS = {
    BIG: Verdict("accepted", "In the benign cluster.", benign_score=0.25, cluster=0, distance=0.5, weight=0.5),
    "hospital 4": Verdict("malicious", "In the cluster with the lowest score.", benign_score=-0.5, weight=-0.01),
    7: Verdict("held_out", "Too far from the centre.", benign_score=0.0),
    8: Verdict("invalid", "It did not reply in time."),
}
ROLLED_BACK = Event("rolled_back", "The model was rolled back to round 3.", {"round": 3})
REPORT = RoundReport(VERDICTS, f"{ROLLED_BACK.message} A remark.", (ROLLED_BACK,), {"reading": 0.5, "decision": 0.25})


def report_on(*clients) -> RoundReport:
    return RoundReport(dict.fromkeys(clients, VERDICTS[7]))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.jsonl"


def rounds_of(path):
    return [(record["round"], sorted(record["verdicts"])) for record in Audit(path).rounds]


def written_lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_round_lines(path) -> None:
    """Make the file what earlier versions wrote."""
    path.write_text("".join(json.dumps(line) + "\n" for line in written_lines(path) if "client" in line))


def test_every_verdict_is_one_line_with_its_reason_and_exact_ids(path):
    AuditWriter(path, "g2uardfl").write(3, REPORT, {BIG: BIG, "hospital 4": 99, 7: 7, 8: 8})
    *lines, _ = written_lines(path)
    assert [(line["client"], line["node"]) for line in lines] == [
        (str(BIG), str(BIG)), ("hospital 4", "99"), ("7", "7"), ("8", "8")
    ]  # fmt: skip
    assert all(line["round"] == 3 and line["rule"] == "g2uardfl" and line["time"].endswith("+00:00") for line in lines)
    assert [line["reason"] for line in lines] == [verdict.reason for verdict in VERDICTS.values()]
    assert lines[0]["benign_score"] == 0.25
    assert "benign_score" not in lines[3]


def test_every_round_is_one_line_with_note_events_and_seconds(path):
    AuditWriter(path, "g2uardfl").write(3, REPORT, {})
    *verdicts, line = written_lines(path)
    assert {name: line[name] for name in ("time", "session", "rule", "round")} == {
        name: verdicts[0][name] for name in ("time", "session", "rule", "round")
    }
    assert "client" not in line
    assert line["note"] == "The model was rolled back to round 3. A remark."
    assert line["events"] == [{"kind": "rolled_back", "message": "The model was rolled back to round 3.", "round": 3}]
    assert line["stage_seconds"] == {"reading": 0.5, "decision": 0.25}


def test_it_is_read_back_by_rounds(path):
    writer = AuditWriter(path, "flame")
    writer.write(1, REPORT, {})
    writer.write(2, report_on(7), {})
    audit = Audit(path)
    assert rounds_of(path) == [(1, sorted(map(str, VERDICTS))), (2, ["7"])]
    assert audit.rounds[0]["verdicts"]["hospital 4"]["decision"] == "malicious"
    assert audit.counts() == {"accepted": 1, "malicious": 1, "held_out": 2, "invalid": 1}
    assert audit.clients == set(map(str, VERDICTS))
    assert audit.name == "flame in audit.jsonl"
    assert audit.damaged == 0


def test_note_and_events_are_read_back(path):
    kept = model_kept("1 of at least 3 usable updates arrived")
    writer = AuditWriter(path, "g2uardfl")
    writer.write(1, REPORT, {})
    writer.write(2, RoundReport({7: VERDICTS[7]}, kept.message, (kept,)), {})
    writer.write(3, report_on(7), {})
    rounds = Audit(path).rounds
    assert [record["note"] for record in rounds] == [REPORT.note, kept.message, ""]
    assert [[event["kind"] for event in record["events"]] for record in rounds] == [["rolled_back"], ["model_kept"], []]


def test_a_file_of_an_earlier_version_without_round_lines_is_read(path):
    writer = AuditWriter(path, "g2uardfl")
    writer.write(1, REPORT, {})
    writer.write(2, report_on(7), {})
    without_round_lines(path)
    audit = Audit(path)
    assert rounds_of(path) == [(1, sorted(map(str, VERDICTS))), (2, ["7"])]
    assert [(record["note"], record["events"]) for record in audit.rounds] == [("", []), ("", [])]
    assert audit.damaged == 0


def test_a_round_that_a_killed_server_left_is_replaced_by_the_finished_one(path):
    killed = AuditWriter(path, "g2uardfl")
    killed.write(1, report_on(1), {})
    killed.write(2, RoundReport({1: VERDICTS[7], 2: VERDICTS[7]}, "Of the killed server."), {})
    resumed = AuditWriter(path, "g2uardfl")
    resumed.write(2, report_on(3), {})
    resumed.write(3, report_on(1), {})
    assert rounds_of(path) == [(1, ["1"]), (2, ["3"]), (3, ["1"])]
    assert Audit(path).rounds[1]["note"] == ""
    assert len(written_lines(path)) == 5 + 4, "nothing is ever deleted from an audit"


def test_a_federation_that_starts_anew_in_the_same_file_is_read_from_its_start(path):
    for client in (1, 2):
        writer = AuditWriter(path, "g2uardfl")
        writer.write(1, report_on(client), {})
    assert rounds_of(path) == [(1, ["2"])]


@pytest.mark.parametrize("cut", range(30, 300, 45))
def test_a_truncated_line_damages_neither_the_lines_before_nor_the_next(path, cut):
    AuditWriter(path, "g2uardfl").write(1, report_on(1, 2), {})
    whole = path.read_text()
    path.write_text(whole[:-cut])
    AuditWriter(path, "g2uardfl").write(2, report_on(1), {})
    audit = Audit(path)
    complete = whole[:-cut].count("\n")
    assert rounds_of(path) == [(1, ["1", "2"][:complete]), (2, ["1"])]
    assert audit.damaged == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "nonsense\n",
        '{"round": 1}\n',
        "[1]\n",
        '"client"\n',
        "1\n",
        '{"round": "1", "decision": 2}\n',
        '{"time": "", "session": "", "rule": "", "round": 1, "note": "", "events": []}\n',
        '{"time": "", "session": "", "rule": "", "round": 1, "note": "", "events": [{"kind": 1, "message": ""}]}\n',
        '{"time": "", "session": "", "rule": "", "round": 1, "note": "", "events": 3}\n',
    ],
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
