"""`g2uardfl report`: what it reads, where it writes, and how it fails."""

from __future__ import annotations

import json

from g2uardfl.aggregators.base import RoundReport, Verdict
from helpers.audits import write_audit
from helpers.made_up_runs import made_up_run

ROUND = RoundReport({8: Verdict("accepted", "In the benign cluster.")})


def test_the_page_of_an_audit_is_written_to_the_same_folder(cli, tmp_path):
    audit = write_audit(tmp_path / "audit.jsonl", ROUND)
    done = cli("report", tmp_path / "audit.jsonl")
    assert done.status == 0, done.stderr
    assert "In the benign cluster." in (tmp_path / "audit.html").read_text()
    assert f"audit.jsonl: the hash chain of 2 lines is whole; the last hash is {audit.head}" in done.stdout


def test_a_broken_hash_chain_still_gives_a_page_but_exit_status_1(cli, tmp_path):
    path = tmp_path / "audit.jsonl"
    write_audit(path, ROUND)
    path.write_bytes(path.read_bytes().replace(b"benign cluster", b"BENIGN CLUSTER"))
    done = cli("report", path)
    assert done.status == 1
    assert done.stderr.startswith(f"{path}: the hash chain is BROKEN: line 2 of audit.jsonl does not follow")
    assert (tmp_path / "audit.html").exists()


def test_a_file_that_is_not_an_audit_is_rejected_in_one_line(cli, tmp_path):
    (tmp_path / "x.jsonl").write_text(json.dumps({"round": 1}))
    done = cli("report", tmp_path / "x.jsonl")
    assert done.status == 2
    assert "holds no verdicts" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_selects_all_runs_in_it_finished_or_not(cli, tmp_path):
    made_up_run(tmp_path / "sweep/a/one", rounds=3)
    made_up_run(tmp_path / "sweep/two", rounds=3, seed=1, finished=False)
    assert cli("report", "sweep", "--title", "Two runs").status == 0
    page = (tmp_path / "sweep/report.html").read_text()
    assert "<title>Two runs</title>" in page
    assert page.count('<details class="run"') == 2


def test_a_folder_without_runs_is_rejected_in_one_line(cli, tmp_path):
    (tmp_path / "empty").mkdir()
    done = cli("report", "empty")
    assert (done.status, len(done.stderr.splitlines())) == (2, 1)
    assert "holds none" in done.stderr


def test_figures_are_written_to_a_folder(cli, tmp_path):
    made_up_run(tmp_path / "run", rounds=3)
    done = cli("report", "run", "--figures", "figures")
    assert "Wrote 7 figures to figures" in done.stdout
    assert len(list((tmp_path / "figures").glob("*.svg"))) == 7


def test_an_unknown_format_of_figures_is_rejected_in_one_line(cli, tmp_path):
    made_up_run(tmp_path / "run", rounds=3)
    done = cli("report", "run", "--figures", "figures", "--format", "png")
    assert (done.status, len(done.stderr.splitlines())) == (2, 1)
    assert "choose svg or pdf" in done.stderr


def test_a_page_that_cannot_be_written_is_a_one_line_error(cli, tmp_path):
    made_up_run(tmp_path / "run", rounds=3)
    (tmp_path / "file").write_text("")
    done = cli("report", "run", "--out", "file/page.html")
    assert (done.status, len(done.stderr.splitlines())) == (2, 1)
    assert "choose another --out" in done.stderr
