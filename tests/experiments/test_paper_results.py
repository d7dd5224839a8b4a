"""Results beside printed numbers: means, marks, missing cells, and every format."""

from __future__ import annotations

import dataclasses
import re
import statistics

import pytest

from g2uardfl.core.errors import StateError
from g2uardfl.experiments.paper.rendering import SMOKE, blocks, command, conclusion, to_latex, to_markdown
from g2uardfl.experiments.paper.results import FIGURES, Results, RunResult, notable
from g2uardfl.experiments.paper.table import load
from g2uardfl.report.page import svg
from g2uardfl.report.reproduction import figure, write_pages

TABLE = load("effectiveness")


def run(cell, variant="", seed=0, scale="paper", **figures) -> RunResult:
    values = {**dict.fromkeys(FIGURES), "asr": 10.0, "acc": 90.0, "ds": 90.0, **figures}
    return RunResult(cell.labels, variant, seed, scale, "steps", 600, "abc123", values)


def everything(scale="paper", **figures) -> Results:
    runs = [run(cell, variant, scale=scale, **figures) for cell in TABLE.cells for variant in cell.variants]
    return Results(TABLE, runs)


def cell_of(defense, task="mnist"):
    (cell,) = [cell for cell in TABLE.cells if cell.labels == (defense, task)]
    return cell


def row_of(results, defense, task="MNIST"):
    (block,) = [block for block in blocks(results) if block.task == task]
    (row,) = [row for row in block.rows if row[0] == defense]
    return dict(zip(block.headings, row, strict=True))


def test_a_cell_shows_the_mean_over_the_seeds_and_their_deviation():
    values = [8.0, 9.5, 12.0]
    cell = cell_of("Krum")
    results = Results(TABLE, [run(cell, seed=seed, asr=value) for seed, value in enumerate(values)], [cell])
    found = row_of(results, "Krum")["ASR %, measured"]
    assert found == f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f} ▼"


def test_the_profiles_of_the_guard_stand_side_by_side_and_other_defences_have_one_column():
    cell = cell_of("G²uardFL")
    results = Results(TABLE, [run(cell, "paper", asr=11.0), run(cell, "default", asr=3.0)], [cell, cell_of("RFA")])
    row = row_of(results, "G²uardFL")
    shown = [row[f"ASR %, {column}"] for column in ("printed", "measured", "default")]
    assert shown == ["9.98", "11.00", "3.00 ▼"]
    assert row_of(results, "RFA")["ASR %, default"] == ""


@pytest.mark.parametrize(
    ("printed", "measured", "mark"),
    [
        (10.0, 15.0, 1),
        (10.0, 14.9, 0),
        (10.0, 5.0, -1),
        (10.0, 5.1, 0),
        (None, 99.0, 0),
        ("OOM", 99.0, 0),
        (9.0, None, 0),
    ],
)
def test_differences_of_five_points_are_marked(printed, measured, mark):
    assert notable(printed, measured) == mark


def test_a_printed_number_that_contradicts_the_others_has_the_recomputed_one_beside_it():
    assert row_of(everything(), "Krum")["DS %, printed"] == "1.39 (recomputed: 12.51)"
    assert row_of(everything(), "DeepSight", "Reddit")["DS %, printed"] == "OOM"
    assert row_of(everything(), "No defense")["DS %, printed"] == ""


def test_a_cell_without_a_run_is_missing_and_named():
    results = everything()
    assert results.missing == []
    fewer = Results(
        TABLE, [one for one in results.runs if (one.labels, one.variant) != (("G²uardFL", "reddit"), "paper")]
    )
    assert fewer.missing == ["G²uardFL, reddit, paper profile"]
    assert row_of(fewer, "G²uardFL", "Reddit")["ACC %, measured"] == "missing"


def test_a_rate_that_is_not_defined_is_a_dash():
    table = load("detection")
    cell = table.cells[0]
    (block,) = blocks(Results(table, [run(cell, precision=None)], [cell]))
    assert dict(zip(block.headings, block.rows[0], strict=True))["precision %, measured"] == "-"


def test_columns_without_any_value_are_left_out():
    table = load("readings")
    headings = blocks(Results(table, [run(table.cells[0], "paper", precision=50.0)], [table.cells[0]]))[0].headings
    assert headings[:5] == ["reading", "attack", "ASR %, printed", "ASR %, measured", "ACC %, printed"]
    assert "precision %, measured" in headings
    assert not {"precision %, printed", "precision %, default"} & set(headings)


