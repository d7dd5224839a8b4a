"""The page of simulated runs and of real federations; the latter are read from audits, without Flower."""

from __future__ import annotations

import html
import json
import re

import pytest

from g2uardfl.aggregators.base import Edge, Event, RoundReport, Verdict
from g2uardfl.federation.audit import Audit
from g2uardfl.report.page import render
from g2uardfl.simulation.directory import FinishedRun
from helpers.audits import write_audit
from helpers.made_up_runs import made_up_run

BIG = 2**64 - 3
SCRIPT = "<script>alert(1)</script>"
VERDICTS = {
    BIG: Verdict("accepted", "In the benign cluster.", benign_score=0.25),
    f"hospital {SCRIPT}": Verdict("malicious", "In the cluster with the lowest score.", benign_score=-0.5),
    8: Verdict("invalid", f"It failed: '{SCRIPT}'."),
}
ROLLED_BACK = Event("rolled_back", "The model was rolled back to round 3.", {"round": 3})
ODD = Event(f"odd{SCRIPT}", f"Something happened: {SCRIPT}")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> FinishedRun:
    """A run with everything that a page can show."""
    return made_up_run(tmp_path_factory.mktemp("runs") / "run", attack="black_box", defense="g2uardfl", attack_from=3)


def changed(run: FinishedRun, rounds: list[dict]) -> FinishedRun:
    """The same run with other rounds."""
    other = object.__new__(FinishedRun)
    other.__dict__.update(run.__dict__, rounds=rounds)
    return other


def rows_of(page: str, name: str) -> list[list[str]]:
    """The cells of the first table of a class."""
    table = re.search(rf"<table class=\"{name}.*?</table>", page, flags=re.S)[0]
    rows = re.findall(r"<tr.*?</tr>", table, flags=re.S)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, flags=re.S) for row in rows]
    return [[html.unescape(re.sub(r"<[^>]*>", "", cell)) for cell in row] for row in cells]


def figures_in(page: str) -> list[str]:
    """The names of the figures on a page."""
    return re.findall(r'<figure class="[^"]*" data-name="([^"]*)"', page)


def data_of(page: str) -> list[dict]:
    """What the script knows of each run."""
    return [json.loads(found) for found in re.findall(r'class="data">(.*?)</script>', page)]


def test_the_page_of_a_run_has_every_figure_and_the_settings(run):
    page = render([run], "title")
    assert figures_in(page) == ["asr", "acc", "outcomes", "timeline", "reputation", "graph", "timing"]
    assert "8 of 20 clients in each round, 25 % of the clients malicious, alpha inf, seed 0; g2uardfl 0.0." in page
    for text in ("attack begins", "The attack was prevented", "batch_size", "environment", "rolled back"):
        assert text in page


def test_a_page_loads_nothing_and_needs_no_other_file(run):
    page = render([run], "title")
    assert not re.search(r"<(link|img|iframe|script)[^>]*(src|href)", page)
    assert "default-src 'none'" in page
    assert len(page) < 300_000


def test_the_headline_of_a_successful_attack_says_so(tmp_path):
    page = render([made_up_run(tmp_path / "run", attack="pgd", succeeds=True)], "title")
    assert "The attack succeeded: attack success rate 95.0 %" in page


def test_a_rule_without_scores_has_a_timeline_and_a_table_but_no_reputation_and_no_graph(tmp_path):
    page = render([made_up_run(tmp_path / "run", scored=False)], "title")
    assert figures_in(page) == ["asr", "acc", "outcomes", "timeline", "timing"]
    assert "score" not in rows_of(page, "clients")[0]
    assert len(rows_of(page, "clients")) == 21, "twenty clients and the head"


def test_an_unfinished_run_has_a_page_that_says_so(tmp_path):
    made_up_run(tmp_path / "run", finished=False)
    config = tmp_path / "run/config.toml"
    config.write_text(config.read_text().replace("rounds = 12", "rounds = 30"))
    with (tmp_path / "run/rounds.jsonl").open("a") as file:
        file.write('{"round": 13, "acc"')  # in the middle of being written
    page = render([FinishedRun(tmp_path / "run", unfinished_too=True)], "title")
    assert "The run is not finished: 12 of 30 rounds are done." in page


def test_a_run_that_has_just_started_has_a_page(tmp_path):
    run = made_up_run(tmp_path / "run", rounds=0, finished=False)
    assert "nothing was evaluated yet" in render([run], "title")


def test_runs_of_earlier_versions_without_events_and_edges_have_a_page(run):
    new = ("note", "events", "stage_seconds", "edges")
    old = [{name: value for name, value in record.items() if name not in new} for record in run.rounds]
    page = render([changed(run, old)], "title")
    assert figures_in(page) == ["asr", "acc", "outcomes", "timeline", "reputation"]
    assert '<table class="events">' not in page


def test_clients_with_wrong_decisions_come_first(run):
    head, *rows = rows_of(render([run], "title"), "clients")
    wrong = [int(row[head.index("wrong decisions")]) for row in rows]
    assert wrong == sorted(wrong, reverse=True)
    slow = {str(client): 0 for client in range(20)}
    for record in run.rounds:
        for client, verdict in record["verdicts"].items():
            slow[client] += (int(client) in record["attacking"]) != (verdict["decision"] != "accepted")
    assert {row[0]: int(row[head.index("wrong decisions")]) for row in rows} == slow


def test_the_script_gets_every_verdict_with_its_reason(run):
    (data,) = data_of(render([run], "title"))
    number, verdicts = data["rounds"][6]
    record = run.rounds[6]
    found = {
        data["clients"][client]: (data["decisions"][decision], data["reasons"][reason], bool(attacked))
        for client, decision, attacked, reason, _ in verdicts
    }
    assert number == record["round"]
    assert found == {
        client: (verdict["decision"], verdict["reason"], int(client) in record["attacking"])
        for client, verdict in record["verdicts"].items()
    }


