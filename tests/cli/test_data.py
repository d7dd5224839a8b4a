"""`g2uardfl data`: status, verify, fetch and import."""

from __future__ import annotations

import pytest

from g2uardfl import data
from helpers.command_line import run_python
from helpers.data_sets import store, write_mnist


def test_status_of_an_empty_folder_lists_every_data_set_as_missing(cli, tmp_path):
    result = cli("data", "status", "--data-dir", tmp_path)
    assert result.status == 0
    for dataset in data.DATASETS:
        assert dataset.name in result.stdout
    assert "research only; redistribution is not allowed" in result.stdout
    assert "verified" not in result.stdout


def test_verify_passes_for_intact_files_and_fails_for_altered_ones(cli, tmp_path):
    store(tmp_path, "greek_director/train.txt", b"one")
    path = store(tmp_path, "greek_director/test.txt", b"two")
    assert cli("data", "verify", "--data-dir", tmp_path).status == 0
    path.write_bytes(b"changed")
    result = cli("data", "verify", "--data-dir", tmp_path)
    assert result.status == 1
    assert "greek_director is altered" in result.stderr
    assert "g2uardfl data import greek_director" in result.stderr


def test_verify_fails_for_a_missing_data_set_that_is_named_and_for_an_incomplete_one(cli, tmp_path):
    assert cli("data", "verify", "--data-dir", tmp_path).status == 0
    assert cli("data", "verify", "mnist", "--data-dir", tmp_path).status == 1
    store(tmp_path, "greek_director/train.txt", b"one")
    assert cli("data", "verify", "--data-dir", tmp_path).status == 1


@pytest.mark.parametrize("argument", ["imagenet", "--no-such-option"])
def test_an_unknown_data_set_or_option_is_a_one_line_error(cli, argument):
    result = cli("data", "verify", argument)
    assert result.status == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert argument in result.stderr


@pytest.mark.parametrize("name", ["ardis", "southwest", "greek_director", "sentiment140", "reddit"])
def test_fetching_a_data_set_without_a_package_prints_its_source_in_three_lines(cli, tmp_path, name):
    result = cli("data", "fetch", name, "--data-dir", tmp_path)
    assert result.status == 1
    source, licence, command = result.stderr.strip().splitlines()
    assert data.find(name).source in source
    assert data.find(name).licence in licence
    assert f"g2uardfl data import {name} " in command
    assert list(tmp_path.iterdir()) == []


def test_import_stores_the_files_and_prints_remarks(cli, tmp_path):
    write_mnist(tmp_path / "in")
    result = cli("data", "import", "mnist", tmp_path / "in", "--data-dir", tmp_path / "data")
    assert result.status == 0, result.stderr
    assert f"stored {tmp_path / 'data' / 'mnist' / 'mnist.npz'}" in result.stdout
    assert "not the 60,000 published" in result.stderr
    assert "as imported" in cli("data", "status", "--data-dir", tmp_path / "data").stdout


def test_help_imports_neither_numpy_nor_torch():
    result = run_python("""
import sys
from typer.testing import CliRunner
from g2uardfl.cli.data import app
result = CliRunner().invoke(app, ["--help"])
print(result.exit_code, "import" in result.output, "numpy" in sys.modules, "torch" in sys.modules)
""")
    assert result.stdout.split() == ["0", "True", "False", "False"], result.stderr


def test_status_and_verify_accept_the_real_data(cli, real_data):
    status = cli("data", "status", "--data-dir", real_data)
    assert status.stdout.count("verified") == len(data.DATASETS)
    assert cli("data", "verify", *data.names(), "--data-dir", real_data).status == 0
