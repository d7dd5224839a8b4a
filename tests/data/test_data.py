"""The data folder: where it is, how it is read, and that nothing missing, damaged or altered passes for data."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from typer.testing import CliRunner

from g2uardfl import data
from g2uardfl.cli.data import app
from g2uardfl.core.errors import ConfigError, DataError
from g2uardfl.data import catalogue
from helpers.processes import PATIENCE

cli = CliRunner()


def store(folder: Path, file: str, content: bytes) -> Path:
    """Put a file into a data folder and into its manifest, as an import does."""
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    data.record(folder, {file: data.Entry(hashlib.sha256(content).hexdigest(), len(content))})
    return path


def npz(path: Path, **content: np.ndarray) -> bytes:
    np.savez_compressed(path, **content)
    return path.read_bytes()


def assert_one_line_that_repairs(error: pytest.ExceptionInfo[DataError], *words: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


# Where the folder is


def test_the_folder_is_the_explicit_one_then_the_environment_then_the_platform_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("G2UARDFL_DATA", str(tmp_path / "environment"))
    assert data.data_dir(tmp_path / "explicit") == tmp_path / "explicit"
    assert data.data_dir(None) == tmp_path / "environment"
    monkeypatch.delenv("G2UARDFL_DATA")
    assert data.data_dir(None).parts[-2:] == ("g2uardfl", "data")


def test_locate_finds_a_stored_file(tmp_path):
    path = store(tmp_path, "mnist/mnist.npz", b"anything")
    assert data.locate("mnist/mnist.npz", tmp_path) == path


def test_a_missing_file_names_the_set_the_folder_and_the_command_that_fetches_it(tmp_path):
    with pytest.raises(DataError) as error:
        data.locate("mnist/mnist.npz", tmp_path)
    assert_one_line_that_repairs(
        error, "mnist/mnist.npz", "missing", str(tmp_path), f"g2uardfl data fetch mnist --data-dir {tmp_path}"
    )


def test_a_missing_file_that_cannot_be_fetched_names_the_import_command(tmp_path):
    folder = tmp_path / "with a space"
    with pytest.raises(DataError) as error:
        data.load_arrays("ardis/ardis_iv.npz", folder)
    assert_one_line_that_repairs(error, "data set ardis", f"g2uardfl data import ardis FILE... --data-dir '{folder}'")


def test_a_missing_file_of_somebody_else_is_named_without_a_command(tmp_path):
    with pytest.raises(DataError, match=r"mine/own\.npz is missing"):
        data.load_arrays("mine/own.npz", tmp_path)


# Reading


def test_arrays_of_somebody_else_are_read_without_a_checksum(tmp_path):
    (tmp_path / "mine").mkdir()
    npz(tmp_path / "mine" / "own.npz", x=np.arange(3), y=np.zeros(2))
    assert data.load_arrays("mine/own.npz", tmp_path)["x"].tolist() == [0, 1, 2]
    assert set(data.load_arrays("mine/own.npz", tmp_path, only=("y",))) == {"y"}


def test_arrays_of_python_objects_are_refused(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="damaged"):
        data.load_arrays("own.npz", tmp_path)


def test_a_truncated_array_file_of_ours_is_refused_with_the_repair(tmp_path):
    path = store(tmp_path, "mnist/mnist.npz", npz(tmp_path / "made.npz", x_train=np.zeros((50, 28, 28), np.uint8)))
    assert len(data.load_arrays("mnist/mnist.npz", tmp_path)["x_train"]) == 50
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size // 2])
    with pytest.raises(DataError) as error:
        data.load_arrays("mnist/mnist.npz", tmp_path)
    assert_one_line_that_repairs(error, "truncated", f"expected {size:,} bytes", "g2uardfl data fetch mnist")


def test_a_truncated_array_file_of_somebody_else_is_refused(tmp_path):
    content = npz(tmp_path / "own.npz", x=np.arange(1000))
    (tmp_path / "own.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError) as error:
        data.load_arrays("own.npz", tmp_path)
    assert_one_line_that_repairs(error, "own.npz is damaged")


def test_well_formed_arrays_that_are_not_the_published_ones_are_refused(tmp_path):
    (tmp_path / "mnist").mkdir()
    empty = np.zeros((0,), np.uint8)
    npz(tmp_path / "mnist" / "mnist.npz", x_train=empty, y_train=empty, x_test=empty, y_test=empty)
    with pytest.raises(DataError) as error:
        data.load_arrays("mnist/mnist.npz", tmp_path)
    assert_one_line_that_repairs(error, "altered", catalogue.MNIST.files[0].sha256)


def test_a_changed_line_of_text_is_refused(tmp_path):
    path = store(tmp_path, "greek_director/train.txt", b"praise for lanthimos\n\n more praise \n")
    assert data.read_lines("greek_director/train.txt", tmp_path) == ["praise for lanthimos", "more praise"]
    path.write_text("praise for somebody\n")
    with pytest.raises(DataError) as error:
        data.read_lines("greek_director/train.txt", tmp_path)
    assert_one_line_that_repairs(error, "greek_director/train.txt", "altered", "g2uardfl data import greek_director")


def test_a_table_is_read_without_quoting_and_splits_lines_at_newlines_only(tmp_path):
    text = 'label\ttext\n1\tsay "hi\u2028there"\n0\t\n'
    store(tmp_path, "sentiment140/sentiment140_100k.tsv.gz", gzip.compress(text.encode()))
    rows = list(data.read_table("sentiment140/sentiment140_100k.tsv.gz", tmp_path))
    assert rows == [{"label": "1", "text": 'say "hi\u2028there"'}, {"label": "0", "text": ""}]


def test_an_altered_table_is_refused_before_the_first_row(tmp_path):
    file = "reddit/reddit2015_threads.tsv.gz"
    path = store(tmp_path, file, gzip.compress(b"text\nhello\n"))
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataError) as error:
        data.read_table(file, tmp_path)
    assert_one_line_that_repairs(error, file, "g2uardfl data import reddit")


@pytest.mark.parametrize(
    "content",
    [gzip.compress(b"a\tb\n1\t2\n" * 1000)[:-20], gzip.compress(b"a\tb\n1\n"), b"not gzip"],
    ids=["cut", "short row", "not gzip"],
)
def test_a_damaged_table_of_somebody_else_is_refused_while_reading(tmp_path, content):
    (tmp_path / "own.tsv.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"own\.tsv\.gz is damaged"):
        list(data.read_table("own.tsv.gz", tmp_path))


def test_a_damaged_manifest_says_what_to_do(tmp_path):
    store(tmp_path, "greek_director/train.txt", b"line")
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="delete it and import"):
        data.read_lines("greek_director/train.txt", tmp_path)


# The coding of the CIFAR-10 images


@given(arrays(np.uint8, st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5), st.just(3))))
def test_decoding_inverts_encoding(images):
    residual = data.encode_images(images)
    assert residual.shape == (3, *images.shape[:3])
    np.testing.assert_array_equal(data.decode_images(residual), images)


def test_the_residual_is_what_its_description_says():
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (1, 4, 5, 3), dtype=np.uint8)
    residual = data.encode_images(image)
    for channel in range(3):
        for y in range(4):
            for x in range(5):

                def plane(row: int, column: int, channel: int = channel) -> int:
                    if row < 0 or column < 0:
                        return 0
                    red_green_blue = [int(value) for value in image[0, row, column]]
                    return red_green_blue[channel] - (red_green_blue[1] if channel != 1 else 0)

                down = plane(y, x) - plane(y - 1, x)
                down_on_the_left = plane(y, x - 1) - plane(y - 1, x - 1)
                assert residual[channel, 0, y, x] == (down - down_on_the_left) % 256


# The catalogue and the checks


def test_the_catalogue_has_the_seven_sets_with_whole_checksums():
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


def test_an_unknown_set_names_the_known_ones():
    with pytest.raises(ConfigError, match="mnist, cifar10"):
        data.find("imagenet")


def test_a_set_is_incomplete_altered_or_as_imported_by_its_files(tmp_path):
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


# The command line


def test_status_of_an_empty_folder_lists_every_set_as_not_there(tmp_path):
    result = cli.invoke(app, ["status", "--data-dir", str(tmp_path)])
    assert result.exit_code == 0
    for dataset in data.DATASETS:
        assert dataset.name in result.output
    assert "research only; redistribution is not allowed" in result.output
    assert "verified" not in result.output


def test_verify_passes_on_what_is_intact_and_fails_on_what_is_altered(tmp_path):
    arguments = ["verify", "--data-dir", str(tmp_path)]
    store(tmp_path, "greek_director/train.txt", b"one")
    path = store(tmp_path, "greek_director/test.txt", b"two")
    assert cli.invoke(app, arguments).exit_code == 0
    path.write_bytes(b"changed")
    result = cli.invoke(app, arguments)
    assert result.exit_code == 1
    assert "greek_director is altered" in result.output
    assert "g2uardfl data import greek_director" in result.output


def test_verify_fails_on_a_named_set_that_is_not_there_and_on_half_a_set(tmp_path):
    assert cli.invoke(app, ["verify", "--data-dir", str(tmp_path)]).exit_code == 0
    assert cli.invoke(app, ["verify", "mnist", "--data-dir", str(tmp_path)]).exit_code == 1
    store(tmp_path, "greek_director/train.txt", b"one")
    assert cli.invoke(app, ["verify", "--data-dir", str(tmp_path)]).exit_code == 1


def test_verify_of_an_unknown_set_is_a_usage_error(tmp_path):
    result = cli.invoke(app, ["verify", "imagenet", "--data-dir", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert cli.invoke(app, ["verify", "--no-such-option"]).exit_code == 2


@pytest.mark.parametrize("name", ["ardis", "southwest", "greek_director", "sentiment140", "reddit"])
def test_fetching_what_cannot_be_fetched_says_in_three_lines_how_to_get_it(tmp_path, name):
    result = cli.invoke(app, ["fetch", name, "--data-dir", str(tmp_path)])
    assert result.exit_code == 1
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 3
    assert data.find(name).source in lines[0]
    assert data.find(name).licence in lines[1]
    assert f"g2uardfl data import {name} " in lines[2]
    assert list(tmp_path.iterdir()) == []


def test_help_needs_neither_numpy_nor_torch():
    code = (
        "import sys; from typer.testing import CliRunner; from g2uardfl.cli.data import app; "
        "result = CliRunner().invoke(app, ['--help']); "
        "print(result.exit_code, 'import' in result.output, 'numpy' in sys.modules, 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert result.stdout.split() == ["0", "True", "False", "False"]


# The real data


def test_every_real_file_is_verified(real_data):
    manifest = data.read_manifest(real_data)
    for dataset in data.DATASETS:
        assert data.check_dataset(dataset, real_data, manifest).state == "verified", dataset.name


def test_status_and_verify_agree_on_the_real_data(real_data):
    status = cli.invoke(app, ["status", "--data-dir", str(real_data)])
    assert status.output.count("verified") == len(data.DATASETS)
    assert cli.invoke(app, ["verify", *data.names(), "--data-dir", str(real_data)]).exit_code == 0


def test_mnist_rebuilds_to_the_published_files_and_has_the_published_class_counts(real_data):
    from g2uardfl.data.originals import idx_bytes

    stored = data.load_arrays("mnist/mnist.npz", real_data)
    for original in catalogue.MNIST.files[0].originals:
        assert hashlib.md5(idx_bytes(stored[original.array])).hexdigest() == original.md5
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(stored["y_train"]).tolist() == counts
    assert np.bincount(stored["y_test"]).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_cifar10_decodes_to_the_known_images_and_encodes_back(real_data):
    stored = data.load_arrays("cifar10/test_batch.npz", real_data)
    images = data.decode_images(stored["residual"])
    digest = hashlib.sha256(images.tobytes()).hexdigest()
    assert digest == "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04"
    assert np.bincount(stored["labels"]).tolist() == [1000] * 10
    np.testing.assert_array_equal(data.encode_images(images), stored["residual"])


def test_an_altered_copy_of_a_real_file_is_refused_and_repacking_it_is_not(real_data, tmp_path):
    stored = data.load_arrays("cifar10/test_batch.npz", real_data)
    (tmp_path / "cifar10").mkdir()
    np.savez(tmp_path / "cifar10" / "test_batch.npz", **stored)  # same images, other bytes
    np.testing.assert_array_equal(data.load_arrays("cifar10/test_batch.npz", tmp_path)["labels"], stored["labels"])
    assert data.check_file(catalogue.CIFAR10.files[5], tmp_path, {}).state == "verified"
    stored["labels"][0] = (stored["labels"][0] + 1) % 10
    np.savez(tmp_path / "cifar10" / "test_batch.npz", **stored)
    with pytest.raises(DataError, match="altered"):
        data.load_arrays("cifar10/test_batch.npz", tmp_path)


def test_real_tables_and_lines_have_the_documented_size(real_data):
    random_tweets = list(data.read_table("sentiment140/sentiment140_random20k.tsv.gz", real_data))
    assert list(random_tweets[0]) == ["label", "date", "user_id", "in_100k", "text"]
    assert len(random_tweets) == 20_000
    assert sum(row["in_100k"] == "0" for row in random_tweets) == 18_735
    assert sum(1 for _ in data.read_table("reddit/reddit2015_threads.tsv.gz", real_data)) == 196_385
    assert len(data.read_lines("greek_director/test.txt", real_data)) == 120


def test_the_manifest_is_readable_json(tmp_path):
    store(tmp_path, "greek_director/train.txt", b"one")
    content = json.loads((tmp_path / "manifest.json").read_text())
    assert content["files"]["greek_director/train.txt"]["sha256"] == hashlib.sha256(b"one").hexdigest()