def test_runs_that_differ_in_their_seeds_share_a_row_with_mean_and_deviation(tmp_path):
    runs = [made_up_run(tmp_path / str(seed), seed=seed, attack="pgd") for seed in range(3)]
    accuracies = [100 * run.rounds[-1]["acc"] for run in runs]
    mean = sum(accuracies) / 3
    deviation = (sum((value - mean) ** 2 for value in accuracies) / 2) ** 0.5
    rows = {row[0]: row[1:] for row in rows_of(render(runs, "title"), "results")}
    assert rows["ACC %"] == [f"{mean:.2f} ± {deviation:.2f}"]
    assert rows["seeds"] == ["0, 1, 2"]


def test_several_runs_are_named_by_what_differs(tmp_path):
    runs = [
        made_up_run(tmp_path / "a", defense="g2uardfl", defense_settings={"profile": "paper"}, alpha=0.1),
        made_up_run(tmp_path / "b", defense="g2uardfl", alpha=0.5, attack="pgd"),
    ]
    page = render(runs, "title")
    assert "g2uardfl (paper) against no attack, alpha=0.1 <" in page
    assert "g2uardfl against pgd, alpha=0.5 <" in page


def test_the_page_of_an_audit_shows_verdicts_and_no_ground_truth(tmp_path):
    page = render([write_audit(tmp_path / "audit.jsonl", RoundReport(VERDICTS), RoundReport(VERDICTS))], "title")
    assert figures_in(page) == ["outcomes", "timeline", "reputation"]
    assert "1 of 3 clients were rejected at least once in 2 rounds." in page
    assert "2 messages were unusable." in page
    head, *rows = rows_of(page, "clients")
    assert "truth" not in head, "who attacked a real federation is unknown"
    assert [row[0] for row in rows] == [f"hospital {SCRIPT}", "8", str(BIG)]
    assert '<table class="events">' not in page, "there were no events"


def test_the_client_graph_of_an_audit_is_shown(tmp_path):
    edges = (Edge(BIG, 8, 0.5), Edge("gone", 8, 0.1))
    audit = write_audit(tmp_path / "audit.jsonl", RoundReport(VERDICTS, edges=edges), RoundReport(VERDICTS))
    assert [record["edges"] for record in audit.rounds] == [[[str(BIG), "8", 0.5], ["gone", "8", 0.1]], []]
    assert "graph" in figures_in(render([audit], "title"))


def test_events_of_an_audit_are_in_a_table_by_round(tmp_path):
    audit = write_audit(
        tmp_path / "audit.jsonl",
        RoundReport(VERDICTS),
        RoundReport(VERDICTS, "", (ROLLED_BACK, ODD)),
        RoundReport(VERDICTS, "", (ROLLED_BACK,)),
    )
    rows = rows_of(render([audit], "title"), "events")[1:]
    assert [row[0] for row in rows] == ["2", "2", "3"]
    assert rows[0] == ["2", "rolled back", ROLLED_BACK.message]


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
    assert rows_of(render([audit], "title"), "notes")[1:] == [["2 to 3", lies], ["5", "f was lowered."]]


def test_seconds_of_an_audit_are_in_a_table_by_stage(tmp_path):
    seconds = [{"reading": 0.5, "decision": 1.0}, {"reading": 0.25, "decision": 3.0}, {"reading": 0.5, "decision": 2.0}]
    audit = write_audit(
        tmp_path / "audit.jsonl", *(RoundReport(VERDICTS, seconds=one) for one in seconds), RoundReport(VERDICTS)
    )
    head, *rows = rows_of(render([audit], "title"), "stages")
    assert head == ["stage", "median s", "largest s", "in round", "rounds"]
    assert rows == [
        ["reading", "0.5000", "0.5000", "3", "3"],
        ["decision", "2.0000", "3.0000", "2", "3"],
        ["all stages", "2.5000", "3.2500", "2", "3"],
    ]


def test_untrusted_text_never_becomes_markup(tmp_path):
    reports = [RoundReport(VERDICTS, SCRIPT, (ODD, ROLLED_BACK), {SCRIPT: 1.0}, (Edge(8, f"hospital {SCRIPT}", 1.0),))]
    audit = write_audit(tmp_path / "audit.jsonl", *reports)
    run = made_up_run(tmp_path / "run", attack=f"none{SCRIPT}", attack_settings={SCRIPT: SCRIPT})
    page = render([audit, run], SCRIPT)
    assert SCRIPT not in page
    assert "alert(1)</script>" not in page
    shown = page.count("&lt;script&gt;alert(1)&lt;/script&gt;")
    assert shown >= 12, "title, event, note, stage, client, reason, edge, attack and settings"


def test_a_run_and_an_audit_share_a_page(run, tmp_path):
    page = render([run, write_audit(tmp_path / "audit.jsonl", RoundReport({8: VERDICTS[8]}))], "both")
    assert [name for name in figures_in(page) if "-" not in name] == ["asr", "acc"]
    assert {name for name in figures_in(page) if name.endswith("-2")} == {"outcomes-2", "timeline-2"}


def test_the_page_says_whether_the_hash_chain_is_whole_and_where_it_breaks(tmp_path):
    path = tmp_path / "audit.jsonl"
    audit = write_audit(path, *[RoundReport({8: VERDICTS[8]})] * 3)
    page = render([audit], "title")
    assert f"audit.jsonl: the hash chain of 6 lines is whole; the last hash is {audit.head}." in page
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    page = render([Audit(path)], "title")
    assert '<p class="warning">audit.jsonl: the hash chain is BROKEN: line 3 of audit.jsonl does not follow' in page
