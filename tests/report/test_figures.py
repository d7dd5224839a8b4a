"""Figures: what they show, and how they are written to files."""

from __future__ import annotations

import math
import re
import statistics
import sys
from xml.etree import ElementTree

import pytest

from g2uardfl.core.errors import ConfigError
from g2uardfl.report.charts import Figure
from g2uardfl.report.curves import rates, series_of
from g2uardfl.report.figures import draw_rates, write_figures
from g2uardfl.report.graphs import layout
from g2uardfl.report.page import figure_style, figures_of
from g2uardfl.report.reputation import reputation
from g2uardfl.report.subjects import Subject
from g2uardfl.report.verdicts import outcomes, timeline, totals
from g2uardfl.simulation.directory import FinishedRun
from helpers.made_up_runs import made_up_run

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> FinishedRun:
    return made_up_run(tmp_path_factory.mktemp("runs") / "run", attack="black_box", defense="g2uardfl", attack_from=3)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> list[FinishedRun]:
    """Three defences, two attacks, two seeds."""
    folder = tmp_path_factory.mktemp("sweep")
    return [
        made_up_run(folder / f"{defense}-{attack}-{seed}", defense=defense, attack=attack, seed=seed, rounds=6)
        for defense in ("fedavg", "krum", "g2uardfl")
        for attack in ("black_box", "pgd")
        for seed in (0, 1)
    ]


def test_there_is_one_panel_for_each_attack_and_one_colour_for_each_defence(sweep):
    for figure in rates(series_of(sweep)):
        assert [panel.title for panel in figure.panels] == ["black_box (%)", "pgd (%)"]
        styles = [{one["name"]: one["style"] for one in panel.readout["series"]} for panel in figure.panels]
        assert styles[0] == styles[1]
        assert len(set(styles[0].values())) == 3


def test_the_guard_has_the_same_colour_in_every_comparison(sweep):
    alone, together = (series_of(runs) for runs in (sweep[-1:], sweep))
    assert alone[0].style == next(one.style for one in together if one.name == "g2uardfl")


def test_a_setting_of_a_defence_is_named_only_where_it_differs_for_this_defence(tmp_path):
    several = [("multi_krum", {"malicious_clients": 1}), ("multi_krum", {"malicious_clients": 2})]
    runs = [
        made_up_run(tmp_path / str(number), rounds=1, defense=defense, defense_settings=settings)
        for number, (defense, settings) in enumerate([*several, ("krum", {"malicious_clients": 1})])
    ]
    assert [one.name for one in series_of(runs)] == [
        "multi_krum, malicious_clients=1",
        "multi_krum, malicious_clients=2",
        "krum",
    ]


def test_curves_are_means_and_standard_deviations_over_seeds(sweep):
    asr, _ = rates(series_of(sweep))
    shown = asr.panels[1].readout
    guard = next(one for one in shown["series"] if one["name"] == "g2uardfl")
    runs = [run for run in sweep if (run.config.defense, run.config.attack) == ("g2uardfl", "pgd")]
    for number, (mean, deviation) in zip(shown["x"][1:], guard["y"][1:], strict=True):
        values = [100 * run.rounds[number - 1]["asr"] for run in runs]
        assert mean == pytest.approx(statistics.fmean(values), abs=0.005)
        assert deviation == pytest.approx(statistics.stdev(values), abs=0.005)


def test_rounds_that_were_not_evaluated_are_left_out_of_the_curves(run):
    other = object.__new__(FinishedRun)
    records = [{**one, "acc": None, "asr": None} if one["round"] % 2 else one for one in run.rounds]
    other.__dict__.update(run.__dict__, rounds=records)
    asr, _ = rates(series_of([other]))
    assert asr.panels[0].readout["x"] == [0, 2, 4, 6, 8, 10, 12]


def test_the_begin_of_the_attack_and_events_are_marked(run):
    asr, _ = rates(series_of([run]))
    marks = asr.panels[0].marks
    assert [mark.text for mark in marks if mark.text] == ["attack begins"]
    assert {mark.title for mark in marks if mark.style.startswith("symbol")} == {
        "rolled back: g2uardfl",
        "eliminated: g2uardfl",
    }


def test_the_timeline_has_a_cell_for_each_submission_and_a_dot_for_each_attack(run):
    (panel,) = timeline(Subject(run, "1")).panels
    decisions = [verdict["decision"] for record in run.rounds for verdict in record["verdicts"].values()]
    for decision in set(decisions):
        named = next(mark for mark in panel.marks if mark.style == f"bar {decision}")
        assert named.path.count("z") == decisions.count(decision)
    dots = next(mark.path for mark in panel.marks if mark.style == "truth")
    assert dots.count("z") == sum(len(record["attacking"]) for record in run.rounds)


