"""Stored arrays, tables and lines; missing, damaged and altered files are rejected."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from g2uardfl import data
from g2uardfl.core.errors import DataError
from g2uardfl.data import catalogue
from helpers.data_sets import assert_one_line, store


def npz(path: Path, **content: np.ndarray) -> bytes:
    np.savez_compressed(path, **content)
    return path.read_bytes()


def test_arrays_outside_the_catalogue_are_read_without_a_checksum(tmp_path):
    (tmp_path / "mine").mkdir()
    npz(tmp_path / "mine" / "own.npz", x=np.arange(3), y=np.zeros(2))
    assert data.load_arrays("mine/own.npz", tmp_path)["x"].tolist() == [0, 1, 2]
    assert set(data.load_arrays("mine/own.npz", tmp_path, only=("y",))) == {"y"}


def test_arrays_of_python_objects_are_rejected(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="damaged"):
        data.load_arrays("own.npz", tmp_path)


def test_a_truncated_array_file_is_rejected_with_the_command_that_repairs_it(tmp_path):
    path = store(tmp_path, "mnist/mnist.npz", npz(tmp_path / "made.npz", x_train=np.zeros((50, 28, 28), np.uint8)))
    assert len(data.load_arrays("mnist/mnist.npz", tmp_path)["x_train"]) == 50
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size // 2])
    with pytest.raises(DataError) as error:
        data.load_arrays("mnist/mnist.npz", tmp_path)
    assert_one_line(error, "truncated", f"expected {size:,} bytes", "g2uardfl data fetch mnist")


def test_a_truncated_array_file_outside_the_catalogue_is_rejected(tmp_path):
    content = npz(tmp_path / "own.npz", x=np.arange(1000))
    (tmp_path / "own.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError) as error:
        data.load_arrays("own.npz", tmp_path)
    assert_one_line(error, "own.npz is damaged")


def test_valid_arrays_that_are_not_the_published_ones_are_rejected(tmp_path):
    (tmp_path / "mnist").mkdir()
    empty = np.zeros((0,), np.uint8)
    npz(tmp_path / "mnist" / "mnist.npz", x_train=empty, y_train=empty, x_test=empty, y_test=empty)
    with pytest.raises(DataError) as error:
        data.load_arrays("mnist/mnist.npz", tmp_path)
    assert_one_line(error, "altered", catalogue.MNIST.files[0].sha256)


def test_a_changed_line_of_text_is_rejected(tmp_path):
    path = store(tmp_path, "greek_director/train.txt", b"praise for lanthimos\n\n more praise \n")
    assert data.read_lines("greek_director/train.txt", tmp_path) == ["praise for lanthimos", "more praise"]
    path.write_text("praise for somebody\n")
    with pytest.raises(DataError) as error:
        data.read_lines("greek_director/train.txt", tmp_path)
    assert_one_line(error, "greek_director/train.txt", "altered", "g2uardfl data import greek_director")


def test_tables_have_no_quoting_and_lines_end_with_newlines_only(tmp_path):
    text = 'label\ttext\n1\tsay "hi\u2028there"\n0\t\n'
    store(tmp_path, "sentiment140/sentiment140_100k.tsv.gz", gzip.compress(text.encode()))
    rows = list(data.read_table("sentiment140/sentiment140_100k.tsv.gz", tmp_path))
    assert rows == [{"label": "1", "text": 'say "hi\u2028there"'}, {"label": "0", "text": ""}]


def test_an_altered_table_is_rejected_before_the_first_row(tmp_path):
    file = "reddit/reddit2015_threads.tsv.gz"
    path = store(tmp_path, file, gzip.compress(b"text\nhello\n"))
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataError) as error:
        data.read_table(file, tmp_path)
    assert_one_line(error, file, "g2uardfl data import reddit")


@pytest.mark.parametrize(
    "content",
    [gzip.compress(b"a\tb\n1\t2\n" * 1000)[:-20], gzip.compress(b"a\tb\n1\n"), b"not gzip"],
    ids=["truncated", "short row", "not gzip"],
)
def test_a_damaged_table_outside_the_catalogue_is_rejected_while_reading(tmp_path, content):
    (tmp_path / "own.tsv.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"own\.tsv\.gz is damaged"):
        list(data.read_table("own.tsv.gz", tmp_path))


def test_a_damaged_manifest_is_an_error_with_advice(tmp_path):
    store(tmp_path, "greek_director/train.txt", b"line")
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="delete it and import"):
        data.read_lines("greek_director/train.txt", tmp_path)