def test_results_read_from_their_csv_give_the_same_pages(tmp_path):
    results = everything()
    path = tmp_path / "effectiveness.csv"
    path.write_text(results.to_csv(), encoding="utf-8")
    again = Results.from_csv(TABLE, path)
    assert to_markdown(again) == to_markdown(results)
    assert to_latex(again) == to_latex(results)
    assert svg(figure(again)) == svg(figure(results))
    assert again.to_csv() == results.to_csv()


def test_a_csv_of_another_table_is_one_clear_error(tmp_path):
    path = tmp_path / "effectiveness.csv"
    path.write_text(everything().to_csv(), encoding="utf-8")
    with pytest.raises(StateError, match="no results of the table pmr"):
        Results.from_csv(load("pmr"), path)


def test_the_conclusion_has_the_means_over_the_cells_and_counts_worse_ones():
    higher = {"mnist": 20.0, "cifar10": 4.0, "sentiment140": -30.0, "reddit": 0.0}
    cells = [cell for cell in TABLE.cells if cell.labels[0] in ("No defense", "G²uardFL")]
    runs = [
        run(cell, variant, asr=cell.printed["asr"] + higher[cell.labels[1]])
        for cell in cells
        for variant in cell.variants
        if variant != "default"
    ]
    with_guard = statistics.fmean([9.98 + 20, 10.61 + 4, 7.92 - 30, 0.0])
    without = statistics.fmean([98.18 + 20, 96.16 + 4, 100 - 30, 100.0])
    assert conclusion(Results(TABLE, runs, cells)) == (
        f"ASR, mean over the cells: {without:.1f} % without a defence, {with_guard:.1f} % with `profile=paper`. "
        "Compared with the printed numbers, `profile=paper` is at least 5 points worse in 1 of 4 cells."
    )


def test_the_conclusion_about_detection_is_its_f1_which_is_worse_where_it_is_lower():
    table = load("detection")
    cells = [cell for cell in table.cells if cell.labels == ("G²uardFL", "mnist")]
    found = conclusion(Results(table, [run(cells[0], "paper", f1=60.0), run(cells[0], "default", f1=99.0)], cells))
    assert "F1, mean over the cells: 60.0 % with `profile=paper`, 99.0 % with `profile=default`." in found
    assert "`profile=paper` is at least 5 points worse in 1 of 1 cells, and `profile=default` is" in found


def test_every_artefact_of_a_smoke_run_says_so_and_none_of_another_does(tmp_path):
    for scale in ("smoke", "paper"):
        results, folder = everything(scale), tmp_path / scale
        paths = write_pages(results, folder)
        assert sorted(path.suffix for path in paths) == [".csv", ".html", ".md", ".svg", ".tex"]
        for path in paths:
            text = path.read_text(encoding="utf-8")
            marked = ",smoke," in text if path.suffix == ".csv" else SMOKE in text
            assert marked == (scale == "smoke"), path


def test_figures_of_a_smoke_run_are_not_compared_with_the_papers():
    assert "▲" not in to_markdown(everything("smoke", asr=100.0))
    assert "▲" in to_markdown(everything("paper", asr=100.0))


def test_latex_has_one_table_for_each_task_and_escapes_what_latex_reads():
    text = to_latex(everything())
    assert text.count("\\begin{tabular}") == 4
    assert not re.search(r"(?<!\\)[%&#_](?=\S)", re.sub(r"^%.*$", "", text, flags=re.M).replace(" & ", " "))
    assert "²" not in text


def test_the_page_states_command_rounds_seeds_and_commit():
    text = to_markdown(everything())
    command = "g2uardfl reproduce effectiveness --scale paper --seeds 1 --rounds 600"
    assert f"`{command}`: 2 local steps, 600 rounds, seeds 0, commit abc123." in text


def test_the_command_of_a_part_names_its_labels_and_local_epochs():
    cells = [cell for cell in TABLE.cells if cell.labels in (("No defense", "cifar10"), ("RFA", "cifar10"))]
    runs = [dataclasses.replace(run(cells[0], seed=seed), local="epochs", rounds=300) for seed in (0, 1)]
    options = "--scale paper --local epochs --only 'No defense' RFA cifar10 --seeds 2 --rounds 300"
    assert command(Results(TABLE, runs, cells)) == f"g2uardfl reproduce effectiveness {options}"


def test_curves_are_drawn_and_kept_in_the_csv(tmp_path):
    table = load("elimination")
    runs = [
        dataclasses.replace(run(cell, variant), curve="5:10.00 10:60.00")
        for cell in table.cells
        for variant in cell.variants
    ]
    results = Results(table, runs)
    assert svg(figure(results)).count('class="line s') == 6
    path = tmp_path / "elimination.csv"
    path.write_text(results.to_csv(), encoding="utf-8")
    assert svg(figure(Results.from_csv(table, path))) == svg(figure(results))
