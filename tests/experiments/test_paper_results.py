"""Results next to printed numbers: means, marks, missing cells, and every format."""

from __future__ import annotations

import dataclasses
import re
import statistics
from pathlib import Path

import pytest

from g2uardfl.core.errors import StateError
from g2uardfl.experiments.paper.conclusions import conclusion
from g2uardfl.experiments.paper.rendering import SMOKE, blocks, command, missing, origin, to_latex, to_markdown
from g2uardfl.experiments.paper.reproduction import Reproduction
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


def test_the_profiles_of_the_guard_stand_side_by_side_and_other_defences_have_a_column_of_their_own():
    cell, other = cell_of("G²uardFL"), cell_of("RFA")
    runs = [run(cell, "paper", asr=11.0), run(cell, "default", asr=3.0), run(other, asr=12.0)]
    results = Results(TABLE, runs, [cell, other])
    columns = [f"ASR %, {column}" for column in ("paper", "measured", "`paper` profile", "`default` profile")]
    shown = {name: [row_of(results, name)[column] for column in columns] for name in ("G²uardFL", "RFA")}
    assert shown["G²uardFL"] == ["9.98", "", "11.00", "3.00 ▼"]
    assert shown["RFA"][1:] == ["12.00", "", ""]


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


def test_a_printed_number_that_contradicts_the_others_is_shown_with_the_recomputed_one():
    assert row_of(everything(), "Krum")["DS %, paper"] == "1.39 (recomputed: 12.51)"
    assert row_of(everything(), "DeepSight", "Reddit")["DS %, paper"] == "OOM"
    assert row_of(everything(), "No defense")["DS %, paper"] == ""


def test_a_cell_without_a_run_is_missing_and_named():
    results = everything()
    assert results.missing == []
    fewer = Results(
        TABLE, [one for one in results.runs if (one.labels, one.variant) != (("G²uardFL", "reddit"), "paper")]
    )
    assert fewer.missing == ["G²uardFL, reddit, paper profile"]
    assert row_of(fewer, "G²uardFL", "Reddit")["ACC %, `paper` profile"] == "missing"
    assert missing(results) == ""
    assert missing(fewer) == "1 of 56 cells are missing; the command runs them."
    assert f"commit abc123. {missing(fewer)}" in to_markdown(fewer)


def test_rows_in_which_nothing_was_run_are_left_out_unless_they_were_asked_for_by_name():
    cells = [cell_of(name) for name in ("No defense", "RFA")]
    runs = [run(cells[0])]
    assert [cell.labels[0] for cell in Results(TABLE, runs, cells).rows] == ["No defense"]
    assert [cell.labels[0] for cell in Results(TABLE, runs, cells, ["RFA"]).rows] == ["No defense", "RFA"]
    part = Reproduction(TABLE, only=["RFA", "mnist"])
    assert part.results([Path("none")] * len(part.configs)).rows == part.cells


def test_results_of_a_file_are_compared_with_all_cells_of_its_tasks(tmp_path):
    path = tmp_path / "effectiveness.csv"
    path.write_text(Results(TABLE, [run(cell_of("RFA"))]).to_csv(), encoding="utf-8")
    found = Results.from_csv(TABLE, path)
    assert {cell.labels[1] for cell in found.cells} == {"mnist"}
    assert missing(found) == "13 of 14 cells are missing; the command runs them."
    assert [row[0] for block in blocks(found) for row in block.rows] == ["RFA"]


def test_the_devices_of_the_runs_are_stated_if_they_are_known(tmp_path):
    path = tmp_path / "effectiveness.csv"
    runs = [run(cell_of("RFA"), seed=seed) for seed in range(3)]
    assert origin(Results(TABLE, runs)).endswith("commit abc123")
    mixed = [dataclasses.replace(one, device="cpu" if one.seed else "cuda") for one in runs]
    path.write_text(Results(TABLE, mixed).to_csv(), encoding="utf-8")
    assert origin(Results.from_csv(TABLE, path)).endswith("commit abc123, on cpu (2 runs) and cuda (1 runs)")
    assert origin(Results(TABLE, mixed[1:])).endswith("on cpu")
    lines = [line.split(",") for line in path.read_text(encoding="utf-8").splitlines()]
    column = lines[0].index("device")
    path.write_text("\n".join(",".join(line[:column] + line[column + 1 :]) for line in lines), encoding="utf-8")
    assert {one.device for one in Results.from_csv(TABLE, path).runs} == {""}


def test_a_rate_that_is_not_defined_is_a_dash():
    table = load("detection")
    cell = table.cells[0]
    (block,) = blocks(Results(table, [run(cell, precision=None)], [cell]))
    assert dict(zip(block.headings, block.rows[0], strict=True))["precision %, measured"] == "-"


