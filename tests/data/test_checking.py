"""The catalogue, and the states of files and data sets."""

from __future__ import annotations

import hashlib
import json

import pytest

from g2uardfl import data
from g2uardfl.core.errors import ConfigError
from g2uardfl.data import catalogue
from helpers.data_sets import store


def test_the_catalogue_is_complete():
    assert data.names() == ["mnist", "cifar10", "ardis", "southwest", "greek_director", "sentiment140", "reddit"]
    for dataset in data.DATASETS:
        assert dataset.purpose
        assert dataset.licence
        assert dataset.source
        assert dataset.citation
        for stored in dataset.files:
            assert stored.path.startswith(f"{dataset.name}/")
            assert len(bytes.fromhex(stored.sha256)) == 32
            assert all(len(bytes.fromhex(original.md5)) == 16 for original in stored.originals)


def test_an_unknown_data_set_is_rejected_with_the_known_ones():
    with pytest.raises(ConfigError, match="mnist, cifar10"):
        data.find("imagenet")


def test_the_state_of_a_data_set_follows_from_its_files(tmp_path):
    def state() -> str:
        return data.check_dataset(catalogue.GREEK_DIRECTOR, tmp_path, data.read_manifest(tmp_path)).state

    assert state() == "missing"
    store(tmp_path, "greek_director/train.txt", b"one")
    assert state() == "incomplete"
    path = store(tmp_path, "greek_director/test.txt", b"two")
    assert state() == "as imported"
    path.write_bytes(b"three")
    assert state() == "altered"


def test_an_optional_file_may_be_missing(tmp_path):
    store(tmp_path, "ardis/ardis_iv.npz", b"content")
    assert data.check_dataset(catalogue.ARDIS, tmp_path, data.read_manifest(tmp_path)).state == "as imported"


def test_the_manifest_is_readable_json(tmp_path):
    store(tmp_path, "greek_director/train.txt", b"one")
    content = json.loads((tmp_path / "manifest.json").read_text())
    assert content["files"]["greek_director/train.txt"]["sha256"] == hashlib.sha256(b"one").hexdigest()
