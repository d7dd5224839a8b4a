"""The tables of the paper as data: grids, printed numbers, and configs."""

from __future__ import annotations

import csv
import dataclasses
from importlib.resources import files

import pytest

from g2uardfl.aggregators import create
from g2uardfl.core.errors import ConfigError
from g2uardfl.experiments.paper.table import TABLES, load
from g2uardfl.simulation.naming import flat_settings

each_table = pytest.mark.parametrize("name", TABLES)
CELLS = {
    "effectiveness": 13 * 4,
    "robustness": 2 * (7 * 4 + 2 * 2),
    "detection": 4 * 4,
    "heterogeneity": 2 * 6 * 4,
    "pmr": 12 * 2,
    "churn": 3 * 3,
    "kappa": 4 * 7,
    "ablation": 2 * 2 * 4,
    "convergence": 2 * 2 * 4,
    "elimination": 2,
}
"""How many settings the paper's tables and figures have; N/A is none."""
NOT_APPLICABLE = {"N/A"}


def config_of(table, cell, **options):
    options = {"scale": "paper", "local": "steps", "seed": 0, "changes": {}} | options
    return table.config(cell, options.pop("variant", cell.variants[0]), **options)


def printed_rows(name):
    path = files("g2uardfl.experiments.paper").joinpath(f"{name}.csv")
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.is_file() else []


@pytest.mark.parametrize(("name", "count"), CELLS.items())
def test_a_table_has_every_setting_of_the_papers(name, count):
    assert len(load(name).cells) == count


@each_table
def test_every_cell_has_a_config_at_both_scales_and_with_steps_and_epochs(name):
    table = load(name)
    for cell in table.cells:
        for variant in cell.variants:
            for scale in ("smoke", "paper"):
                for local in ("steps", "epochs"):
                    config = config_of(table, cell, variant=variant, scale=scale, local=local)
                    assert (config.local_steps, config.local_epochs) == ((2, None) if local == "steps" else (None, 2))
                    assert config.defense_settings.get("profile", "") == variant
                    create(config.defense, **config.defense_settings)


@each_table
def test_the_papers_setting_is_that_of_every_table(name):
    table = load(name)
    changed = {axis for axis in ("pmr", "churn") if axis in table.axes}
    for cell in table.cells:
        config = config_of(table, cell)
        assert (config.clients, config.per_round, config.rounds, config.pdr) == (200, 10, 600, 0.5)
        assert changed or config.pmr == (0.0 if "Benign setting" in cell.labels else 0.25)
        assert "churn" in changed or config.churn == 0.0
        assert config.start == ("scratch" if name == "convergence" else "converged")


@each_table
def test_every_printed_number_is_that_of_one_cell(name):
    table = load(name)
    for row in printed_rows(name):
        figures = {figure: row[figure] for figure in table.figures if figure in row}
        matching = [
            cell
            for cell in table.cells
            if all(row.get(axis, label) == label for axis, label in zip(table.axes, cell.labels, strict=True))
        ]
        assert matching or set(figures.values()) == NOT_APPLICABLE, row
        for cell in matching:
            shown = {
                name: value if isinstance(value, str) else f"{value or 0:.2f}" for name, value in cell.printed.items()
            }
            assert shown == {figure: figures.get(figure) or "0.00" for figure in table.figures}


def test_some_printed_numbers_are_those_of_the_paper():
    def printed(name, *labels):
        (cell,) = [cell for cell in load(name).cells if cell.labels == labels]
        return cell.printed

    assert printed("effectiveness", "Krum", "mnist") == {"asr": 93.30, "acc": 93.97, "ds": 1.39}
    assert printed("effectiveness", "DeepSight", "reddit") == {"asr": "OOM", "acc": "OOM", "ds": "OOM"}
    assert printed("effectiveness", "Benign setting", "cifar10") == {"asr": 9.93, "acc": 73.71, "ds": None}
    assert printed("robustness", "DBA", "G²uardFL", "mnist") == {"asr": 18.63, "acc": 99.28}
    assert printed("detection", "G²uardFL without elimination", "reddit")["recall"] == 97.39
    assert printed("pmr", "0.55", "G²uardFL") == {"asr": 78.33, "acc": 82.30}
    assert printed("churn", "15 %", "No defense") == {"asr": 50.56, "acc": 83.62}
    assert printed("kappa", "κ3 = 0.6") == {"asr": 5.00, "acc": 84.07}
    assert printed("ablation", "G²uardFL without elimination", "cifar10", "0.05") == {"asr": 79.44, "acc": 79.93}
    assert printed("convergence", "G²uardFL", "sentiment140", "0.05") == {"acc": 51.77}
    assert printed("heterogeneity", "0.05", "G²uardFL", "mnist") == {"asr": None, "acc": None}