def test_columns_without_any_value_are_left_out():
    table = load("readings")
    headings = blocks(Results(table, [run(table.cells[0], "paper", precision=50.0)], [table.cells[0]]))[0].headings
    assert headings[:5] == ["reading", "attack", "ASR %, paper", "ASR %, `paper` profile", "ACC %, paper"]
    assert "precision %, `paper` profile" in headings
    assert not {"precision %, paper", "precision %, measured", "precision %, `default` profile"} & set(headings)


def test_results_read_from_their_csv_give_the_same_pages(tmp_path):
    results = everything()
    path = tmp_path / "effectiveness.csv"
    path.write_text(results.to_csv(), encoding="utf-8")
    again = Results.from_csv(TABLE, path)
    assert to_markdown(again) == to_markdown(results)
    assert to_latex(again) == to_latex(results)
    assert svg(figure(again)) == svg(figure(results))
    assert again.to_csv() == results.to_csv()


def test_a_csv_of_another_table_is_a_clear_error(tmp_path):
    path = tmp_path / "effectiveness.csv"
    path.write_text(everything().to_csv(), encoding="utf-8")
    with pytest.raises(StateError, match="no results of the table pmr"):
        Results.from_csv(load("pmr"), path)


def test_the_conclusion_compares_means_over_the_settings_that_every_column_has():
    table = load("robustness")
    cells = [
        cell for cell in table.cells if cell.labels[2] == "mnist" and cell.labels[0] in ("Black-box", "DBA", "3DFed")
    ]
    asr = {"Black-box": 90.0, "DBA": 95.0, "3DFed": 10.0}
    runs = [
        run(cell, variant, asr=asr[cell.labels[0]] / {"": 1, "paper": 10, "default": 100}[variant], benign_refused=6.0)
        for cell in cells
        for variant in cell.variants
        if (cell.labels[0], variant) != ("3DFed", "paper")
    ]
    assert conclusion(Results(table, runs, cells)) == (
        "ASR, mean over 2 attacks: 92.5 % without a defence (paper: 67.0), 9.2 % with the `paper` profile (paper: "
        "9.3), 0.9 % with the `default` profile. ACC, in the same order: 90.0, 90.0, 90.0 %. False positive rate, in "
        "the same order: 6.0, 6.0, 6.0 %. Compared with the paper, the `paper` profile is at least 5 points worse in 1 "
        "of 2 cells and the `default` profile is at least 5 points worse in 0 of 3 cells."
    )


def test_the_conclusion_names_other_rules_that_ran_in_the_same_settings():
    cells = [cell for cell in TABLE.cells if cell.labels[1] == "mnist"]
    asr = {"No defense": 90.0, "FLAME": 70.0, "G²uardFL": 4.0}
    runs = [run(cell, cell.variants[0], asr=asr[cell.labels[0]]) for cell in cells if cell.labels[0] in asr]
    found = conclusion(Results(TABLE, runs, cells))
    assert found.startswith("ASR, in the setting that was run: 90.0 % without a defence (paper: 98.2), 4.0 % with the ")
    assert " ACC, in the same order: 90.0, 90.0 %. Other rules in the same settings: FLAME 70.0 %. Compared" in found


def test_the_conclusion_of_a_table_without_undefended_rows_is_the_range_and_where_its_ends_are():
    table = load("detection")
    cells = [cell for cell in table.cells if cell.labels == ("G²uardFL", "mnist")]
    found = conclusion(Results(table, [run(cells[0], "paper", f1=60.0), run(cells[0], "default", f1=99.0)], cells))
    assert found.startswith("F1 with the `paper` profile: 60.0 % (G²uardFL). F1 with the `default` profile: 99.0 % (")
    assert "the `paper` profile is at least 5 points worse in 1 of 1 cells and the `default` profile is" in found
    readings = load("readings")
    runs = [run(cell, "paper", asr=index) for index, cell in enumerate(readings.cells[:3])]
    assert (
        "ASR with the `paper` profile ranges from 0.0 % (the `paper` profile, Black-box) to 2.0 % (the `paper` p"
        in (conclusion(Results(readings, runs)))
    )


def test_text_written_by_hand_stays_below_the_table_when_its_page_is_made_again(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/effectiveness.md").write_text("## What explains the differences\n\nThis.\n", encoding="utf-8")
    for _ in range(2):
        page, *_ = [path for path in write_pages(everything(), tmp_path) if path.suffix == ".md"]
        text = page.read_text(encoding="utf-8")
        assert text.count("## What explains the differences\n\nThis.\n\n![ASR](") == 1


def test_the_plot_of_a_page_follows_the_theme_and_that_for_papers_is_on_white():
    themed, plain = svg(figure(everything()), is_themed=True), svg(figure(everything()))
    assert 'fill="#ffffff"' in plain
    assert 'fill="#ffffff"' not in themed
    assert "prefers-color-scheme: dark" in themed
    assert 'body[data-theme="dark"] .plot text' in themed
    assert "var(--" not in themed + plain


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
    assert f"`{command}`: 2 local steps, 600 rounds, seed 0, commit abc123." in text


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
