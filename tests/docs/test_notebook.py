"""The notebook in `examples/` runs, and shows what its text says."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples/simulate.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The cells of the notebook after their execution in an empty folder."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
    )
    return client.execute().cells


def shown(cells, code):
    """What the cell with some code shows, by MIME type."""
    (cell,) = (cell for cell in cells if code in cell.source)
    return cell.outputs[-1].data


def test_the_notebook_is_kept_without_outputs():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert all(not cell.outputs and cell.execution_count is None for cell in cells if cell.cell_type == "code")


@pytest.mark.slow
def test_the_notebook_runs_and_shows_tables_and_a_figure(executed):
    assert "g2uardfl against black_box on digits, 12 rounds" in shown(executed, "undefended, guarded")["text/plain"]
    assert "attacking_refused" in shown(executed, "guarded.rounds[")["text/html"]
    assert "malicious" in shown(executed, "groupby([")["text/plain"]
    assert shown(executed, "undefended.plot()")["image/svg+xml"].startswith("<svg")
    assert "stop_when is met" in shown(executed, "norms = Norms()")["text/plain"]
    assert "g2uardfl" in shown(executed, "load_runs(")["text/plain"]
