"""The location of the data folder, and errors about missing files."""

from __future__ import annotations

import pytest

from g2uardfl import data
from g2uardfl.core.errors import DataError
from helpers.data_sets import assert_one_line, store


def test_the_folder_is_the_explicit_one_else_the_environments_else_the_platforms(monkeypatch, tmp_path):
    monkeypatch.setenv("G2UARDFL_DATA", str(tmp_path / "environment"))
    assert data.data_dir(tmp_path / "explicit") == tmp_path / "explicit"
    assert data.data_dir(None) == tmp_path / "environment"
    monkeypatch.delenv("G2UARDFL_DATA")
    assert data.data_dir(None).parts[-2:] == ("g2uardfl", "data")


def test_locate_finds_a_stored_file(tmp_path):
    path = store(tmp_path, "mnist/mnist.npz", b"anything")
    assert data.locate("mnist/mnist.npz", tmp_path) == path


def test_an_error_about_a_missing_file_names_data_set_folder_and_command(tmp_path):
    with pytest.raises(DataError) as error:
        data.locate("mnist/mnist.npz", tmp_path)
    assert_one_line(
        error, "mnist/mnist.npz", "missing", str(tmp_path), f"g2uardfl data fetch mnist --data-dir {tmp_path}"
    )


def test_an_error_about_a_missing_file_without_a_package_names_the_import_command(tmp_path):
    folder = tmp_path / "with a space"
    with pytest.raises(DataError) as error:
        data.load_arrays("ardis/ardis_iv.npz", folder)
    assert_one_line(error, "data set ardis", f"g2uardfl data import ardis FILE... --data-dir '{folder}'")


def test_an_error_about_a_missing_file_outside_the_catalogue_names_no_command(tmp_path):
    with pytest.raises(DataError, match=r"mine/own\.npz is missing"):
        data.load_arrays("mine/own.npz", tmp_path)
