"""The benchmark of the server step: its rounds, and what it writes."""

from __future__ import annotations

import csv
from xml.etree import ElementTree

import numpy as np
import torch

from server_step import clients, growth_plot, markdown, model, renew, write


def row(cell: str, **values) -> dict:
    count, _, size = cell.partition("x")
    parameters = {"0.1M": 1e5, "1.2M": 1.2e6}[size]
    times = {"read ms": 1.0, "fedavg ms": 2.0, "default ms": 9.0 * float(count)}
    return {"cell": cell, "parameters": parameters, **times, **values}


def test_the_next_rounds_updates_have_the_same_norms_and_other_directions():
    weights = model(20, np.random.default_rng(0))
    for kind in (np.asarray, torch.tensor):
        start = {name: kind(array) for name, array in weights.items()}
        sent = {
            i: {name: kind(a) for name, a in one.items()}
            for i, one in clients(weights, 3, np.random.default_rng(1)).items()
        }
        before = np.concatenate([np.ravel(sent[1][name] - start[name]) for name in start])
        renew(start, sent, 1)
        after = np.concatenate([np.ravel(sent[1][name] - start[name]) for name in start])
        np.testing.assert_allclose(np.linalg.norm(after), np.linalg.norm(before), rtol=1e-3)
        assert abs(before @ after) < 0.3 * (before @ before)


def test_a_cell_that_is_measured_again_replaces_only_its_row(tmp_path):
    page = tmp_path / "server-step.md"
    page.write_text("before\n<!-- cpu -->\nold\n<!-- end of cpu -->\nafter\n<!-- cuda -->\n<!-- end of cuda -->\n")
    for measured in (row("100x0.1M"), row("10x0.1M"), row("10x0.1M", load=7.5)):
        write(tmp_path, "cpu", measured)
    with (tmp_path / "data" / "server-step-cpu.csv").open(newline="") as file:
        assert {one["cell"]: one["load"] for one in csv.DictReader(file)} == {"100x0.1M": "", "10x0.1M": "7.5"}
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("before\n<!-- cpu -->\n| clients x parameters |")
    assert text.endswith("<!-- end of cpu -->\nafter\n<!-- cuda -->\n<!-- end of cuda -->\n")
    assert text.index("10 x 0.1M") < text.index("100 x 0.1M")


def test_the_plot_is_an_svg_of_both_directions_of_growth():
    found = ElementTree.fromstring(growth_plot([row("10x0.1M"), row("100x0.1M"), row("10x1.2M")]))
    texts = [one.text for one in found.iter() if one.tag.endswith("text")]
    assert texts.count("default") == 2
    assert {"clients, 0.1M parameters each", "parameters, 10 clients"} <= set(texts)


def test_the_table_leaves_out_what_was_not_measured():
    assert "| 10 x 0.1M | 1.0 |  | 2.0 | 90.0 |" in markdown([row("10x0.1M")], "cpu")
