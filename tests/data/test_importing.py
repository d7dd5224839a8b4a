"""Imports: archives, verification, errors, and a data folder that stays unchanged after them."""

from __future__ import annotations

import os
import tarfile

import pytest

from g2uardfl import data
from g2uardfl.core.errors import DataError
from helpers.data_sets import DIGIT_LABELS, DIGITS, files_in, idx, write_mnist


def test_stored_files_are_readable_by_other_users(tmp_path):
    umask = os.umask(0o022)
    try:
        data.import_dataset("mnist", write_mnist(tmp_path / "in"), tmp_path / "data")
    finally:
        os.umask(umask)
    for file in ("manifest.json", "mnist/mnist.npz"):
        assert (tmp_path / "data" / file).stat().st_mode & 0o777 == 0o644


def test_a_folder_and_a_tar_archive_give_the_same_file(tmp_path):
    write_mnist(tmp_path / "in")
    with tarfile.open(tmp_path / "mnist.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "in", "package/data")
    for number, source in enumerate((tmp_path / "in", tmp_path / "mnist.tar.gz")):
        data.import_dataset("mnist", [source], tmp_path / str(number))
    first, second = (tmp_path / str(number) / "mnist" / "mnist.npz" for number in range(2))
    assert first.read_bytes() == second.read_bytes()


def test_an_import_without_a_needed_file_names_it_and_stores_nothing(tmp_path):
    with pytest.raises(DataError, match=r"no file contains y_test of mnist.*t10k-labels-idx1-ubyte\.gz"):
        data.import_dataset("mnist", write_mnist(tmp_path / "in")[:3], tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("keep", [-30, 2, 10])
def test_a_truncated_idx_file_is_rejected_and_nothing_is_stored(tmp_path, keep):
    files = write_mnist(tmp_path / "in", packed=False)
    files[0].write_bytes(files[0].read_bytes()[:keep])
    with pytest.raises(DataError, match="train-images"):
        data.import_dataset("mnist", files, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_truncated_gz_file_is_rejected(tmp_path):
    files = write_mnist(tmp_path / "in")
    files[2].write_bytes(files[2].read_bytes()[:-100])
    with pytest.raises(DataError, match=r"t10k-images.*cannot be read"):
        data.import_dataset("mnist", files, tmp_path / "data")


def test_a_file_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(DataError, match="nowhere does not exist"):
        data.import_dataset("mnist", [tmp_path / "nowhere"], tmp_path)


def test_different_numbers_of_images_and_labels_are_rejected(tmp_path):
    files = write_mnist(tmp_path / "in", packed=False)
    files[1].write_bytes(idx(DIGIT_LABELS[:7]))
    with pytest.raises(DataError, match="8 images, 7 labels"):
        data.import_dataset("mnist", files, tmp_path / "data")


@pytest.mark.usefixtures("small_mnist_is_published")
def test_the_published_files_are_verified_by_their_md5(tmp_path):
    imported = data.import_dataset("mnist", write_mnist(tmp_path / "in"), tmp_path / "data")
    assert imported.remarks == ()
    assert data.check_dataset(data.find("mnist"), tmp_path / "data", {}).state == "verified"


@pytest.mark.usefixtures("small_mnist_is_published")
def test_an_altered_file_with_the_published_number_of_samples_is_rejected(tmp_path):
    files = write_mnist(tmp_path / "in", packed=False)
    content = bytearray(files[0].read_bytes())
    content[100] ^= 1
    files[0].write_bytes(content)
    with pytest.raises(DataError, match="train-images-idx3-ubyte is altered: expected md5"):
        data.import_dataset("mnist", files, tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.usefixtures("small_mnist_is_published")
def test_a_failed_import_leaves_the_stored_files_unchanged(tmp_path):
    folder = tmp_path / "data"
    files = write_mnist(tmp_path / "in", packed=False)
    data.import_dataset("mnist", files, folder)
    before = {name: (folder / name).read_bytes() for name in files_in(folder) if (folder / name).is_file()}
    files[0].write_bytes(idx(DIGITS[1:9]))
    with pytest.raises(DataError):
        data.import_dataset("mnist", files, folder)
    assert {name: (folder / name).read_bytes() for name in files_in(folder) if (folder / name).is_file()} == before


def test_an_unsupported_archive_format_is_rejected(tmp_path):
    (tmp_path / "RC_2017-11.zst").write_bytes(b"(\xb5/\xfd")
    with pytest.raises(DataError, match="unpack it"):
        data.import_dataset("reddit", [tmp_path / "RC_2017-11.zst"], tmp_path / "data")


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path):
    (tmp_path / "data").write_text("a file instead of a folder")
    with pytest.raises(DataError, match="cannot write to"):
        data.import_dataset("mnist", write_mnist(tmp_path / "in"), tmp_path / "data")