def test_outcomes_agree_with_the_detection_rates_of_the_run(run):
    counts = totals(Subject(run, "1"))
    detection = run.summary["detection"]
    hits, missed = counts["attacks rejected"], counts["attacks accepted"]
    wronged = counts["honest rejected"]
    # Malicious clients that did not attack count as honest here, and not at all in the rates.
    assert detection["recall"] == pytest.approx(hits / (hits + missed))
    assert wronged >= round(hits / detection["precision"]) - hits
    (panel,) = outcomes(Subject(run, "1")).panels
    assert len([mark for mark in panel.marks if mark.style.startswith("bar")]) == 4


def test_reputation_is_one_line_for_each_client_or_quantiles_of_many(run, tmp_path):
    (panel,) = reputation(Subject(run, "1")).panels
    assert len(panel.marks) == 20
    many = made_up_run(tmp_path / "many", clients=120, per_round=30, attack="pgd")
    (panel,) = reputation(Subject(many, "1")).panels
    assert [mark.style.split()[0] for mark in panel.marks] == ["band", "band", "line"] * 2


def test_clients_of_the_graph_do_not_overlap_and_lie_in_the_disc_of_their_cluster():
    verdicts = {str(client): {"cluster": client % 3 or None, "distance": client / 60} for client in range(60)}
    placed = layout(verdicts)
    spots = list(placed.places.values())
    assert min(math.dist(a, b) for index, a in enumerate(spots) for b in spots[:index]) > 0.75
    for client, spot in placed.places.items():
        inside = [math.dist(spot, centre) < radius for centre, radius in placed.discs]
        assert inside.count(True) == 1, client
        assert abs(spot[0]) < placed.width / 2
        assert abs(spot[1]) < placed.height / 2


def test_the_graph_has_a_frame_for_each_round_with_a_node_for_each_client(run):
    figure = next(one for one in figures_of([run]) if one.name == "graph")
    assert figure.frames == [str(record["round"]) for record in run.rounds]
    for frame, record in zip(figure.panels[0].frames, run.rounds, strict=True):
        nodes = {mark.data["client"]: mark.style for mark in frame.marks if "client" in mark.data}
        for client, verdict in record["verdicts"].items():
            ring = "attacked" if int(client) in record["attacking"] else "behaved"
            assert nodes[client] == f"node {verdict['decision']} {ring}"


def test_every_figure_becomes_an_svg_file_without_variables(run, tmp_path):
    written = write_figures(figures_of([run]), tmp_path / "figures")
    assert [path.name for path in written] == [
        f"{name}.svg" for name in ("asr", "acc", "outcomes", "timeline", "reputation", "graph", "timing")
    ]
    for path in written:
        tree = ElementTree.parse(path).getroot()
        width, height = (float(tree.get(name)) for name in ("width", "height"))
        assert "var(" not in path.read_text()
        assert len(list(tree.iter(f"{SVG}path"))) > 5
        for text in tree.iter(f"{SVG}text"):
            assert 0 <= float(text.get("x")) <= width
            assert 0 <= float(text.get("y")) <= height


def test_all_style_classes_of_figures_have_a_rule(run, sweep):
    figures: list[Figure] = [*figures_of([run]), *figures_of(sweep)]
    used = {
        name
        for figure in figures
        for panel in figure.panels
        for mark in [*panel.marks, *(one for frame in panel.frames for one in frame.marks)]
        for name in mark.style.split()
    }
    known = set(re.findall(r"\.([a-z][\w-]*)", figure_style()))
    assert used <= known


def test_figures_become_pdf_files(run, tmp_path):
    pytest.importorskip("svglib", reason="needs the extra pdf")
    (written,) = write_figures(figures_of([run])[:1], tmp_path, "pdf")
    assert written.read_bytes().startswith(b"%PDF-")


def test_without_its_extra_pdf_is_rejected_in_one_line(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "svglib.svglib", None)
    with pytest.raises(ConfigError, match=r"pip install 'g2uardfl\[pdf\]'"):
        write_figures(figures_of([run])[:1], tmp_path, "pdf")


def test_an_unknown_format_is_rejected(run, tmp_path):
    with pytest.raises(ConfigError, match="choose svg or pdf"):
        write_figures(figures_of([run]), tmp_path, "png")


def test_a_drawing_of_a_run_in_memory_shows_itself_in_notebooks_and_is_saved(run, tmp_path):
    drawing = draw_rates(run.config, run.rounds, run.summary)
    shown = ElementTree.fromstring(drawing._repr_svg_())
    assert {"ASR (%)", "ACC (%)"} <= {text.text for text in shown.iter(f"{SVG}text")}
    assert drawing.save(tmp_path / "rates.svg").read_text() == drawing._repr_svg_()
