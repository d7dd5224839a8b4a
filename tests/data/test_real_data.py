"""The real data sets: checksums, counts and sizes."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from g2uardfl import data
from g2uardfl.core.errors import DataError
from g2uardfl.data import catalogue
from g2uardfl.data.originals import idx_bytes
from helpers.data_sets import MNIST_TEST_COUNTS, MNIST_TRAIN_COUNTS


@pytest.mark.parametrize("dataset", data.DATASETS, ids=lambda dataset: dataset.name)
def test_every_file_is_verified(real_data, dataset):
    assert data.check_dataset(dataset, real_data, data.read_manifest(real_data)).state == "verified"


def test_mnist_has_the_published_files_and_class_counts(real_data):
    stored = data.load_arrays("mnist/mnist.npz", real_data)
    for original in catalogue.MNIST.files[0].originals:
        assert hashlib.md5(idx_bytes(stored[original.array])).hexdigest() == original.md5
    assert tuple(np.bincount(stored["y_train"])) == MNIST_TRAIN_COUNTS
    assert tuple(np.bincount(stored["y_test"])) == MNIST_TEST_COUNTS


def test_cifar10_decodes_to_the_known_images_and_encodes_to_the_stored_ones(real_data):
    stored = data.load_arrays("cifar10/test_batch.npz", real_data)
    images = data.decode_images(stored["residual"])
    digest = hashlib.sha256(images.tobytes()).hexdigest()
    assert digest == "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04"
    assert np.bincount(stored["labels"]).tolist() == [1000] * 10
    np.testing.assert_array_equal(data.encode_images(images), stored["residual"])


def test_a_copy_is_verified_by_its_content_and_rejected_once_it_is_altered(real_data, tmp_path):
    stored = data.load_arrays("cifar10/test_batch.npz", real_data)
    (tmp_path / "cifar10").mkdir()
    np.savez(tmp_path / "cifar10" / "test_batch.npz", **stored)  # the same images, but other bytes
    np.testing.assert_array_equal(data.load_arrays("cifar10/test_batch.npz", tmp_path)["labels"], stored["labels"])
    assert data.check_file(catalogue.CIFAR10.files[5], tmp_path, {}).state == "verified"
    stored["labels"][0] = (stored["labels"][0] + 1) % 10
    np.savez(tmp_path / "cifar10" / "test_batch.npz", **stored)
    with pytest.raises(DataError, match="altered"):
        data.load_arrays("cifar10/test_batch.npz", tmp_path)


def test_tables_and_lines_have_the_documented_size(real_data):
    tweets = list(data.read_table("sentiment140/sentiment140_random20k.tsv.gz", real_data))
    assert list(tweets[0]) == ["label", "date", "user_id", "in_100k", "text"]
    assert len(tweets) == 20_000
    assert sum(row["in_100k"] == "0" for row in tweets) == 18_735
    assert sum(1 for _ in data.read_table("reddit/reddit2015_threads.tsv.gz", real_data)) == 196_385
    assert len(data.read_lines("greek_director/test.txt", real_data)) == 120
