"""The committed pages of the paper's tables are those that the command makes of their CSV files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from g2uardfl.experiments.paper.results import Results
from g2uardfl.experiments.paper.table import load
from g2uardfl.report.reproduction import write_pages

RESULTS = Path(__file__).parents[2] / "docs/results"
TABLES = {"robustness": "robustness", "readings": "readings", "rules": str(RESULTS / "tables/rules.toml")}


@pytest.mark.parametrize("name", TABLES)
def test_a_committed_page_is_the_one_made_of_its_csv_and_has_its_explanation(name, tmp_path):
    shutil.copytree(RESULTS / "notes", tmp_path / "notes")
    results = Results.from_csv(load(TABLES[name]), RESULTS / f"{name}.csv")
    for path in write_pages(results, tmp_path):
        if path.suffix != ".html":
            assert path.read_text(encoding="utf-8") == (RESULTS / path.name).read_text(encoding="utf-8"), path.name
    explanation = (RESULTS / "notes" / f"{name}.md").read_text(encoding="utf-8")
    assert explanation.strip() in (RESULTS / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", TABLES)
def test_the_runs_of_a_committed_page_have_the_papers_scale_a_commit_and_a_device(name):
    for run in Results.from_csv(load(TABLES[name]), RESULTS / f"{name}.csv").runs:
        assert run.scale == "paper"
        assert run.commit
        assert run.device