def test_printed_scores_that_contradict_their_formula_are_recomputed():
    """DS = 2 ACC (1 - ASR) / (ACC + 1 - ASR), of the printed ASR and ACC."""
    found = {(name, cell.labels): cell.recomputed for name in TABLES for cell in load(name).cells if cell.recomputed}
    expected = {
        ("effectiveness", ("Krum", "mnist")): 2 * 0.9397 * 0.067 / (0.9397 + 0.067),
        ("effectiveness", ("RLR", "sentiment140")): 2 * 0.7544 * 0.7228 / (0.7544 + 0.7228),
    }
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == {"ds": pytest.approx(100 * value)}


def test_the_guard_has_both_profiles_and_other_defences_one_variant():
    for cell in load("effectiveness").cells:
        assert cell.variants == (("paper", "default") if cell.settings["defense"] == "g2uardfl" else ("",))


def test_factors_of_the_paper_profile_alone_have_that_profile_alone():
    for name in ("kappa", "readings"):
        assert {cell.variants for cell in load(name).cells} == {("paper",)}
    for name in ("detection", "ablation", "elimination"):
        for cell in load(name).cells:
            if "G²uardFL without elimination" in cell.labels:
                assert cell.variants == ("paper",)


def test_each_factor_changes_one_setting_and_all_four_rows_have_the_defaults_once():
    table = load("kappa")
    settings = [dict(config_of(table, cell).defense_settings) for cell in table.cells]
    assert all(len(one) == 2 for one in settings)
    values = {tuple(sorted(one)): [] for one in settings}
    for one in settings:
        values[tuple(sorted(one))].extend(value for key, value in one.items() if key != "profile")
    usual = {"attribute_history": 0.1, "relation_history": 0.1, "cluster_size_weight": 0.3, "score_step": 0.5}
    for keys, listed in values.items():
        (name,) = set(keys) - {"profile"}
        assert len(listed) == 7
        assert usual[name] in listed


def test_3dfed_has_the_models_of_its_authors_and_is_not_run_on_text():
    for name in ("effectiveness", "robustness", "detection"):
        table = load(name)
        for cell in table.cells:
            config = config_of(table, cell)
            own = {"mnist": "simplenet", "cifar10": "resnet18"}
            assert config.model == (own[config.task] if config.attack == "three_d_fed" else "")


def test_images_have_three_seeds_in_the_four_main_tables_and_everything_else_one():
    for name in TABLES:
        table = load(name)
        for cell in table.cells:
            task = cell.settings["task"]
            main = name in ("effectiveness", "robustness", "detection", "pmr")
            assert cell.seeds == (3 if main and task in ("mnist", "cifar10") else 1), (name, cell.labels)


def test_a_smoke_run_differs_from_the_papers_only_in_size_and_start():
    table = load("ablation")
    for cell in table.cells:
        smoke, paper = (flat_settings(config_of(table, cell, scale=scale)) for scale in ("smoke", "paper"))
        differ = {name for name in smoke if smoke[name] != paper[name]}
        assert differ <= set(table.shared["smoke"])
        assert smoke["clients"] < 20


def test_changes_take_precedence():
    table = load("churn")
    config = config_of(table, table.cells[0], changes={"rounds": 7, "device": "cuda"}, seed=4)
    assert (config.rounds, config.device, config.seed) == (7, "cuda", 4)


def test_an_unknown_table_is_a_clear_error():
    with pytest.raises(ConfigError, match="there is no table 'efectiveness': did you mean effectiveness"):
        load("efectiveness")


def test_a_table_of_ones_own_is_a_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('title = "Mine"\nfigures = ["asr"]\n[settings]\ntask = "digits"\n[axes]\ndefense = ["Krum"]\n')
    path.with_suffix(".csv").write_text("defense,asr\nKrum,12.5\n")
    table = load(str(path))
    assert (table.name, [cell.printed for cell in table.cells]) == ("mine", [{"asr": 12.5}])
    assert config_of(table, table.cells[0]).task == "digits"
    path.write_text("title = ")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(str(path))


def test_no_two_cells_of_a_table_are_the_same():
    for name in TABLES:
        table = load(name)
        configs = [config_of(table, cell, variant=variant) for cell in table.cells for variant in cell.variants]
        assert len({repr(dataclasses.asdict(config)) for config in configs}) == len(configs), name
