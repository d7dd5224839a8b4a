"""The audit file; neither writing nor reading it needs Flower."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2uardfl.aggregators.base import Edge, Event, RoundReport, Verdict, model_kept
from g2uardfl.core.errors import ConfigError, StateError
from g2uardfl.federation.audit import Audit, AuditWriter
from g2uardfl.federation.audit_files import line_hash, lines_of
from helpers.audits import audited_rounds
from helpers.processes import running

BIG = 2**64 - 3
VERDICTS = {
    BIG: Verdict("accepted", "In the benign cluster.", benign_score=0.25, cluster=0, distance=0.5, weight=0.5),
    "hospital 4": Verdict("malicious", "In the cluster with the lowest score.", benign_score=-0.5, suspicion=0.75),
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
    assert lines[1]["suspicion"] == 0.75
    assert {"benign_score", "suspicion"}.isdisjoint(lines[3])


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


def test_the_edges_of_the_client_graph_are_in_the_line_of_the_round_and_read_back(path):
    report = RoundReport(VERDICTS, edges=(Edge("hospital 4", BIG, 0.5),))
    AuditWriter(path, "g2uardfl").write(1, report, {})
    assert written_lines(path)[-1]["edges"] == Audit(path).rounds[0]["edges"] == [["hospital 4", str(BIG), 0.5]]


@pytest.mark.parametrize("edges", [[["a"]], [["a", "b", "c"]], ["abc"], 1])
def test_a_line_with_impossible_edges_is_damaged(path, edges):
    AuditWriter(path, "g2uardfl").write(1, REPORT, {})
    *verdicts, line = written_lines(path)
    path.write_text("".join(json.dumps(one) + "\n" for one in [*verdicts, {**line, "edges": edges}]))
    audit = Audit(path)
    assert (audit.damaged, audit.rounds[0]["edges"]) == (1, [])


def test_an_audit_behind_a_link_is_rotated_and_read_like_any_other(path):
    (path.parent / "folder").mkdir()
    link = path.parent / "folder" / "link"
    link.symlink_to(path)
    writer = AuditWriter(link, "flame", max_bytes=1)
    for number in (1, 2, 3):
        writer.write(number, report_on(number), {})
    assert link.is_symlink()
    assert sorted(one.name for one in path.parent.glob("audit.jsonl*")) == [
        f"audit.jsonl{end}" for end in ("", ".1", ".2")
    ]
    assert audited_rounds(link) == audited_rounds(path) == [(1, ["1"]), (2, ["2"]), (3, ["3"])]
    assert Audit(link).name == "flame in link"


def test_it_is_read_back_by_rounds(path):
    writer = AuditWriter(path, "flame")
    writer.write(1, REPORT, {})
    writer.write(2, report_on(7), {})
    audit = Audit(path)
    assert audited_rounds(path) == [(1, sorted(map(str, VERDICTS))), (2, ["7"])]
    assert audit.rounds[0]["verdicts"]["hospital 4"]["decision"] == "malicious"
    assert audit.counts() == {"accepted": 1, "malicious": 1, "held_out": 2, "invalid": 1}
    assert audit.clients == set(map(str, VERDICTS))
    assert audit.name == "flame in audit.jsonl"
    assert audit.damaged == 0


def test_the_seconds_of_the_stages_are_read_back(path):
    writer = AuditWriter(path, "g2uardfl")
    writer.write(1, REPORT, {})
    writer.write(2, report_on(7), {})
    assert [record["stage_seconds"] for record in Audit(path).rounds] == [REPORT.seconds, {}]


@pytest.mark.parametrize("seconds", ["none", [1.0], {"reading": "long"}, None])
def test_a_line_with_impossible_seconds_is_damaged(path, seconds):
    AuditWriter(path, "g2uardfl").write(1, REPORT, {})
    *verdicts, line = written_lines(path)
    path.write_text("".join(json.dumps(one) + "\n" for one in [*verdicts, {**line, "stage_seconds": seconds}]))
    audit = Audit(path)
    assert audit.damaged == 1
    assert (audit.rounds[0]["note"], audit.rounds[0]["stage_seconds"]) == ("", {})


def test_note_and_events_are_read_back(path):
    kept = model_kept("1 of 3 required usable updates arrived")
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
    assert audited_rounds(path) == [(1, sorted(map(str, VERDICTS))), (2, ["7"])]
    assert all((one["note"], one["events"], one["stage_seconds"]) == ("", [], {}) for one in audit.rounds)
    assert audit.damaged == 0


def test_a_round_that_a_killed_server_left_is_replaced_by_the_finished_one(path):
    killed = AuditWriter(path, "g2uardfl")
    killed.write(1, report_on(1), {})
    killed.write(2, RoundReport({1: VERDICTS[7], 2: VERDICTS[7]}, "Of the killed server."), {})
    resumed = AuditWriter(path, "g2uardfl")
    resumed.write(2, report_on(3), {})
    resumed.write(3, report_on(1), {})
    assert audited_rounds(path) == [(1, ["1"]), (2, ["3"]), (3, ["1"])]
    assert Audit(path).rounds[1]["note"] == ""
    assert len(written_lines(path)) == 5 + 4, "nothing is ever deleted from an audit"


def test_a_federation_that_starts_again_in_the_same_file_is_read_from_its_start(path):
    for client in (1, 2):
        writer = AuditWriter(path, "g2uardfl")
        writer.write(1, report_on(client), {})
    assert audited_rounds(path) == [(1, ["2"])]


@pytest.mark.parametrize("cut", range(30, 300, 45))
def test_an_unfinished_line_is_cut_off_and_the_chain_continues(path, cut):
    AuditWriter(path, "g2uardfl").write(1, report_on(1, 2), {})
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    complete = whole[:-cut].count(b"\n")
    assert (Audit(path).lines, Audit(path).damaged) == (complete, 0), "a reader does not need a writer"
    AuditWriter(path, "g2uardfl").write(2, report_on(1), {})
    audit = Audit(path)
    assert audited_rounds(path) == [(1, ["1", "2"][:complete]), (2, ["1"])]
    assert (audit.broken_at, audit.damaged, audit.lines) == (None, 0, complete + 2)


def test_zeros_that_a_power_failure_left_are_cut_off(path):
    AuditWriter(path, "g2uardfl").write(1, report_on(1), {})
    for end in (bytes(100), b'{"sche' + bytes(5)):
        path.write_bytes(path.read_bytes() + end)
        AuditWriter(path, "g2uardfl").write(2, report_on(1), {})
        assert Audit(path).broken_at is None


@pytest.mark.parametrize("content", [b"a note", b"a\nb", b'{"time": "2026'])
def test_the_end_of_a_file_that_is_no_audit_is_not_cut_off(path, content):
    path.write_bytes(content)
    with pytest.raises(StateError, match="is not an audit"):
        AuditWriter(path, "g2uardfl")
    assert path.read_bytes() == content


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


def three_rounds(path, **settings) -> None:
    """Three rounds of two sessions, two lines each."""
    writer = AuditWriter(path, "g2uardfl", **settings)
    writer.write(1, report_on(1), {})
    writer.write(2, report_on(1), {})
    AuditWriter(path, "g2uardfl", **settings).write(3, report_on(1), {})


def test_each_line_has_a_schema_and_the_hash_of_the_line_before(path):
    three_rounds(path)
    previous = ""
    for line in path.read_bytes().splitlines():
        entry = json.loads(line)
        assert (entry["schema"], entry["previous"]) == (1, previous)
        previous = hashlib.sha256(line).hexdigest()
    audit = Audit(path)
    assert (audit.broken_at, audit.lines, audit.head) == (None, 6, previous)
    assert audit.chain == f"the hash chain of 6 lines is whole; the last hash is {previous}"


def broken_at(path, lines: list[bytes]) -> str | None:
    path.write_bytes(b"".join(lines))
    return Audit(path).broken_at


def test_a_removed_changed_moved_or_added_line_shows_at_the_next_one(path):
    three_rounds(path)
    lines = path.read_bytes().splitlines(keepends=True)
    for index in range(1, 5):
        before, line, after = lines[:index], lines[index], lines[index + 1 :]
        changed = line.replace(b"Too far", b"Too fat") if b"Too far" in line else line.replace(b'""', b'"x"')
        assert changed != line
        assert broken_at(path, [*before, *after]).startswith(f"line {index + 1} of audit.jsonl does not follow")
        assert broken_at(path, [*before, after[0], line, *after[1:]]).startswith(f"line {index + 1} of")
        assert broken_at(path, [*before, changed, *after]).startswith(f"line {index + 2} of")
        assert broken_at(path, [*before, line, line, *after]).startswith(f"line {index + 2} of")
        assert broken_at(path, [*before, line[:-1] + b" \n", *after]).startswith(f"line {index + 2} of")
    assert broken_at(path, lines) is None


def test_a_removed_beginning_shows_at_the_first_line(path):
    three_rounds(path)
    lines = path.read_bytes().splitlines(keepends=True)
    assert broken_at(path, lines[1:]) == (
        "line 1 of audit.jsonl is not the beginning: earlier lines or files are missing"
    )


def test_a_line_of_something_else_breaks_the_chain_and_the_others_are_read(path):
    three_rounds(path)
    lines = path.read_bytes().splitlines(keepends=True)
    assert broken_at(path, [*lines[:2], b"[" * 100_000 + b"\n", *lines[2:]]).startswith(
        "line 3 of audit.jsonl has no hash"
    )
    assert (len(Audit(path).rounds), Audit(path).damaged) == (3, 1)


def test_another_schema_is_a_clear_error(path):
    three_rounds(path)
    path.write_bytes(path.read_bytes().replace(b'"schema": 1', b'"schema": 2'))
    with pytest.raises(StateError, match=r"line 1 of audit.jsonl was written by another version .*schema 2"):
        Audit(path)


def test_a_removed_end_shows_to_a_writer_that_knows_the_last_hash_and_in_the_chain_from_then_on(path):
    three_rounds(path)
    known = Audit(path).head
    lines = path.read_bytes().splitlines(keepends=True)
    assert broken_at(path, lines[:-1]) is None, "the chain alone does not show it"
    writer = AuditWriter(path, "g2uardfl", follows=known)
    assert writer.lacks_lines
    writer.write(4, report_on(1), {})
    assert Audit(path).broken_at.startswith("line 6 of audit.jsonl does not follow")


@pytest.mark.parametrize("last", range(6))
def test_a_writer_that_knows_any_line_of_the_file_continues_at_its_end(path, last):
    """A server that was killed after it wrote the audit and before it wrote the state."""
    three_rounds(path, max_bytes=1)
    known = line_hash([line.content for line in lines_of(path)][last])
    writer = AuditWriter(path, "g2uardfl", follows=known)
    assert not writer.lacks_lines
    writer.write(4, report_on(1), {})
    assert Audit(path).broken_at is None


def test_a_file_that_would_become_too_large_is_rotated_between_rounds(path):
    AuditWriter(path, "g2uardfl").write(0, report_on(1), {})
    largest = int(2.5 * path.stat().st_size)
    path.unlink()
    writer = AuditWriter(path, "g2uardfl", max_bytes=largest)
    for number in range(10, 32):
        writer.write(number, report_on(1), {})
    files = [path.with_name(f"audit.jsonl.{number}") for number in range(1, 11)]
    assert sorted(path.parent.iterdir()) == sorted([path, path.with_name(".audit.jsonl.lock"), *files])
    assert all(file.stat().st_size <= largest for file in files)
    assert [len(file.read_bytes().splitlines()) for file in [*files, path]] == [4] * 11
    assert [record["round"] for record in Audit(path).rounds] == list(range(10, 32))
    assert Audit(path).broken_at is None


def test_a_missing_rotated_file_shows(path):
    three_rounds(path, max_bytes=1)
    path.with_name("audit.jsonl.2").unlink()
    assert Audit(path).broken_at.startswith("line 1 of audit.jsonl does not follow")
    path.with_name("audit.jsonl.1").unlink()
    assert Audit(path).broken_at.startswith("line 1 of audit.jsonl is not the beginning")


def test_files_with_similar_names_are_no_part_of_an_audit(path):
    three_rounds(path)
    for name in ("audit.jsonl.bak", "audit.jsonl.01", "audit.jsonl.1.gz", "xaudit.jsonl.1", "audit.jsonl1"):
        path.with_name(name).write_text("something else")
    assert Audit(path).lines == 6


def test_a_size_below_one_byte_is_not_allowed(path):
    with pytest.raises(ConfigError, match="audit_max_bytes=0 is not allowed"):
        AuditWriter(path, "g2uardfl", max_bytes=0)


class Killed(BaseException):
    """The end of the process."""


@contextmanager
def interrupted(path, error: BaseException | None, written: float):
    """Within this context a write ends with `error` after a share of its bytes."""
    before = path.stat().st_size if path.exists() else 0
    names = set(path.parent.iterdir())

    def fail(descriptor):
        size = os.fstat(descriptor).st_size
        start = before if set(path.parent.iterdir()) == names else 0  # otherwise the file is new
        os.ftruncate(descriptor, start + round(written * (size - start)))
        raise error

    with pytest.MonkeyPatch.context() as patch:
        if error is not None:
            patch.setattr("g2uardfl.federation.audit.os.fsync", fail)
        yield


@given(
    events=st.lists(
        st.tuples(st.sampled_from(["written", "full disk", "killed"]), st.floats(0, 1), st.integers(0, 3)), max_size=12
    ),
    max_bytes=st.sampled_from([1, 700, 2000, 10**6]),
)
@settings(max_examples=60, deadline=None)
def test_after_any_interruptions_the_chain_is_whole_and_all_rounds_are_in_the_audit(events, max_bytes):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "audit.jsonl"
        writer, number, saved, known = AuditWriter(path, "g2uardfl", max_bytes), 1, 0, None
        for event, share, clients in [*events, ("written", 1.0, 1)]:
            errors = {"full disk": OSError(28, "No space left on device"), "killed": Killed()}
            try:
                with interrupted(path, errors.get(event), share):
                    writer.write(number, report_on(*range(clients)), {})
                number, known = number + 1, writer.head
            except StateError:
                number += 1  # Training continues; the state is not saved.
            except Killed:
                writer = AuditWriter(path, "g2uardfl", max_bytes, known)
                assert not writer.lacks_lines
                number = saved + 1
            if event == "written":
                saved = number - 1
        audit = Audit(path)
        assert (audit.broken_at, audit.damaged, audit.head) == (None, 0, writer.head)
        assert [record["round"] for record in audit.rounds] == list(range(1, number))


def test_a_disk_that_stays_full_takes_a_bounded_amount_of_memory_and_the_gap_shows(path, monkeypatch):
    monkeypatch.setattr("g2uardfl.federation.audit._MAX_UNWRITTEN", 10_000)
    writer = AuditWriter(path, "g2uardfl")
    writer.write(1, report_on(1), {})
    for number in range(2, 30):
        with (
            interrupted(path, OSError(28, "No space left on device"), 0.5),
            pytest.raises(StateError, match="No space"),
        ):
            writer.write(number, report_on(1), {})
        assert len(writer._unwritten) < 12_000
    writer.write(30, report_on(1), {})
    rounds = [record["round"] for record in Audit(path).rounds]
    assert rounds[0] == 1
    assert 2 < rounds[1] < rounds[-1] == 30
    assert Audit(path).broken_at.startswith("line 3 of audit.jsonl does not follow")


@pytest.mark.skipif(os.name != "posix", reason="flock is POSIX")
def test_a_second_process_is_rejected(path):
    program = f"""
import sys
from g2uardfl.federation.lock import WriterLock

lock = WriterLock({str(path)!r}, "audit_path")
print("locked", flush=True)
sys.stdin.read()
"""
    with running([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == "locked\n"
        with pytest.raises(StateError, match=rf"used by another server \(process {first.pid}\).*another audit_path"):
            AuditWriter(path, "g2uardfl")
    AuditWriter(path, "g2uardfl").write(1, report_on(1), {})


def test_an_earlier_writer_of_the_same_process_is_rejected(path):
    earlier = AuditWriter(path, "g2uardfl")
    AuditWriter(path, "g2uardfl").write(1, report_on(1), {})
    latest = AuditWriter(path, "g2uardfl")
    with pytest.raises(StateError, match="written by a later strategy"):
        earlier.write(1, report_on(1), {})
    latest.write(2, report_on(1), {})
    assert Audit(path).broken_at is None
